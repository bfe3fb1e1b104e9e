// Times what one compute thread does of each operation, for a KernelObserver. The clock is read
// when the thread begins an operation and when it finds nothing left to do of it. Neighbour:
// thread_pool.cc calls it.
#pragma once

#include <cstdint>

#include "engine/model/kernel_observer.h"

namespace withy::engine {

// Names the operation that a step belongs to. An operation may have several steps.
struct StepLabel {
  uint8_t op = 0;
  bool embeds = false;  // KernelObserver::OnEmbedded is told when the step is done
  int32_t layer = -1;
  bool operator==(const StepLabel&) const = default;
};

// Who watches the steps of a list, and what for. `observer` null: nobody does.
struct StepWatch {
  KernelObserver* observer = nullptr;
  PassTag pass;
};

// One for each thread.
class StepTrace {
 public:
  // The thread begins a piece of a step that belongs to job `job`.
  void OnPiece(const StepWatch& watch, uint32_t job, const StepLabel& label, int64_t dispatched) {
    if (watch.observer == nullptr && observer_ == nullptr) return;
    if (watch.observer == observer_ && job == job_ && label == label_) {
      running_ = true;
      return;
    }
    Begin(watch, job, label, dispatched);
  }

  // The thread has nothing left to do of the step that it worked at.
  void OnNothingLeft() {
    if (running_) Pause();
  }

  // The thread finished the last piece of the step, which was dispatched at `dispatched`. Returns
  // the present time; 0: nobody watches.
  int64_t OnStepDone(int64_t dispatched) {
    if (observer_ == nullptr) return 0;
    Pause();
    if (label_.embeds) observer_->OnEmbedded(run_.pass, dispatched, run_.ended);
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
  void Pause() {
    run_.ended = observer_->clock().Now();
    running_ = false;
  }

  void Begin(const StepWatch& watch, uint32_t job, const StepLabel& label, int64_t dispatched) {
    if (watch.observer == nullptr) return Flush();
    const int64_t now = watch.observer->clock().Now();
    int64_t arrived = now;
    if (observer_ != nullptr) {
      if (running_) run_.ended = now;
      if (job == job_ && watch.observer == observer_) arrived = run_.ended;
      observer_->OnKernel(run_);
    }
    observer_ = watch.observer;
    job_ = job;
    label_ = label;
    running_ = true;
    run_ = {.pass = watch.pass,
            .op = label.op,
            .layer = label.layer,
            .dispatched = dispatched,
            .arrived = arrived,
            .started = now,
            .ended = now};
  }

  KernelObserver* observer_ = nullptr;  // of the operation under way; null: none
  uint32_t job_ = 0;
  StepLabel label_;
  bool running_ = false;  // the thread is at a piece of it
  KernelRun run_;
};

}  // namespace withy::engine
