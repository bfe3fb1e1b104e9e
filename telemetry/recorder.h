// The writing side of telemetry: what a process did and when, as spans, counters and gauges in one
// file of shared memory. Every process has one Recorder; profiler_agent reads the files
// (telemetry/reader.h). Writing a span allocates nothing, takes no lock, makes no system call and
// never waits: a full ring counts a drop. No text of any call is ever recorded.
//
//   WITHY_ASSIGN_OR_RETURN(auto recorder, Recorder::Open(run_dir + "/rings", "model_worker"));
//   Counter& tokens = recorder->counter({.name = "withy_generated_tokens_total", .help = "Tokens
//   generated."}); { ScopedSpan span(*recorder, Phase::kPrefill, call_id); span.set_value(rows);
//   Prefill(); } tokens.Add();
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "telemetry/layout.h"

namespace withy::telemetry {

// Names that every recorder has. A phase is a stage of a call's life; kIo and kIdle have kinds of
// their own.
enum class Phase : uint16_t {
  kOther = 0,  // also what a name becomes when the table is full
  kQueue,
  kTokenize,
  kTlm,
  kEmbedding,
  kPrefill,
  kDecode,
  kSoftmax,
  kCopyProbs,
  kSampling,
  kVerify,
  kDraft,
  kLease,
  kLoad,
  kRecompute,
  kCompress,
  kSwapOut,
  kCommit,
  kStream,
  kTtft,      // from arrival to the first token; feeds withy_ttft_seconds
  kTpot,      // a mean: ended - started is the time per output token; feeds withy_tpot_seconds
  kEndToEnd,  // from arrival to the last token
  kIo,
  kIdle,
};
inline constexpr uint16_t kPhaseCount = static_cast<uint16_t>(Phase::kIdle) + 1;

// The text of a phase as it is exported, e.g. "copy_probs".
std::string_view PhaseName(Phase phase);
constexpr SpanKind PhaseKind(Phase phase) {
  return phase == Phase::kIo     ? SpanKind::kIo
         : phase == Phase::kIdle ? SpanKind::kIdle
                                 : SpanKind::kPhase;
}

// A span's name, ready to be recorded. A Phase is one.
struct NameId {
  uint16_t id = 0;
  SpanKind kind = SpanKind::kPhase;
  constexpr NameId() = default;
  constexpr NameId(uint16_t name_id, SpanKind name_kind) : id(name_id), kind(name_kind) {}
  // NOLINTNEXTLINE(google-explicit-constructor): a phase is meant to stand wherever a name may.
  constexpr NameId(Phase phase) : id(static_cast<uint16_t>(phase)), kind(PhaseKind(phase)) {}
};

// Nanoseconds of steady_clock, the clock of all spans.
inline int64_t SteadyNowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A number that only grows. Lives in the recorder's memory, as long as the recorder. Any thread.
class Counter {
 public:
  void Add(uint64_t n = 1) { entry_.value.fetch_add(n, std::memory_order_relaxed); }
  uint64_t value() const { return entry_.value.load(std::memory_order_relaxed); }

 private:
  friend class Recorder;
  MetricEntry entry_;
};

// A number that goes up and down. Lives in the recorder's memory, as long as the recorder. Any
// thread.
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

// What a counter or gauge is called. Names follow Prometheus: withy_ in front, base units, counters
// end in _total.
struct MetricSpec {
  std::string_view name = {};  // [a-z_:][a-z0-9_:]*, at most 63 bytes
  std::string_view help = {};  // one sentence; cut to 111 bytes
  Unit unit = Unit::kOne;
  std::string_view label_key = {};  // at most one label; key at most 23 bytes, value at most 39
  std::string_view label_value = {};
};

struct RecorderOptions {
  // Spans a thread may have unread. A power of two, 64..65536. 4096 is 256 KiB for each thread that
  // records.
  uint32_t ring_capacity = 4096;
};

// One a process; owned by main (or a test). Outlives all who hold its counters, gauges and spans;
// threads that recorded may outlive it. All methods may be called from any thread.
class Recorder {
 public:
  // Creates DIRECTORY/PROCESS.PID.ring (and the directory, mode 0700), and removes files that dead
  // processes of this name left. The file is locked as long as this process lives: that is how the
  // reader knows. Errors: INVALID_ARGUMENT (a process name that is empty, over 31 bytes or not
  // [a-z0-9_-]; capacity out of range), and what the file system says (NOT_FOUND,
  // PERMISSION_DENIED, RESOURCE_EXHAUSTED on a full tmpfs).
  static absl::StatusOr<std::unique_ptr<Recorder>> Open(std::string_view directory,
                                                        std::string_view process,
                                                        RecorderOptions options = {});
  // Records no spans; its counters and gauges count in private memory. For tests and tools.
  static std::unique_ptr<Recorder> Disabled();

  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The id of `name` (1..62 bytes, cut beyond), made on first use. Phase::kOther when the table is
  // full, which is counted. Takes a lock: call it at start-up, not per span.
  NameId Name(std::string_view name, SpanKind kind = SpanKind::kPhase);

  // The counter or gauge of that name and label, made at 0 on first use. Takes a lock: call it at
  // start-up. One that is malformed, already exists as the other kind, or finds the table full
  // counts privately, is not exported, and is counted as an overflow.
  Counter& counter(const MetricSpec& spec);
  Gauge& gauge(const MetricSpec& spec);

  // Appends a span to the calling thread's ring; `thread` is filled in. Drops it, counted, when the
  // ring is full, when all 64 rings are taken by living threads, or when tmpfs has no room for this
  // thread's first span.
  void Record(const Span& span);

  bool enabled() const;
  // Spans lost so far.
  uint64_t dropped() const;
  // "" when disabled.
  const std::string& path() const;

  // The mapped file; for the implementation alone.
  class Memory;

 private:
  explicit Recorder(std::shared_ptr<Memory> memory);
  MetricEntry& Metric(const MetricSpec& spec, MetricKind kind);

  // Shared with the thread-local handles of the threads that recorded, which may end after the
  // recorder.
  std::shared_ptr<Memory> memory_;
  uint64_t serial_;
};

// Records the time from construction to destruction (or End). Lives on one thread's stack.
class ScopedSpan {
 public:
  ScopedSpan(Recorder& recorder, NameId name, uint64_t call_id = 0, uint32_t sequence = 0)
      : recorder_(&recorder) {
    span_.call_id = call_id;
    span_.sequence = sequence;
    span_.name = name.id;
    span_.kind = name.kind;
    span_.started_ns = SteadyNowNs();
  }
  ~ScopedSpan() { End(); }
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

  // Rows, tokens, bytes or blocks, as the name says.
  void set_value(uint64_t value) { span_.value = value; }
  // When the work was asked for, and when it was handed to whoever does it.
  void set_queued_ns(int64_t ns) { span_.queued_ns = ns; }
  void set_submitted_ns(int64_t ns) { span_.submitted_ns = ns; }
  int64_t started_ns() const { return span_.started_ns; }

  // Ends the span now; later calls do nothing.
  void End() {
    if (recorder_ == nullptr) return;
    span_.ended_ns = SteadyNowNs();
    recorder_->Record(span_);
    recorder_ = nullptr;
  }

 private:
  Recorder* recorder_;
  Span span_;
};

// Records a duration that was measured elsewhere, e.g. TTFT: from `started_ns` to `ended_ns`.
inline void RecordDuration(Recorder& recorder, NameId name, uint64_t call_id, int64_t started_ns,
                           int64_t ended_ns, uint64_t value = 0) {
  Span span;
  span.call_id = call_id;
  span.started_ns = started_ns;
  span.ended_ns = ended_ns;
  span.value = value;
  span.name = name.id;
  span.kind = name.kind;
  recorder.Record(span);
}

}  // namespace withy::telemetry
