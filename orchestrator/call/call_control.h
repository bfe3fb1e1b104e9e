// Cancellation and deadline of one call, as its thread and everybody it waits for see them.
#pragma once

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace withy::orchestrator {

// Thread-safe. Shared by the gRPC reactor (which cancels) and the call's thread (which looks and
// waits).
class CallControl {
 public:
  explicit CallControl(absl::Time deadline) : deadline_(deadline) {}

  absl::Time deadline() const { return deadline_; }

  void Cancel() {
    std::function<void()> hook;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      hook = std::move(hook_);
      hook_ = nullptr;
    }
    if (hook) hook();
  }

  // The caller ends its answer on purpose: as `stop` (SetStop) does it, else as Cancel(). Blocks as
  // `stop` does.
  void Stop() {
    std::function<bool()> stop;
    {
      absl::MutexLock lock(&mutex_);
      stop = stop_;
    }
    if (stop == nullptr || !stop()) Cancel();
  }

  // How the call is ended so that the part which is answered counts; returns false when there is
  // none yet. May be called late, as hooks are. Null: not at all.
  void SetStop(std::function<bool()> stop) {
    absl::MutexLock lock(&mutex_);
    stop_ = std::move(stop);
  }

  bool cancelled() const {
    absl::MutexLock lock(&mutex_);
    return cancelled_;
  }

  // `hook` replaces the one before and is called once on cancellation, at once when that was
  // before; null removes it. It runs on the cancelling thread, must not block, and must own what it
  // touches: it may still run after its removal.
  void SetHook(std::function<void()> hook) {
    {
      absl::MutexLock lock(&mutex_);
      if (!cancelled_ || hook == nullptr) {
        hook_ = std::move(hook);
        return;
      }
    }
    hook();
  }

  // CANCELLED or DEADLINE_EXCEEDED when the call has ended for its caller.
  absl::Status Check() const {
    if (absl::Now() >= deadline_)
      return absl::DeadlineExceededError("the call's deadline has passed");
    if (cancelled()) return absl::CancelledError("the caller cancelled");
    return absl::OkStatus();
  }

 private:
  const absl::Time deadline_;
  mutable absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> hook_ ABSL_GUARDED_BY(mutex_);
  std::function<bool()> stop_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace withy::orchestrator
