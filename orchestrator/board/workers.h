// What is known of the two workers: their models and costs, asked for now and then, and what calls
// have taught of their speed. Neighbours: backends.h asks, policy/board/latency_learning.h learns.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "orchestrator/board/backends.h"
#include "policy/board/latency_learning.h"
#include "policy/call/admission.h"
#include "withy/v1/model_worker.pb.h"

namespace withy::orchestrator {

// What a worker said of itself. Shared by the calls that it was decided for.
using WorkerInfo = std::shared_ptr<const v1::GetWorkerInfoResponse>;

// Thread-safe.
class Workers {
 public:
  Workers(Backends& backends, const Clock& clock);

  // Cached for a moment. `wait`: for a worker that is not there. Errors: NOT_FOUND where it serves
  // no model, naming why; of Backends::WorkerInfo.
  absl::StatusOr<WorkerInfo> Get(policy::Lane lane, absl::Time deadline, bool wait = true);
  // As the last call found it, however long ago; null: not asked yet, or gone since.
  WorkerInfo Last(policy::Lane lane) const;
  void Forget(policy::Lane lane);
  // Which worker answers for a model's name; empty = the target. Errors: NOT_FOUND naming the names
  // that there are.
  absl::StatusOr<policy::Lane> FindLane(const std::string& model, absl::Time deadline);

  // Of a TLM that was just opened; 0: there is none. What calls taught of another one is forgotten.
  void SetTlmSpeed(double us_per_byte);
  // The worker has told its board's speed: LiveCorrection::slowdown from now on. Not above zero:
  // nothing is known of it.
  void TellSlowdown(policy::Lane lane, double slowdown);
  policy::LiveCorrection Live(policy::Lane lane) const;
  void Learn(policy::Lane lane, const policy::CostParameters& cost,
             const policy::Observation& seen);

 private:
  struct Known {
    WorkerInfo info;
    int64_t expires_ns = 0;
    policy::LiveCorrection live;
    std::string cost;  // that `live` corrects, on the wire
  };
  Known& Of(policy::Lane lane) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return known_[static_cast<size_t>(lane)];
  }

  Backends& backends_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  std::array<Known, policy::kLanes> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::orchestrator
