// Tasks that any thread leaves for the engine thread. Neighbours: scheduler.h owns it;
// step_runner.h leaves a step for what arrives.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "serving/call/task_thread.h"

namespace withy::serving {

// Post, Stop and BusyNanos: any thread. All else: the one thread that runs the tasks.
class TaskInbox {
 public:
  explicit TaskInbox(Clock& clock) : clock_(clock) {}

  // `interrupts`: raises the flag that a step under way is left for.
  void Post(Task task, bool interrupts = true);
  // Run returns false once all tasks posted before have run.
  void Stop();

  // Runs all tasks, in the order they were posted; waits at most `wait` for the first. False:
  // stopped, and nothing is left to run.
  bool Run(absl::Duration wait);
  // Lowers the interrupt flag. Returns whether a task is there already: it raised the flag too
  // early for the step that is about to begin.
  bool ResetInterrupt();
  const std::atomic<bool>* interrupt() const { return &interrupt_; }

  // How long the thread has been at its present round of tasks and step; 0 while it waits.
  int64_t BusyNanos() const;

 private:
  Clock& clock_;
  mutable absl::Mutex mutex_;
  std::vector<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> interrupt_{false};
  std::atomic<int64_t> busy_since_ns_{0};  // 0 = the thread waits
};

}  // namespace withy::serving
