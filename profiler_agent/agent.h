// The core of the agent: a thread that drains the rings of all processes into a Profile, and
// consistent views of both for the exporter, the live page and the gRPC service; it hands spans on
// to watchers and captures. Knows no gRPC or HTTP.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "profiler_agent/board_room.h"
#include "profiler_agent/call_log.h"
#include "profiler_agent/profile.h"
#include "profiler_agent/recent.h"
#include "telemetry/reader.h"
#include "telemetry/recorder.h"

namespace withy::profiler_agent {

struct AgentOptions {
  std::string rings_directory;
  uint32_t poll_ms = 50;  // 1..1000
  size_t span_limit = Profile::kSpanLimit;
  std::string state_dir = {};  // whose disk is looked at (board_room.h); empty: none
};

// Totals over all attached files.
struct AgentInfo {
  uint32_t rings = 0;
  uint64_t spans = 0;
  uint64_t dropped_spans = 0;
  uint64_t processes = 0;
};

// Which spans a watcher takes.
struct SpanFilter {
  uint64_t call_id = 0;  // 0 = all calls
  bool kernels = false;
};

// Takes the spans of one drain, of which `left_out` more were too many. Called by a draining thread
// without locks; must not block. Returning false ends the watch.
using SpanWatcher = std::function<bool(const std::vector<SpanRow>& rows, uint64_t left_out)>;

// The spans that ended during a capture.
struct Captured {
  SpanSet set;
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
  uint64_t left_out = 0;  // the capture was full
  uint64_t lost = 0;      // the processes' rings were full
};

// Thread-safe. Polls from Start to destruction.
class Agent {
 public:
  static constexpr size_t kWatchers = 8;
  static constexpr size_t kWatchedSpans = 10'000;    // of one drain
  static constexpr size_t kCapturedSpans = 500'000;  // about 36 MB

  // `recorder` (for the agent's own counters) and `clock` must outlive the agent. Errors: those of
  // telemetry::Reader::Open.
  static absl::StatusOr<std::unique_ptr<Agent>> Start(const AgentOptions& options,
                                                      telemetry::Recorder& recorder,
                                                      const Clock& clock = Clock::Real());
  ~Agent();
  Agent(const Agent&) = delete;
  Agent& operator=(const Agent&) = delete;

  // Drains all unread spans now; the thread does so every poll_ms.
  void Poll();

  std::vector<SpanRow> Spans(uint64_t call_id, size_t limit) const;
  std::vector<PhaseRow> Phases() const;
  std::vector<telemetry::SourceInfo> Sources() const;
  // As Profile::PhasesSince and Profile::Since, of the time since `window` ago. `*covered_s` says
  // how far back the kept spans go.
  std::vector<PhaseRow> PhasesWithin(absl::Duration window, double* covered_s) const;
  SpanSet SpansWithin(absl::Duration window, size_t limit) const;
  std::vector<SizeRow> Sizes() const;
  std::vector<CallRow> RecentCalls() const;
  std::vector<TrendPoint> Trend() const;
  // Calls that the orchestrator reported.
  CallLog& calls() { return calls_; }
  const CallLog& calls() const { return calls_; }
  AgentInfo Info() const;
  uint64_t phase_overflows() const;
  uint64_t names_folded() const;
  int64_t NowNanos() const { return clock_.SteadyNanos(); }
  int64_t UnixNanos() const { return clock_.UnixNanos(); }
  // Seconds since Start.
  double age_s() const { return static_cast<double>(NowNanos() - started_ns_) / kNanosPerSecond; }

  // Gives `watcher` the spans of each drain from now on. Errors: RESOURCE_EXHAUSTED (kWatchers
  // watch already).
  absl::Status Watch(const SpanFilter& filter, SpanWatcher watcher);

  // Keeps the spans that end from now until EndCapture, which the caller means to call after
  // `length`. Errors: FAILED_PRECONDITION (another capture runs).
  absl::Status BeginCapture(absl::Duration length);
  // Drains the rings first. Call only after BeginCapture.
  Captured EndCapture();

  // Whether the thread has drained within the last 5 s.
  bool MakesProgress() const;

 private:
  Agent(const AgentOptions& options, telemetry::Recorder& recorder, const Clock& clock,
        std::unique_ptr<telemetry::Reader> reader);
  struct Watcher {
    SpanFilter filter;
    SpanWatcher take;
    std::vector<SpanRow> rows;
    uint64_t left_out = 0;
  };
  struct Capture {
    Captured captured;
    int64_t planned_end_ns = 0;
    uint64_t dropped_before = 0;
  };

  void Run(uint32_t poll_ms);
  void Take(const telemetry::SpanEvent& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(profile_mutex_);
  void HandOn();
  uint64_t DroppedSpans() const;

  const Clock& clock_;
  const int64_t started_ns_;
  CallLog calls_;
  std::atomic<int64_t> last_poll_ns_;
  telemetry::Counter& polls_;
  telemetry::Counter& problems_;
  BoardRoom room_;  // of the thread

  // Draining holds both locks, reading one.
  mutable absl::Mutex reader_mutex_;
  std::unique_ptr<telemetry::Reader> reader_ ABSL_GUARDED_BY(reader_mutex_);
  mutable absl::Mutex profile_mutex_ ABSL_ACQUIRED_AFTER(reader_mutex_);
  Profile profile_ ABSL_GUARDED_BY(profile_mutex_);
  Recent recent_ ABSL_GUARDED_BY(profile_mutex_);
  // Shared with the draining thread that calls them without a lock.
  std::vector<std::shared_ptr<Watcher>> watchers_ ABSL_GUARDED_BY(profile_mutex_);
  std::unique_ptr<Capture> capture_ ABSL_GUARDED_BY(profile_mutex_);

  absl::Mutex stop_mutex_;
  bool stopping_ ABSL_GUARDED_BY(stop_mutex_) = false;
  std::thread thread_;
};

}  // namespace withy::profiler_agent
