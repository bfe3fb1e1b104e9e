// How many streamed answers a server has not fully sent yet. A server that drains waits for them
// before it says good-bye: its GOAWAY is acknowledged by a client that has read everything before
// it, but an answer that is written after it may be cut off with the connection ("Broken pipe").
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace withy::rpc {

// Outlives the server whose streams it counts. Thread-safe.
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
  // Waits until all have ended, at most `timeout`. False when some have not.
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
