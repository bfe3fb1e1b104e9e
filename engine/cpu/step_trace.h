// Times what one compute thread does of each operation, for a KernelObserver. The clock is read
// when the thread begins an operation and when it finds nothing left to do of it; once where it
// goes from one operation straight to the next. The observer is told while the thread waits, as far
// as it does. Neighbour: thread_pool.cc calls it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/model/kernel_observer.h"

namespace withy::engine {

// Names the operation that a step belongs to. An operation may have several steps.
struct StepLabel {
  uint8_t op = 0;
  bool embeds = false;  // KernelObserver::OnEmbedded is told when the step is done
  int32_t layer = -1;
  int32_t number = 0;  // of the operation in its program
  bool operator==(const StepLabel&) const = default;
};

// Who watches the steps of a list, and what for. `observer` null: nobody does.
struct StepWatch {
  KernelObserver* observer = nullptr;
  PassTag pass;
  uint16_t weight = 1;  // passes that this one stands for; 0: nothing is told of its kernels
  bool kernels() const { return observer != nullptr && weight > 0; }
  bool times(const StepLabel& label) const {
    return observer != nullptr && (weight > 0 || label.embeds);
  }
};

// One for each thread.
class StepTrace {
 public:
  // The thread begins a piece of a step that belongs to job `job`.
  void OnPiece(const StepWatch& watch, uint32_t job, const StepLabel& label, int64_t dispatched) {
    if (!watch.kernels() && observer_ == nullptr) return;
    if (watch.kernels() && watch.observer == observer_ && job == job_ && label == label_) {
      running_ = true;
      return;
    }
    Begin(watch, job, label, dispatched);
  }

  // The thread has nothing left to do of the step that it worked at, or does something else.
  void OnNothingLeft() {
    if (running_) Pause();
    goes_on_ = false;
    if (untold_ > 0) Tell();
  }

  // The thread finished the last piece of an operation's last step. Returns the present time; 0:
  // nobody watches.
  int64_t OnOperationDone() {
    if (observer_ == nullptr) return 0;
    Pause();
    goes_on_ = true;
    return run_.ended;
  }

  // The thread is about to rest, or the job is done: tells the observer of the last operation.
  void Flush() {
    if (observer_ == nullptr) return;
    OnNothingLeft();
    observer_->OnKernel(run_);
    observer_ = nullptr;
  }

 private:
  // Operations whose telling may wait. Few, so that they stay in the first-level cache.
  static constexpr size_t kMostUntold = 8;

  void Tell() {
    for (size_t i = 0; i < untold_; ++i) observer_->OnKernel(runs_[i]);
    untold_ = 0;
  }

  // The times of a run ascend. The counters of two cores may differ by a microsecond, and a counter
  // is read before earlier loads are done: a thread may see a step dispatched "after" it began it.
  void Pause() {
    run_.ended = std::max(observer_->clock().Now(), run_.started);
    running_ = false;
  }

  void Begin(const StepWatch& watch, uint32_t job, const StepLabel& label, int64_t dispatched) {
    if (!watch.kernels()) return Flush();
    if (watch.observer != observer_) Flush();
    const bool follows = observer_ != nullptr && job == job_;
    const int64_t now =
        follows && goes_on_ && !running_ ? run_.ended : watch.observer->clock().Now();
    int64_t arrived = now;
    if (observer_ != nullptr) {
      if (running_) run_.ended = std::max(now, run_.started);
      if (follows) arrived = run_.ended;
      if (untold_ == kMostUntold) Tell();
      runs_[untold_++] = run_;
    }
    const int64_t started = std::max({now, arrived, dispatched});
    observer_ = watch.observer;
    job_ = job;
    label_ = label;
    running_ = true;
    goes_on_ = false;
    run_ = {.pass = watch.pass,
            .weight = watch.weight,
            .op = label.op,
            .layer = label.layer,
            .dispatched = dispatched,
            .arrived = arrived,
            .started = started,
            .ended = started};
  }

  KernelObserver* observer_ = nullptr;  // of the operation under way; null: none
  uint32_t job_ = 0;
  StepLabel label_;
  bool running_ = false;  // the thread is at a piece of it
  bool goes_on_ = false;  // it finished the operation for all, and did nothing else since
  KernelRun run_;
  size_t untold_ = 0;
  std::array<KernelRun, kMostUntold> runs_;  // by the same observer as run_
};

}  // namespace withy::engine
