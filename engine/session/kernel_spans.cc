#include "engine/session/kernel_spans.h"

#include <cstddef>

namespace withy::engine {

using telemetry::Span;
using telemetry::SpanKind;

KernelSpans::KernelSpans(telemetry::Recorder& recorder)
    : KernelObserver(recorder.clock()), recorder_(recorder) {
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
