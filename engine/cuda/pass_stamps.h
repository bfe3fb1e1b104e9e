// Tells a KernelObserver of the operations of a pass on the GPU, by stamps that kernels write
// between them. Neighbours: run.cc queues operations, gpu_clock.h turns stamps into the observer's
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/cuda/gpu/gpu_clock.h"
#include "engine/model/kernel_observer.h"
#include "engine/model/program.h"

namespace withy::engine::cuda {

// For the thread that runs passes. A pass that nobody watches queues no stamp. Nothing is waited
// for: what is told is read when a run of the program is over.
//
// Times of an operation (KernelRun): `dispatched` when the host began to queue it, `arrived` when
// it had handed it over, `started` when all before it was done on the GPU, `ended` when it was.
class PassStamps {
 public:
  // `clock` null: nobody watches. Both must outlive it.
  PassStamps(Gpu& gpu, KernelObserver* observer, GpuClock* clock);

  // A program of `rows` rows and `ops` operations begins.
  void Start(const PassTag& tag, int32_t rows, size_t ops);
  // Before the operations that one run of the program queues.
  absl::Status Begin();
  // Before and behind each operation; what they queue belongs to the operations' launches.
  void OnQueueing();
  void OnQueued(const Op& op);
  // What was collected has been handed to the GPU.
  void OnStarted();
  // All that was queued is done. `done`: so is the program. Errors: as Gpu.
  absl::Status Report(bool done);

 private:
  struct Queued {
    OpKind kind = OpKind::kEmbed;
    int32_t layer = -1;
    int64_t from = 0;
    int64_t to = 0;
  };

  int64_t Now() const { return watched_ ? clock_->clock().Now() : 0; }
  void Stamp();

  Gpu& gpu_;
  KernelObserver* const observer_;
  GpuClock* const clock_;
  Buffer stamps_;  // of a run: before its first operation, and behind each that is in `queued_`
  // Of the program.
  bool watched_ = false;
  uint16_t weight_ = 0;
  PassTag tag_;
  int32_t rows_ = 0;
  size_t ops_ = 0;
  int64_t computed_ = 0;  // ticks
  size_t stamped_ = 0;
  // Of the run.
  int64_t begun_ = 0;
  int64_t queueing_ = 0;
  size_t next_ = 0;  // stamp
  std::vector<Queued> queued_;
};

}  // namespace withy::engine::cuda
