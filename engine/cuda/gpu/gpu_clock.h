// Times that kernels stamped (stamp-inl.cuh), in ticks of the clock of an observer. Neighbours:
// pass_stamps.h has the stamps of a pass, base/ticks.h the clocks of the host.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "base/ticks.h"
#include "engine/cuda/gpu/gpu.h"

namespace withy::engine::cuda {

// Maps one clock to another by readings of both. Pure.
class ClockMap {
 public:
  struct Reading {
    int64_t gpu_ns = 0;
    int64_t ticks = 0;
  };
  // Readings as far apart tell the rate; nearer ones tell more about their own errors.
  static constexpr int64_t kRateNs = 1'000'000'000;

  // The rate to take until two readings tell it.
  void SetNominal(double ticks_per_ns) {
    if (!measured_) rate_ = ticks_per_ns;
  }
  // In the order of time.
  void Add(const Reading& reading);
  int64_t Ticks(int64_t gpu_ns) const;

 private:
  Reading base_;
  Reading newest_;
  double rate_ = 1;
  bool read_ = false;
  bool measured_ = false;  // rate_
};

// For the thread that runs passes. The GPU must outlive it.
class GpuClock {
 public:
  GpuClock(Gpu& gpu, TickClock clock);

  // Reads both clocks, and what a stamp takes. Errors: as Gpu.
  absl::Status Open();
  // Reads both clocks anew where that is some seconds ago; waits for what is queued.
  absl::Status Refresh();
  // A stamp in ticks. An error of some microseconds is in it: that of reading both clocks.
  int64_t Ticks(uint64_t stamp) const { return map_.Ticks(static_cast<int64_t>(stamp)); }

  TickClock clock() const { return clock_; }
  // By which stamps are multiples of; 32 ns on some cards, 1 us on others.
  int64_t step_ns() const { return step_ns_; }
  // Ticks that each stamp keeps the GPU from its work.
  double ticks_of_stamp() const { return ticks_of_stamp_; }

 private:
  absl::Status Read();
  double TicksPerNs() const;

  Gpu& gpu_;
  const TickClock clock_;
  const ClockPair opened_;
  Buffer stamps_;
  ClockMap map_;
  int64_t read_ns_ = 0;  // when, in steady time
  int64_t step_ns_ = 1;
  double ticks_of_stamp_ = 0;
};

}  // namespace withy::engine::cuda
