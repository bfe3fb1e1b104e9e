// Compute threads that run a list of steps together. A step is cut into pieces; each thread takes
// the next piece, and after the last piece all threads move to the next step. Pieces shrink towards
// the end of a step, so that threads finish together. No thread leads: one that the system
// descheduled between two pieces, or that has not woken yet, delays nobody. A list can be paused
// between two steps and resumed after other lists. Idle threads park. A thread that shares its core
// with a busy process yields between pieces. Neighbours: parallel.h. Not a task queue: one list at
// a time, from one caller at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

#include "engine/cpu/step_trace.h"

namespace withy::engine {

// Bounds on the number of items in a piece. Within them, a piece takes the step's remaining items
// divided by twice the number of threads. It begins at a multiple of `least`.
struct PieceSize {
  constexpr PieceSize(int size) : least(size), most(size) {}  // NOLINT(google-explicit-constructor)
  constexpr PieceSize(int smallest, int largest) : least(smallest), most(largest) {}
  int least;
  int most;
};

// A list of steps. A pool makes and owns it, because a late worker may still read it after a run.
// Used by one thread at a time.
class StepList {
 public:
  static constexpr int kMaxSteps = 512;
  static constexpr size_t kClosureBytes = 448;

  ~StepList();
  StepList(const StepList&) = delete;
  StepList& operator=(const StepList&) = delete;

  // Appends a step that calls fn(begin, end) for pieces that together cover each item of [0, count)
  // exactly once. Pieces are larger than `size` says where its `least` would give over 65,535 of
  // them. The step starts when the steps before it are finished. Which thread runs a piece, and
  // when, is unspecified. `fn` is copied and must not throw; what it points at must stay valid
  // until the list has run. Needs room() > 0. Optional: fn.FirstRead(begin) returns the first
  // address that the piece at `begin` reads. A thread that waits for earlier steps prefetches from
  // there.
  template <typename F>
  void Add(int count, PieceSize size, const F& fn) {
    static_assert(sizeof(F) <= kClosureBytes && alignof(F) <= 64 && std::is_trivially_copyable_v<F>,
                  "a step's closure is copied into the list: capture little, plain things");
    if (count <= 0) return;
    FirstRead first_read = nullptr;
    if constexpr (requires { fn.FirstRead(0); }) {
      first_read = [](const void* closure, int begin) {
        return static_cast<const F*>(closure)->FirstRead(begin);
      };
    }
    const Call call = [](const void* closure, int begin, int end) {
      (*static_cast<const F*>(closure))(begin, end);
    };
    new (NewStep(count, size, call, first_read)) F(fn);
  }

  // Who watches the steps of the next runs; and what the steps that are added from now on belong
  // to. Not while the list runs.
  void set_watch(const StepWatch& watch) { watch_ = watch; }
  void set_label(const StepLabel& label) { label_ = label; }

  int room() const { return kMaxSteps - size_; }  // steps that can still be added
  bool empty() const { return size_ == 0; }
  int steps() const { return size_; }
  int steps_done() const { return done_; }
  // Drops all steps, including those not yet run.
  void Clear();
  // Threads of the pool that runs the list, the caller included.
  int threads() const { return threads_; }

 private:
  friend class ThreadPool;
  struct Step;
  using Call = void (*)(const void* closure, int begin, int end);
  using FirstRead = const std::byte* (*)(const void* closure, int begin);

  explicit StepList(int threads);
  void Dispatch();
  void OnStepDone(int index, StepTrace& trace);
  // Appends a step and returns the place for its closure.
  void* NewStep(int count, PieceSize size, Call call, FirstRead first_read);

  const int threads_;
  const std::unique_ptr<Step[]> steps_;
  int size_ = 0;
  int done_ = 0;  // number of steps finished
  int end_ = 0;   // index of the step before which the current Run() pauses
  StepWatch watch_;
  StepLabel label_;  // of the next step
};

class ThreadPool {
 public:
  // `threads` counts the caller: a pool of 1 has no workers. `spin_us`: how long an idle thread
  // polls for work before it parks.
  explicit ThreadPool(int threads, int spin_us = 20);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Binds the calling thread and the workers to a core each, if the process may use exactly as many
  // cores as there are threads. Returns true if all are bound. The calling thread is the one that
  // will call Run from then on; threads that it starts later inherit its core. Without binding, the
  // system sometimes lets two woken threads share a core for tens of milliseconds, and all threads
  // wait for both.
  bool PinThreads();

  // Makes an empty list, which lives as long as the pool.
  StepList& NewList();
  // The list that ParallelFor uses.
  StepList& list();

  // Runs the remaining steps of a list of this pool on the caller and the workers. Returns true
  // once all are done, and empties the list. Returns false if it paused first: because `*stop`
  // became true (polled between steps) or before the step with index `end`. The next Run() of the
  // list continues with the step after the last finished one. Not reentrant; the caller must not
  // call it from several threads at once.
  bool Run(StepList& list, const std::atomic<bool>* stop = nullptr, int end = StepList::kMaxSteps);

  // Runs a single step at once. list() must be empty.
  template <typename F>
  void ParallelFor(int count, PieceSize size, const F& fn) {
    list().Add(count, size, [&fn](int begin, int end) { fn(begin, end); });
    Run(list());
  }

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace withy::engine
