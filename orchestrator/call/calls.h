// All calls of the orchestrator, for the threads that serve them: a lock and waiting callers around
// policy/call/admission.h, which decides. Neighbours: generate.cc walks each call through its
// states.
#pragma once

#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "orchestrator/call/call_control.h"
#include "policy/call/admission.h"

namespace withy::orchestrator {

// Thread-safe. Methods are those of policy::Admission, at the time of `clock`.
class CallTable {
 public:
  CallTable(const policy::AdmissionOptions& options, const Clock& clock)
      : clock_(clock), admission_(options) {}

  absl::Status Arrive(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    return admission_.Arrive(id, clock_.SteadyNanos());
  }
  void Leave(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    admission_.Leave(id, clock_.SteadyNanos());
  }
  policy::Load LoadBefore(policy::Lane lane, const policy::Turn& turn) const {
    absl::MutexLock lock(&mutex_);
    return admission_.LoadBefore(lane, turn, clock_.SteadyNanos());
  }

  // Queues the call and waits until it runs. Errors: CANCELLED, DEADLINE_EXCEEDED.
  absl::Status WaitForSlot(policy::Lane lane, const policy::Turn& turn,
                           const policy::OtherCall& work, const policy::CallDemand& demand,
                           CallControl& control);

  void FirstToken(uint64_t id) {
    absl::MutexLock lock(&mutex_);
    admission_.FirstToken(id, clock_.SteadyNanos());
  }
  void Generated(uint64_t id, uint32_t tokens) {
    absl::MutexLock lock(&mutex_);
    admission_.Generated(id, tokens, clock_.SteadyNanos());
  }
  policy::DecodeSurroundings Surroundings(uint64_t id) const {
    absl::MutexLock lock(&mutex_);
    return admission_.Surroundings(id, clock_.SteadyNanos());
  }

  void StopAdmitting() {
    absl::MutexLock lock(&mutex_);
    admission_.StopAdmitting();
  }
  // Waits until every call has left, at most `timeout`.
  void AwaitEmpty(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&admission_, &policy::Admission::empty), timeout);
  }
  policy::Admission::Counts counts() const {
    absl::MutexLock lock(&mutex_);
    return admission_.counts();
  }

 private:
  // Makes waiting callers look again.
  void Wake() const { absl::MutexLock lock(&mutex_); }

  const Clock& clock_;
  mutable absl::Mutex mutex_;
  policy::Admission admission_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::orchestrator
