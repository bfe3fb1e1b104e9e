// Counts the streamed answers that a server has not fully sent. A draining server waits for them
// before it sends GOAWAY. A client that has read everything acknowledges GOAWAY and closes, and an
// answer written after it may be cut off with the connection ("Broken pipe").
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace withy::rpc {

// Must outlive the server whose streams it counts. Thread-safe.
class OpenStreams {
 public:
  void Begin() {
    absl::MutexLock lock(&mutex_);
    ++open_;
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    --open_;
  }
  // Waits until all streams have ended, for at most `timeout`. Returns false if some have not.
  bool AwaitNone(absl::Duration timeout) const {
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(this, &OpenStreams::None), timeout);
  }

 private:
  bool None() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_ == 0; }

  mutable absl::Mutex mutex_;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace withy::rpc
