// Runs CUDA kernels on the CPU, for tests: the same .cuh files compiled by g++, one fiber for each
// CUDA thread, a block at a time. Blocks and threads run forward, in reverse or in random order.
// With checks on it reports divergent barriers, accesses out of bounds or misaligned, and races
// between two barriers; with counts on it counts what memory and the arithmetic units would have to
// do. Neighbours: device-inl.h has the intrinsics that kernels call, watch.h the checks and counts,
// gpu_on_cpu.h the device that an executor takes.
#pragma once

#include <array>
#include <boost/context/detail/fcontext.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "engine/cuda/on_cpu/watch.h"

namespace withy::engine::on_cpu {

inline constexpr int kWarpLanes = 32;

enum class Order : uint8_t { kForward, kReverse, kRandom };

struct RunnerOptions {
  Order order = Order::kForward;
  uint32_t seed = 1;    // of kRandom
  bool checks = false;  // reports findings
  bool counts = false;  // counts requests and instructions
};

// Where a thread has stopped. A warp's threads stop together at a collective, a block's at a
// barrier.
enum class Stop : uint8_t { kReady, kWarp, kBlock, kDone };

// What the lanes of a warp exchange. Two sets, used in turns: no lane can be two collectives ahead.
struct Warp {
  struct Slot {
    uint32_t words[6];
  };
  std::array<std::array<Slot, kWarpLanes>, 2> slots;
  // What the first lane has made of all slots, for the others; of the collective `combined_turn`.
  uint32_t combined = 0;
  uint32_t combined_turn = 0;
};

class Runner;

// One CUDA thread. Its fiber runs one kernel after the other.
struct Thread {
  Runner* runner = nullptr;
  Warp* warp = nullptr;
  int index = 0;  // within the block
  int lane = 0;
  uint32_t turn = 0;  // number of collectives so far
  Stop stop = Stop::kReady;
  Site site;                                             // of the stop
  boost::context::detail::fcontext_t context = nullptr;  // while it does not run

  // Returns once all threads of the warp (kWarp) or of the block (kBlock) are at the same place.
  void StopAt(Stop at, const Site& where);
  // The slots of the next collective.
  std::array<Warp::Slot, kWarpLanes>& NextSlots() { return warp->slots[++turn % 2]; }
};

// The thread that runs at present; null outside of kernels.
inline constinit thread_local Thread* current = nullptr;
// Its runner's watch; null while nothing is watched.
inline constinit thread_local Watch* watching = nullptr;

// Runs one kernel at a time. For one thread at a time.
class Runner {
 public:
  explicit Runner(const RunnerOptions& options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // Runs `kernel` for every thread of the grid. `threads`: of a block, a multiple of 32.
  void Launch(const char* name, Dim grid, int threads, size_t shared_bytes,
              absl::FunctionRef<void()> kernel);

  Watch& watch() { return watch_; }
  const RunnerOptions& options() const { return options_; }
  // For intrinsics.
  Dim block() const { return block_; }
  std::byte* shared() const { return shared_; }

 private:
  friend struct Thread;

  void RunBlock();
  // Runs the threads of a warp until they are at a barrier or done. Returns false if they diverge.
  bool RunWarp(int warp);
  bool AllAt(int begin, int end, Stop stop) const;
  void ReportDivergence(int begin, int end);
  void MakeThreads(int threads);
  void MakeFiber(Thread& thread);
  static void RunFiber(boost::context::detail::transfer_t from);
  // Goes on with the next thread of the warp, or with the scheduler.
  void Leave(Thread& thread);
  // Notes where control came from.
  void Arrive(boost::context::detail::transfer_t from);
  const std::vector<int>& Ordered(int count, std::vector<int>* order);

  const RunnerOptions options_;
  Watch watch_;
  std::mt19937 random_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<std::unique_ptr<std::byte[]>> stacks_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::vector<std::byte> shared_memory_;
  std::vector<int> lane_order_;
  std::vector<int> warp_order_;
  std::vector<int> block_order_;
  // Of the launch.
  const absl::FunctionRef<void()>* kernel_ = nullptr;
  int block_threads_ = 0;
  size_t shared_bytes_ = 0;
  std::byte* shared_ = nullptr;
  Dim block_;
  // Of the warp that runs.
  boost::context::detail::fcontext_t scheduler_ = nullptr;
  int warp_begin_ = 0;
  int position_ = 0;  // in lane_order_
  Stop first_stop_ = Stop::kReady;
  Site first_site_;
  bool diverged_ = false;
};

}  // namespace withy::engine::on_cpu
