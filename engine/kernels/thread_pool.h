// Compute threads that walk a list of steps side by side: a step is cut into pieces, a thread takes
// the next piece, and when the step's last piece is done all go on to the next step. No thread
// leads the walk, so one that the system has descheduled between two pieces delays nobody, and one
// that has not woken yet is not waited for. Idle threads park; a thread that notices that it shares
// its core gives way between pieces, where it holds nothing up. Neighbours: parallel.h. Not a task
// queue: one list at a time, from one caller at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <new>
#include <type_traits>

namespace withy::engine {

class ThreadPool {
 public:
  static constexpr int kMaxSteps = 512;
  static constexpr size_t kClosureBytes = 448;

  // `threads` counts the caller: a pool of 1 has no workers. `spin_us`: how long a thread looks for
  // more to do before it parks.
  explicit ThreadPool(int threads, int spin_us = 20);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Appends a step to the list: fn(begin, end) for pieces of at most `grain` (more, where that
  // would make over 65,535 of them) that together cover [0, count), each exactly once. It starts
  // when the steps before it are finished; which thread runs a piece, and when, is unspecified.
  // `fn` is copied, must not throw, and what it points at must stay until Run() has returned. Steps
  // may begin before Run(): a full list is run first.
  template <typename F>
  void Add(int count, int grain, const F& fn) {
    static_assert(sizeof(F) <= kClosureBytes && alignof(F) <= 64 && std::is_trivially_copyable_v<F>,
                  "a step's closure is copied into the list: capture little, plain things");
    if (count <= 0) return;
    new (NewStep(count, grain, [](const void* closure, int begin, int end) {
      (*static_cast<const F*>(closure))(begin, end);
    })) F(fn);
  }

  // Runs the list on the caller and the workers and empties it. Once `cancel` holds, pieces that
  // have not begun are left out; returns false when that may have happened. Not reentrant; calls
  // from several threads are an error of the caller.
  bool Run(const std::atomic<bool>* cancel = nullptr);

  // One step, at once. The list is empty.
  template <typename F>
  void ParallelFor(int count, int grain, const F& fn) {
    Add(count, grain, [&fn](int begin, int end) { fn(begin, end); });
    Run();
  }

 private:
  using Call = void (*)(const void* closure, int begin, int end);
  struct State;

  // Where the closure of the new step goes.
  void* NewStep(int count, int grain, Call call);

  std::unique_ptr<State> state_;
};

}  // namespace withy::engine
