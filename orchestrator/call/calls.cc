#include "orchestrator/call/calls.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace withy::orchestrator {

absl::Status CallTable::WaitForSlot(policy::Lane lane, const policy::Turn& turn,
                                    const policy::OtherCall& work, const policy::CallDemand& demand,
                                    CallControl& control) {
  control.SetHook([this] { Wake(); });
  {
    absl::MutexLock lock(&mutex_);
    admission_.Queue(lane, turn, work, demand);
    const auto ready = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return admission_.running(turn.id) || control.cancelled();
    };
    do {
      admission_.StartReady(lane, clock_.SteadyNanos());
      const absl::Time look_again = absl::Now() + absl::Nanoseconds(policy::kHoldPollNs);
      mutex_.AwaitWithDeadline(absl::Condition(&ready), std::min(control.deadline(), look_again));
    } while (!ready() && absl::Now() < control.deadline());
  }
  control.SetHook(nullptr);
  return control.Check();
}

}  // namespace withy::orchestrator
