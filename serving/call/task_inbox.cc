#include "serving/call/task_inbox.h"

#include <utility>

namespace withy::serving {

void TaskInbox::Post(Task task, bool interrupts) {
  absl::MutexLock lock(&mutex_);
  tasks_.push_back(std::move(task));
  if (interrupts) interrupt_ = true;
}

void TaskInbox::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

bool TaskInbox::Run(absl::Duration wait) {
  std::vector<Task> tasks;
  {
    const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !tasks_.empty() || stopped_;
    };
    absl::MutexLock lock(&mutex_);
    if (tasks_.empty() && wait > absl::ZeroDuration()) {
      busy_since_ns_ = 0;
      mutex_.AwaitWithTimeout(absl::Condition(&ready), wait);
      busy_since_ns_ = clock_.SteadyNanos();
    }
    if (stopped_ && tasks_.empty()) {
      busy_since_ns_ = 0;
      return false;
    }
    tasks.swap(tasks_);
  }
  for (Task& task : tasks) task();
  busy_since_ns_ = clock_.SteadyNanos();
  return true;
}

bool TaskInbox::ResetInterrupt() {
  interrupt_ = false;
  absl::MutexLock lock(&mutex_);
  return !tasks_.empty();
}

int64_t TaskInbox::BusyNanos() const {
  const int64_t since = busy_since_ns_.load();
  return since == 0 ? 0 : clock_.SteadyNanos() - since;
}

}  // namespace withy::serving
