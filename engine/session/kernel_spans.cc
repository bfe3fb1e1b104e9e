#include "engine/session/kernel_spans.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

#include "telemetry/layout.h"
#include "telemetry/ring.h"

namespace withy::engine {
namespace {

using telemetry::Span;
using telemetry::SpanKind;

// What cannot be measured by itself, as a multiple of recording: what delays one thread delays all
// that wait for it, and a pass that is recorded after many that were not finds rings and code cold.
// By `./withy bench profiler`, whose overhead tells whether it suffices.
constexpr double kBesideRecording = 6;

// Ticks that one thread takes to record one operation: two readings of the clock, and a record in a
// ring. The fastest of some tries.
double TicksOfOperation(TickClock clock) {
  constexpr int kTries = 8;
  constexpr uint32_t kSpans = 256;
  telemetry::RingControl control{};
  telemetry::ReadIndex read{};
  std::vector<Span> slots(kSpans);
  double least = std::numeric_limits<double>::max();
  for (int i = 0; i < kTries; ++i) {
    read.value.store(control.write_index.load(std::memory_order_relaxed),
                     std::memory_order_relaxed);
    telemetry::RingProducer producer(&control, &read, slots.data(), kSpans);
    const int64_t began = clock.Now();
    for (uint32_t span = 0; span < kSpans; ++span) {
      Span recorded;
      recorded.started_ns = clock.Now();
      recorded.value = span;
      recorded.ended_ns = clock.Now();
      producer.Push(recorded, span);
    }
    least = std::min(least, static_cast<double>(clock.Now() - began) / kSpans);
  }
  return kBesideRecording * std::max(least, 0.0);
}

}  // namespace

KernelSpans::KernelSpans(telemetry::Recorder& recorder)
    : KernelObserver(recorder.clock()),
      recorder_(recorder),
      sampler_(TicksOfOperation(recorder.clock())) {
  for (int kind = 0; kind < kOpKinds; ++kind) {
    const auto name = recorder.Name(OpName(static_cast<OpKind>(kind)), SpanKind::kKernel);
    names_[static_cast<size_t>(kind)] = name.id;
  }
}

void KernelSpans::OnKernel(const KernelRun& run) {
  const int32_t layer = run.layer < 0 ? layers_.load(std::memory_order_relaxed) : run.layer;
  Span span;
  span.call_id = run.pass.call_id;
  span.queued_ns = run.dispatched;
  span.submitted_ns = run.arrived;
  span.started_ns = run.started;
  span.ended_ns = run.ended;
  span.value = static_cast<uint64_t>(layer);
  span.sequence = run.pass.number;
  span.name = names_[run.op];
  span.kind = SpanKind::kKernel;
  span.clock = telemetry::ClockOf(clock());
  span.weight = run.weight;
  recorder_.Record(span);
}

void KernelSpans::OnEmbedded(const PassTag& pass, int64_t started, int64_t ended) {
  Span span;
  span.call_id = pass.call_id;
  span.started_ns = started;
  span.ended_ns = ended;
  span.sequence = pass.number;
  span.name = static_cast<uint16_t>(telemetry::Phase::kEmbedding);
  span.clock = telemetry::ClockOf(clock());
  recorder_.Record(span);
}

}  // namespace withy::engine
