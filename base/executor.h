// Threads for work that may block, so that gRPC's own never do.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"

namespace withy {

// Thread-safe. At most `threads` threads, started as needed and kept; at most `queue_limit` tasks
// wait. The destructor finishes what was accepted.
class Executor {
 public:
  Executor(size_t threads, size_t queue_limit, const Clock& clock)
      : thread_limit_(threads), queue_limit_(queue_limit), clock_(clock) {}

  ~Executor() {
    std::vector<std::thread> threads;
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
      threads.swap(threads_);
    }
    for (std::thread& thread : threads) thread.join();
  }

  // False when the queue is full or closed; `task` is then dropped.
  [[nodiscard]] bool Run(std::function<void()> task) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || tasks_.size() >= queue_limit_) return false;
    if (tasks_.empty()) waiting_since_ns_ = clock_.SteadyNanos();
    tasks_.push_back(std::move(task));
    if (idle_ < tasks_.size() && threads_.size() < thread_limit_) {
      threads_.emplace_back([this] { Loop(); });
    }
    return true;
  }

  // How long no task was started although one waits.
  int64_t StalledNanos() const {
    absl::MutexLock lock(&mutex_);
    return tasks_.empty() ? 0 : clock_.SteadyNanos() - waiting_since_ns_;
  }

 private:
  bool HasTaskOrClosed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return closed_ || !tasks_.empty();
  }

  void Loop() {
    while (true) {
      std::function<void()> task;
      {
        absl::MutexLock lock(&mutex_);
        ++idle_;
        mutex_.Await(absl::Condition(this, &Executor::HasTaskOrClosed));
        --idle_;
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        waiting_since_ns_ = clock_.SteadyNanos();
      }
      task();
    }
  }

  const size_t thread_limit_;
  const size_t queue_limit_;
  const Clock& clock_;
  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> tasks_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t waiting_since_ns_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace withy
