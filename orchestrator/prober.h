// Measures in quiet moments how fast the board is, after strict calls were refused: has the worker
// answer a made-up prompt as deep as the refused call's context, and teaches the latency model by
// it. A refused call itself is never run. Whoever runs stops it at once. Neighbours: probe_policy.h
// says when and what, backends.h runs, gateway.cc owns it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "orchestrator/auditor.h"
#include "orchestrator/backends.h"
#include "orchestrator/call_control.h"
#include "orchestrator/probe_policy.h"
#include "telemetry/recorder.h"

namespace withy::orchestrator {

// Thread-safe. Its thread lives as long as it does.
class Prober {
 public:
  // Time without a running call before a measurement begins.
  static constexpr absl::Duration kQuiet = absl::Milliseconds(20);

  struct Model {
    std::function<LiveCorrection(Lane)> live;
    std::function<void(Lane, const CostParameters&, const Observation&)> learn;
  };

  // `auditor` may be null; it is kept quiet meanwhile.
  Prober(Backends& backends, Auditor* auditor, const Clock& clock, telemetry::Recorder& recorder,
         Model model);
  ~Prober();

  // A call is about to be given to a worker, or has ended after that.
  void Starts();
  void Ends();

  // A strict call was refused.
  void Refused(Lane lane, Doubt doubt);

 private:
  struct Work {
    Lane lane = Lane::kTarget;
    Doubt doubt;
  };

  void Run();
  bool Wanted() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<double> Measure(const Work& work, bool full);
  absl::StatusOr<Observation> Ask(const Work& work, uint32_t level_percent, uint32_t tokens);

  Backends& backends_;
  Auditor* const auditor_;
  const Clock& clock_;
  telemetry::Counter& probes_;
  const Model model_;
  mutable absl::Mutex mutex_;
  std::array<ProbePolicy, kLanes> policies_ ABSL_GUARDED_BY(mutex_);
  uint32_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t quiet_since_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  // Of the answer under way; shared, since whoever runs cancels it without the lock.
  std::shared_ptr<CallControl> asking_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace withy::orchestrator
