// Measures in quiet moments how fast the board is, after strict calls were refused: has the worker
// answer a made-up prompt as deep as the refused call's context, and teaches the latency model by
// it. A refused call itself is never run. Neighbours: policy/board/probe_policy.h says when and
// what, idle_task.h waits and asks, workers.h learns, gateway.cc owns it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "orchestrator/auditor.h"
#include "orchestrator/board/backends.h"
#include "orchestrator/board/idle_task.h"
#include "orchestrator/board/workers.h"
#include "policy/board/latency_learning.h"
#include "policy/board/probe_policy.h"
#include "telemetry/recorder.h"

namespace withy::orchestrator {

// Thread-safe.
class Prober {
 public:
  // `auditor` may be null; it is kept quiet meanwhile.
  Prober(Backends& backends, Workers& workers, Auditor* auditor, const Clock& clock,
         telemetry::Recorder& recorder);

  // A call is about to be given to a worker, or has ended after that. Calls that are refused do not
  // count: they must not keep the board from being measured.
  void CallStarts() { idle_.CallStarts(); }
  void CallEnds() { idle_.CallEnds(); }

  // A strict call was refused.
  void Refused(policy::Lane lane, policy::Doubt doubt);

 private:
  struct Work {
    policy::Lane lane = policy::Lane::kTarget;
    policy::Doubt doubt;
  };

  int64_t MeasureNext();
  int64_t DueNs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<double> Measure(const Work& work, bool full);
  absl::StatusOr<policy::Observation> Ask(const Work& work, uint32_t level_percent,
                                          uint32_t tokens);

  Workers& workers_;
  Auditor* const auditor_;
  const Clock& clock_;
  telemetry::Counter& probes_;
  mutable absl::Mutex mutex_;
  std::array<policy::ProbePolicy, policy::kLanes> policies_ ABSL_GUARDED_BY(mutex_);
  bool full_ = false;  // the next measurement is of the full model; of idle_'s thread
  IdleTask idle_;      // uses the others
};

}  // namespace withy::orchestrator
