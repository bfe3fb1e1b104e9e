// Which calls are here: admission within the bounds, their names and tickets, draining, quiet
// moments, the load. Neighbours: scheduler.h asks from any thread; call_lifecycle.h says when calls
// end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "serving/call/call.h"
#include "serving/call/call_state.h"
#include "serving/call/request_names.h"
#include "serving/call/scheduler_options.h"

namespace withy::serving {

// Thread-safe.
class CallRegistry {
 public:
  // Hands a call to the engine thread; must not block. Called under the registry's lock, so that a
  // drain which begins later comes after every call that was admitted before.
  using Enqueue = absl::AnyInvocable<void(std::unique_ptr<Call> call)>;

  CallRegistry(const SchedulerOptions& options, Clock& clock, Enqueue enqueue)
      : max_batch_(options.max_batch),
        queue_limit_(options.queue_limit),
        clock_(clock),
        enqueue_(std::move(enqueue)) {}

  // Errors: as Scheduler::Submit.
  absl::StatusOr<Ticket> Admit(CallRequest request, std::shared_ptr<CallSink> sink);
  // A rebuild is not counted and has no bound. Errors: UNAVAILABLE while draining.
  absl::Status AdmitRebuild(const std::string& app_id, const std::string& context_id,
                            std::shared_ptr<CallSink> sink);
  // The call's request_id is free for a retry; `stored`: its answer is in the store, and a retry is
  // refused for a while.
  void EndName(const CallRequest& request, bool stored);
  // A call that was admitted, not for a rebuild, is gone.
  void Release();

  // As Scheduler::AwaitQuiet.
  bool AwaitQuiet(absl::Duration quiet, uint64_t* calls_seen);
  // Admits nothing from now on.
  void BeginDrain();
  // False when calls are left after `limit`; rebuilds do not count.
  bool AwaitEmpty(absl::Duration limit);

  void SetLoad(size_t running, size_t queued, int64_t pending_prefill_tokens);
  SchedulerLoad load() const;

 private:
  const int32_t max_batch_;
  const int32_t queue_limit_;
  Clock& clock_;
  mutable absl::Mutex mutex_;
  Enqueue enqueue_ ABSL_GUARDED_BY(mutex_);
  SchedulerLoad load_ ABSL_GUARDED_BY(mutex_);
  size_t admitted_ ABSL_GUARDED_BY(mutex_) = 0;     // now, rebuilds aside
  uint64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;  // in all, rebuilds aside
  uint64_t next_ticket_ ABSL_GUARDED_BY(mutex_) = 1;
  RequestNames names_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace withy::serving
