// The writing side of telemetry: spans, counters and gauges of one process in one shared-memory
// file. Every process has one Recorder; profiler_agent reads the files (telemetry/reader.h).
// Recording a span allocates nothing, takes no lock, makes no system call and never waits: a full
// ring counts a drop. Spans that are timed here use the processor's counter where it can serve as a
// clock (base/ticks.h); the reader converts. No text of any call is ever recorded.
//
//   WITHY_ASSIGN_OR_RETURN(auto recorder, Recorder::Open(run_dir + "/rings", "model_worker"));
//   Counter& tokens = recorder->counter({.name = "withy_generated_tokens_total", .help = "..."});
//   {
//     ScopedSpan span(*recorder, Phase::kPrefill, call_id);
//     span.set_value(rows);
//     Prefill();
//   }
//   tokens.Add();
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/ticks.h"
#include "telemetry/layout.h"

namespace withy::telemetry {

// Predefined span names. A phase is a stage of a call's life.
enum class Phase : uint16_t {
  kOther = 0,  // replaces a name if the name table is full
  kQueue,
  kTlm,
  kPrefill,
  kDecode,
  kSampling,
  kLease,
  kLoad,
  kCommit,
  kTtft,       // from arrival to the first token; feeds withy_ttft_seconds
  kTpot,       // ended - started is the mean time per output token; feeds withy_tpot_seconds
  kEndToEnd,   // from arrival to the last token
  kDraft,      // a draft model grew a call's tree
  kVerify,     // a decode step with drafted tokens
  kRecompute,  // a piece of a prompt whose KV the context has lost, or has at a lower level
  kEmbedding,  // a pass's rows are made of their tokens
  kSoftmax,    // probabilities are made of a token's logits; part of sampling
  kCopyProbs,  // a token's logits are copied, to be penalised; part of sampling
  kStream,     // a delta is handed on towards the app
};
inline constexpr uint16_t kPhaseCount = static_cast<uint16_t>(Phase::kStream) + 1;

// The exported text of a phase, e.g. "end_to_end".
std::string_view PhaseName(Phase phase);

// A span name ready for recording. A Phase converts to one.
struct NameId {
  uint16_t id = 0;
  SpanKind kind = SpanKind::kPhase;
  constexpr NameId() = default;
  constexpr NameId(uint16_t name_id, SpanKind name_kind) : id(name_id), kind(name_kind) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a phase is meant to stand wherever a name may.
  constexpr NameId(Phase phase) : id(static_cast<uint16_t>(phase)) {}
};

// Span::clock of times that `clock` gave.
inline SpanClock ClockOf(TickClock clock) {
  return clock.is_counter() ? SpanClock::kCounter : SpanClock::kSteady;
}

// A number that only grows. Lives in the recorder's memory, as long as the recorder. Thread-safe.
class Counter {
 public:
  void Add(uint64_t n = 1) { entry_.value.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return entry_.value.load(std::memory_order_relaxed); }

 private:
  friend class Recorder;
  MetricEntry entry_;
};

// A number that goes up and down. Lives in the recorder's memory, as long as the recorder.
// Thread-safe.
class Gauge {
 public:
  void Set(int64_t v) { entry_.value.store(static_cast<uint64_t>(v), std::memory_order_relaxed); }
  void Add(int64_t n) {
    entry_.value.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
  }
  int64_t value() const {
    return static_cast<int64_t>(entry_.value.load(std::memory_order_relaxed));
  }

 private:
  friend class Recorder;
  MetricEntry entry_;
};

// Describes a counter or gauge. Names follow Prometheus: prefix withy_, base units, counters end in
// _total.
struct MetricSpec {
  std::string_view name = {};  // [a-z_:][a-z0-9_:]*, at most 63 bytes
  std::string_view help = {};  // one sentence; cut to 111 bytes
  Unit unit = Unit::kOne;
  std::string_view label_key = {};    // at most one label; at most 23 bytes
  std::string_view label_value = {};  // at most 39 bytes
};

struct RecorderOptions {
  // Maximum unread spans per thread. A power of two, 64..65536. 4096 spans are 256 KiB per
  // recording thread.
  uint32_t ring_capacity = 4096;
  // False: spans are timed by steady_clock even where the processor's counter could serve.
  bool use_counter = true;
};

// One per process, owned by main (or a test). Must outlive all users of its counters, gauges and
// spans; threads that recorded may outlive it. Thread-safe.
class Recorder {
 public:
  // Creates DIRECTORY/PROCESS.PID.ring (and the directory, mode 0700) and removes files left by
  // dead processes of this name. The file stays locked while the process lives, which tells the
  // reader that the writer lives. Errors: INVALID_ARGUMENT (`process` empty, over 31 bytes or not
  // [a-z0-9_-]; capacity out of range), those of the file system (NOT_FOUND, PERMISSION_DENIED,
  // RESOURCE_EXHAUSTED on a full tmpfs).
  static absl::StatusOr<std::unique_ptr<Recorder>> Open(std::string_view directory,
                                                        std::string_view process,
                                                        RecorderOptions options = {});
  // Records no spans; counters and gauges use private memory. For tests and tools.
  static std::unique_ptr<Recorder> Disabled();

  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The id of `name` (1..62 bytes; longer names are cut), created on first use. If the table is
  // full, returns Phase::kOther and counts an overflow. Takes a lock: call at start-up, not per
  // span.
  NameId Name(std::string_view name, SpanKind kind = SpanKind::kPhase);

  // The metric with this name and label, created with value 0 on first use. Takes a lock: call at
  // start-up. A metric that is malformed, exists as the other kind, or does not fit the table gets
  // private memory, is not exported, and counts as an overflow.
  Counter& counter(const MetricSpec& spec);
  Gauge& gauge(const MetricSpec& spec);

  // The clock of the spans that are timed here.
  TickClock clock() const { return clock_; }
  int64_t Ticks() const { return clock_.Now(); }

  // Appends a span to the calling thread's ring and fills in `thread`. Drops and counts the span if
  // the ring is full, if living threads hold all 64 rings, or if tmpfs has no room for this
  // thread's first span.
  void Record(const Span& span);

  bool enabled() const;
  // Spans lost so far.
  uint64_t dropped() const;
  // Path of the file; "" if disabled.
  const std::string& path() const;

  // The mapped file; for the implementation only.
  class Memory;

 private:
  Recorder(std::shared_ptr<Memory> memory, TickClock clock);
  MetricEntry& Metric(const MetricSpec& spec, MetricKind kind);
  // Where the thread has no ring yet, or uses several recorders.
  void RecordSlowly(const Span& span);

  // Shared with the thread-local handles of recording threads, which may end after the recorder.
  std::shared_ptr<Memory> memory_;
  const TickClock clock_;
  const uint64_t serial_;
};

// Records the time from construction to destruction (or End). Use as a local variable.
class ScopedSpan {
 public:
  ScopedSpan(Recorder& recorder, NameId name, uint64_t call_id = 0, uint32_t sequence = 0)
      : ScopedSpan(recorder, name, call_id, sequence, recorder.clock()) {}
  // `clock`: steady_clock where other times of the span are.
  ScopedSpan(Recorder& recorder, NameId name, uint64_t call_id, uint32_t sequence, TickClock clock)
      : recorder_(&recorder), clock_(clock) {
    span_.call_id = call_id;
    span_.sequence = sequence;
    span_.name = name.id;
    span_.kind = name.kind;
    span_.clock = ClockOf(clock);
    span_.started_ns = clock.Now();
  }
  ~ScopedSpan() { End(); }
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

  // Rows, tokens, bytes or blocks, depending on the name.
  void set_value(uint64_t value) { span_.value = value; }
  // Time when the work was requested, by the span's clock.
  void set_queued_ticks(int64_t ticks) { span_.queued_ns = ticks; }

  // Ends the span now; later calls do nothing.
  void End() {
    if (recorder_ == nullptr) return;
    span_.ended_ns = clock_.Now();
    recorder_->Record(span_);
    recorder_ = nullptr;
  }

 private:
  Recorder* recorder_;
  const TickClock clock_;
  Span span_;
};

// Records spans of one thread that follow each other without a gap: the clock is read once for each
// boundary.
class SpanChain {
 public:
  // The first span begins now.
  explicit SpanChain(Recorder& recorder, uint64_t call_id = 0) : recorder_(recorder) {
    span_.call_id = call_id;
    span_.clock = ClockOf(recorder.clock());
    span_.started_ns = recorder.Ticks();
  }

  // What happened since the last boundary was `name`; the next span begins now.
  void End(NameId name, uint32_t sequence = 0, uint64_t value = 0) {
    span_.name = name.id;
    span_.kind = name.kind;
    span_.sequence = sequence;
    span_.value = value;
    span_.ended_ns = recorder_.Ticks();
    recorder_.Record(span_);
    span_.started_ns = span_.ended_ns;
  }
  // What happened since the last boundary is no span.
  void Skip() { span_.started_ns = recorder_.Ticks(); }

 private:
  Recorder& recorder_;
  Span span_;
};

// Records a duration measured elsewhere (e.g. TTFT), from `started_ns` to `ended_ns` of
// steady_clock.
inline void RecordDuration(Recorder& recorder, NameId name, uint64_t call_id, int64_t started_ns,
                           int64_t ended_ns, uint64_t value = 0, uint32_t sequence = 0) {
  Span span;
  span.call_id = call_id;
  span.started_ns = started_ns;
  span.ended_ns = ended_ns;
  span.value = value;
  span.sequence = sequence;
  span.name = name.id;
  span.kind = name.kind;
  recorder.Record(span);
}

}  // namespace withy::telemetry
