// A few threads for work that blocks on the disk, so that gRPC callbacks never block.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"

namespace withy::context_store {

// Runs tasks in order of arrival on `threads` threads. Thread-safe. The destructor runs all
// accepted tasks.
class WorkPool {
 public:
  using Task = std::function<void()>;

  WorkPool(int threads, size_t queue_limit, const Clock& clock);
  ~WorkPool();
  WorkPool(const WorkPool&) = delete;
  WorkPool& operator=(const WorkPool&) = delete;

  // Drops the task and returns false if `queue_limit` tasks wait.
  [[nodiscard]] bool TryRun(Task task) { return queue_.TryPush(std::move(task)); }
  // Waits for room. For work that must run, such as the end of a lease.
  void Run(Task task) { queue_.Push(std::move(task)); }

  // Time that the longest-running task has taken; 0 = no task runs.
  int64_t LongestRunNanos() const;

 private:
  void Work(std::atomic<int64_t>& started_ns);

  const Clock& clock_;
  BoundedQueue<Task> queue_;
  std::vector<std::unique_ptr<std::atomic<int64_t>>> started_ns_;  // one per thread; 0 = idle
  std::vector<std::thread> threads_;
};

}  // namespace withy::context_store
