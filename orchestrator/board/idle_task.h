// Work for a worker that is done while no call needs it: waits for a quiet moment, runs the work on
// a thread of its own, and stops it when a call comes. Neighbours: auditor.h and prober.h say what
// the work is, backends.h asks the worker.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "orchestrator/board/backends.h"
#include "orchestrator/call/call_control.h"
#include "policy/call/admission.h"

namespace withy::orchestrator {

// Thread-safe. Its thread lives as long as it does.
class IdleTask {
 public:
  static constexpr int64_t kNothing = std::numeric_limits<int64_t>::max();

  // `work` does one piece of work, by Ask(), and returns when the next one is due (steady time;
  // kNothing: not before Schedule()). It runs on this object's thread.
  IdleTask(Backends& backends, const Clock& clock, std::function<int64_t()> work);
  // Stops the work under way.
  ~IdleTask();

  // A call is there that must not be disturbed: stops the work under way. Each CallStarts is
  // followed by one CallEnds.
  void CallStarts();
  void CallEnds();
  // There is work from `due_ns` on, in the next quiet moment.
  void Schedule(int64_t due_ns);

  // For `work`: has the worker answer `request` (call_id is filled in). Errors: CANCELLED exactly
  // where a call is there or has come meanwhile; of Backends::Run.
  absl::Status Ask(policy::Lane lane, v1::RunRequest request,
                   const std::function<bool(v1::RunResponse&)>& on_event);
  // The same for any other request, which `ask` makes and `control` stops. Errors: CANCELLED as
  // Ask; of `ask`.
  absl::Status Do(const std::function<absl::Status(CallControl& control)>& ask);

 private:
  void Run();
  int64_t QuietFromNs() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Backends& backends_;
  const Clock& clock_;
  const std::function<int64_t()> work_;
  absl::Mutex mutex_;
  uint32_t calls_ ABSL_GUARDED_BY(mutex_) = 0;  // that are there
  int64_t quiet_since_ns_ ABSL_GUARDED_BY(mutex_);
  int64_t due_ns_ ABSL_GUARDED_BY(mutex_) = kNothing;
  // Of the request under way; shared, since whoever comes cancels it without the lock.
  std::shared_ptr<CallControl> asking_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace withy::orchestrator
