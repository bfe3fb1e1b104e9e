// The core of the agent: a thread that drains the rings of all processes into a Profile, and
// consistent views of both for the exporter and the gRPC service. Knows no gRPC or HTTP.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "profiler_agent/profile.h"
#include "telemetry/reader.h"
#include "telemetry/recorder.h"

namespace withy::profiler_agent {

struct AgentOptions {
  std::string rings_directory;
  uint32_t poll_ms = 50;  // 1..1000
  size_t span_limit = Profile::kSpanLimit;
};

// Totals over all attached files.
struct AgentInfo {
  uint32_t rings = 0;
  uint64_t spans = 0;
  uint64_t dropped_spans = 0;
  uint64_t processes = 0;
};

// Thread-safe. Polls from Start to destruction.
class Agent {
 public:
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
  AgentInfo Info() const;
  uint64_t phase_overflows() const;

  // Whether the thread has drained within the last 5 s.
  bool MakesProgress() const;

 private:
  Agent(const AgentOptions& options, telemetry::Recorder& recorder, const Clock& clock,
        std::unique_ptr<telemetry::Reader> reader);
  void Run(uint32_t poll_ms);

  const Clock& clock_;
  std::atomic<int64_t> last_poll_ns_;
  telemetry::Counter& polls_;
  telemetry::Counter& problems_;

  // Draining holds both locks, reading one.
  mutable absl::Mutex reader_mutex_;
  std::unique_ptr<telemetry::Reader> reader_ ABSL_GUARDED_BY(reader_mutex_);
  mutable absl::Mutex profile_mutex_ ABSL_ACQUIRED_AFTER(reader_mutex_);
  Profile profile_ ABSL_GUARDED_BY(profile_mutex_);

  absl::Mutex stop_mutex_;
  bool stopping_ ABSL_GUARDED_BY(stop_mutex_) = false;
  std::thread thread_;
};

}  // namespace withy::profiler_agent
