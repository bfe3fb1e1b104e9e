// A pool of compute threads that park: a job is cut into chunks that the caller and the workers
// take from one counter, so a worker that the system has descheduled delays nobody but the chunk it
// holds, and one that has not woken yet is not waited for. Neighbours: parallel.h. Not a task
// queue: one job at a time, from one caller at a time.
#pragma once

#include <memory>
#include <type_traits>

namespace withy::engine {

// A reference to a callable void(int begin, int end); the callable outlives the call it is passed
// to.
class RangeFn {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, RangeFn>)
      RangeFn(F&& f)  // NOLINT: implicit, as for any function reference
      : object_(const_cast<void*>(static_cast<const void*>(&f))),
        call_([](void* object, int begin, int end) {
          (*static_cast<std::remove_reference_t<F>*>(object))(begin, end);
        }) {}
  void operator()(int begin, int end) const { call_(object_, begin, end); }

 private:
  void* object_;
  void (*call_)(void*, int, int);
};

class ThreadPool {
 public:
  // `threads` counts the caller: a pool of 1 has no workers. `spin_us`: how long a worker looks for
  // the next job before it parks.
  explicit ThreadPool(int threads, int spin_us = 20);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const;

  // Calls fn(begin, end) for pieces of at most `grain` that together cover [0, count), each exactly
  // once, on the caller and the workers, and returns when all have finished. Which thread runs a
  // piece, and when, is unspecified. Not reentrant; calls from several threads are an error of the
  // caller. fn must not throw.
  void ParallelFor(int count, int grain, RangeFn fn);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace withy::engine
