// Watches kernels: told by each compute thread what it did of each operation of a pass. Neighbours:
// cpu/step_trace.h times the threads, cuda/pass_stamps.h a GPU, model.h takes an observer. It knows
// no ring and no span: those who serve a model record what they are told.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/ticks.h"

namespace withy::engine {

// Names a pass for its observer. The engine only hands it on.
struct PassTag {
  uint64_t call_id = 0;  // 0: the pass has rows of several calls, or of none
  uint32_t number = 0;   // of the pass in its process, from 1 on; 0: not numbered
};

// Numbers the passes of a process. For the thread that runs them.
class PassNumbers {
 public:
  PassTag Next(uint64_t call_id) { return {call_id, ++last_}; }

 private:
  uint32_t last_ = 0;
};

// What one thread, or a device, did of one operation. Times are ticks of the observer's clock,
// ascending.
struct KernelRun {
  PassTag pass;
  uint16_t weight = 1;  // passes that this one stands for, see KernelObserver::OnPassBegins
  uint8_t op = 0;       // OpKind (program.h)
  int32_t layer = -1;   // -1: before or after the layers
  // All operations before it were done, or the pass began or went on; a device: its queueing began.
  int64_t dispatched = 0;
  int64_t arrived =
      0;  // this thread had nothing left to do of those before; a device: it was queued
  int64_t started = 0;
  int64_t ended = 0;
};

// Outlives the model.
class KernelObserver {
 public:
  explicit KernelObserver(TickClock clock) : clock_(clock) {}
  virtual ~KernelObserver() = default;

  // A pass of `rows` rows begins. Returns the number of passes that it stands for: those of which
  // it alone is told, itself included. 0: nothing is told of its kernels. Called by the thread that
  // runs passes, as is OnPassDone.
  virtual uint16_t OnPassBegins([[maybe_unused]] int32_t rows) { return 1; }
  // A pass whose kernels were told of is done: `ops` operations, `ticks` of computing, `stamping`
  // of which went into taking times on a device; 0 on the CPU, whose threads read a clock.
  virtual void OnPassDone([[maybe_unused]] int32_t rows, [[maybe_unused]] size_t ops,
                          [[maybe_unused]] int64_t ticks, [[maybe_unused]] int64_t stamping) {}

  // Called by any compute thread, several at once: must be quick and must not block.
  virtual void OnKernel(const KernelRun& run) = 0;
  // All rows of the pass, or of a piece of it, have been made of their tokens: of each pass that is
  // watched, whether or not its kernels are told of.
  virtual void OnEmbedded(const PassTag& pass, int64_t started, int64_t ended) = 0;

  TickClock clock() const { return clock_; }
  // Whether passes that begin from now on are watched. Any thread.
  void Watch(bool on) { watches_.store(on, std::memory_order_relaxed); }
  bool watches() const { return watches_.load(std::memory_order_relaxed); }

 private:
  const TickClock clock_;
  std::atomic<bool> watches_{true};
};

}  // namespace withy::engine
