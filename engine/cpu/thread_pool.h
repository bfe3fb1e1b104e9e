// Compute threads that walk a list of steps side by side: a step is cut into pieces, a thread takes
// the next piece, and when the step's last piece is done all go on to the next step. Pieces get
// smaller towards the end, so that all finish together. No thread leads the walk, so one that the
// system has descheduled between two pieces delays nobody, and one that has not woken yet is not
// waited for. A list can be left between two steps and gone on with later, others run meanwhile.
// Idle threads park; a thread that notices that it shares its core gives way between pieces, where
// it holds nothing up. Neighbours: parallel.h. Not a task queue: one list at a time, from one
// caller at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace withy::engine {

// How many items of a step a piece has: what is left shared out among twice the threads, within
// these bounds. Beginnings are multiples of `least`.
struct PieceSize {
  constexpr PieceSize(int size) : least(size), most(size) {}  // NOLINT(google-explicit-constructor)
  constexpr PieceSize(int smallest, int largest) : least(smallest), most(largest) {}
  int least;
  int most;
};

// Made by a pool, which owns it: a thread that comes late may still look at it. For one thread at a
// time.
class StepList {
 public:
  static constexpr int kMaxSteps = 512;
  static constexpr size_t kClosureBytes = 448;

  ~StepList();
  StepList(const StepList&) = delete;
  StepList& operator=(const StepList&) = delete;

  // Appends a step: fn(begin, end) for pieces of such a size (larger, where the smallest would make
  // over 65,535 of them) that together cover [0, count), each exactly once. It starts when the
  // steps before it are finished; which thread runs a piece, and when, is unspecified. `fn` is
  // copied, must not throw, and what it points at must stay until the list has been run. Needs
  // room(). Where fn.FirstRead(begin) says what the piece at `begin` reads first, a thread that
  // waits for the steps before fetches it into its cache meanwhile.
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

  int room() const { return kMaxSteps - size_; }  // steps
  bool empty() const { return size_ == 0; }
  int steps() const { return size_; }
  int steps_done() const { return done_; }
  // Forgets what is left of it.
  void Clear();
  // Of the pool that runs it.
  int threads() const { return threads_; }

 private:
  friend class ThreadPool;
  struct Step;
  using Call = void (*)(const void* closure, int begin, int end);
  using FirstRead = const std::byte* (*)(const void* closure, int begin);

  explicit StepList(int threads);
  // Where the closure of the new step goes.
  void* NewStep(int count, PieceSize size, Call call, FirstRead first_read);

  const int threads_;
  const std::unique_ptr<Step[]> steps_;
  int size_ = 0;
  int done_ = 0;  // steps that have been run
  int end_ = 0;   // of the steps of this run
};

class ThreadPool {
 public:
  // `threads` counts the caller: a pool of 1 has no workers. `spin_us`: how long a thread looks for
  // more to do before it parks.
  explicit ThreadPool(int threads, int spin_us = 20);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Binds the calling thread, which is to call Run from then on, and the workers to a core each, if
  // the process may use just as many cores as there are threads; true if so. Left to the system,
  // two that wake beside other threads share a core for tens of milliseconds at times, and all wait
  // for both. What the caller starts later inherits its core.
  bool PinThreads();

  // An empty list; lives as long as the pool.
  StepList& NewList();
  // The list that ParallelFor uses.
  StepList& list();

  // Runs what is left of a list of this pool on the caller and the workers and empties it. Once
  // `stop` holds, the step under way is finished, and no other begun: then the result is false, and
  // the next Run() of the list goes on behind that step. Likewise the step at `end` and those after
  // it are not begun. Not reentrant; calls from several threads are an error of the caller.
  bool Run(StepList& list, const std::atomic<bool>* stop = nullptr, int end = StepList::kMaxSteps);

  // One step, at once. list() is empty.
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
