// One thread that runs tasks in the order they were posted: for work that would delay gRPC's
// threads or the engine thread.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "base/bounded_queue.h"

namespace withy::serving {

using Task = absl::AnyInvocable<void()>;

// Post from any thread. The destructor runs what was posted and joins.
class TaskThread {
 public:
  explicit TaskThread(size_t limit) : tasks_(limit), thread_([this] { Run(); }) {}
  ~TaskThread() {
    tasks_.Close();
    thread_.join();
  }
  TaskThread(const TaskThread&) = delete;
  TaskThread& operator=(const TaskThread&) = delete;

  // False when `limit` tasks wait already.
  [[nodiscard]] bool Post(Task task) { return tasks_.TryPush(std::move(task)); }

 private:
  void Run() {
    while (auto task = tasks_.Pop()) (*task)();
  }

  BoundedQueue<Task> tasks_;
  std::thread thread_;
};

}  // namespace withy::serving
