#include "engine/cuda/on_cpu/runner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "boost/context/fixedsize_stack.hpp"

namespace withy::engine::on_cpu {
namespace {

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kSharedAlignment = 128;

std::string Place(const std::source_location& site) {
  const std::string_view file = site.file_name();
  const size_t slash = file.rfind('/');
  const std::string name(slash == std::string_view::npos ? file : file.substr(slash + 1));
  return absl::StrCat(name, ":", site.line());
}

const char* Name(Stop stop) {
  switch (stop) {
    case Stop::kWarp:
      return "a collective of its warp";
    case Stop::kBlock:
      return "a barrier of the block";
    case Stop::kDone:
      return "its end";
    case Stop::kReady:
      break;
  }
  return "no barrier";
}

}  // namespace

Runner::Runner(const RunnerOptions& options)
    : options_(options), watch_(options.checks, options.counts), random_(options.seed) {}

Runner::~Runner() = default;

void Runner::MakeThreads(int threads) {
  while (static_cast<int>(threads_.size()) < threads) {
    const auto index = static_cast<int>(threads_.size());
    if (index % kWarpLanes == 0) warps_.push_back(std::make_unique<Warp>());
    threads_.push_back(std::make_unique<Thread>());
    Thread& thread = *threads_.back();
    thread.runner = this;
    thread.warp = warps_.back().get();
    thread.index = index;
    thread.lane = index % kWarpLanes;
    // A fiber lives as long as the runner and runs one kernel after the other.
    thread.fiber =
        boost::context::fiber(std::allocator_arg, boost::context::fixedsize_stack(kStackBytes),
                              [this, &thread](boost::context::fiber&& scheduler) {
                                thread.scheduler = std::move(scheduler);
                                for (;;) {
                                  (*kernel_)();
                                  thread.StopAt(Stop::kDone, std::source_location::current());
                                }
                                return std::move(thread.scheduler);
                              });
  }
}

std::vector<int>& Runner::Ordered(int count, std::vector<int>* order) {
  if (static_cast<int>(order->size()) != count || options_.order == Order::kRandom) {
    order->resize(static_cast<size_t>(count));
    std::iota(order->begin(), order->end(), 0);
    if (options_.order == Order::kReverse) std::reverse(order->begin(), order->end());
    if (options_.order == Order::kRandom) std::shuffle(order->begin(), order->end(), random_);
  }
  return *order;
}

void Runner::Launch(const char* name, Dim grid, int threads, size_t shared_bytes,
                    absl::FunctionRef<void()> kernel) {
  const bool valid = threads > 0 && threads % kWarpLanes == 0 && threads <= 1024;
  if (current != nullptr || !valid) {
    std::fprintf(stderr, "kernel %s: a launch from a kernel, or blocks of %d threads\n", name,
                 threads);
    std::abort();
  }
  MakeThreads(threads);
  kernel_ = &kernel;
  block_threads_ = threads;
  shared_bytes_ = shared_bytes;
  if (shared_memory_.size() < shared_bytes + kSharedAlignment) {
    shared_memory_.resize(shared_bytes + kSharedAlignment);
  }
  const auto at = reinterpret_cast<uintptr_t>(shared_memory_.data());
  shared_ = shared_memory_.data() + (kSharedAlignment - at % kSharedAlignment) % kSharedAlignment;
  watching = watch_.on() ? &watch_ : nullptr;
  watch_.BeginLaunch(name);
  const int blocks = grid.x * grid.y * grid.z;
  for (const int i : Ordered(blocks, &block_order_)) {
    block_ = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    RunBlock();
  }
  watch_.EndLaunch();
  watching = nullptr;
  kernel_ = nullptr;
}

void Runner::RunBlock() {
  // No kernel may read what another block has left: floats of it are no numbers.
  std::memset(shared_, 0xff, shared_bytes_);
  if (watch_.on()) watch_.BeginBlock(block_, shared_, shared_bytes_, block_threads_);
  const int warps = block_threads_ / kWarpLanes;
  for (int i = 0; i < block_threads_; ++i) threads_[static_cast<size_t>(i)]->stop = Stop::kReady;
  for (;;) {
    for (const int warp : Ordered(warps, &warp_order_)) {
      if (!RunWarp(warp)) return;
    }
    if (AllAt(0, block_threads_, Stop::kDone)) break;
    if (!AllAt(0, block_threads_, Stop::kBlock)) return ReportDivergence(0, block_threads_);
    if (watch_.on()) watch_.OnBlockBarrier();
    for (int i = 0; i < block_threads_; ++i) threads_[static_cast<size_t>(i)]->stop = Stop::kReady;
  }
  if (watch_.on()) watch_.EndBlock();
}

bool Runner::RunWarp(int warp) {
  const int begin = warp * kWarpLanes;
  const int end = begin + kWarpLanes;
  for (;;) {
    for (const int lane : Ordered(kWarpLanes, &lane_order_)) {
      Resume(*threads_[static_cast<size_t>(begin + lane)]);
    }
    const Stop stop = threads_[static_cast<size_t>(begin)]->stop;
    if (!AllAt(begin, end, stop)) {
      ReportDivergence(begin, end);
      return false;
    }
    if (stop != Stop::kWarp) return true;
    if (watch_.on()) watch_.OnWarpBarrier(warp);
    for (int i = begin; i < end; ++i) threads_[static_cast<size_t>(i)]->stop = Stop::kReady;
  }
}

void Runner::Resume(Thread& thread) {
  if (thread.stop != Stop::kReady) return;
  current = &thread;
  thread.fiber = std::move(thread.fiber).resume();
  current = nullptr;
}

bool Runner::AllAt(int begin, int end, Stop stop) const {
  const std::source_location& site = threads_[static_cast<size_t>(begin)]->site;
  for (int i = begin; i < end; ++i) {
    const Thread& thread = *threads_[static_cast<size_t>(i)];
    if (thread.stop != stop) return false;
    if (stop != Stop::kDone &&
        (thread.site.line() != site.line() || thread.site.file_name() != site.file_name())) {
      return false;
    }
  }
  return true;
}

// The block is given up: its threads are ended where they stand, and new ones take their places.
void Runner::ReportDivergence(int begin, int end) {
  const Thread& first = *threads_[static_cast<size_t>(begin)];
  for (int i = begin; i < end; ++i) {
    const Thread& thread = *threads_[static_cast<size_t>(i)];
    const bool same = thread.stop == first.stop && thread.site.line() == first.site.line() &&
                      thread.site.file_name() == first.site.file_name();
    if (same) continue;
    watch_.Report(
        Finding::Kind::kDivergentBarrier, i,
        absl::StrCat("it is at ", Name(thread.stop), " (", Place(thread.site), ") while thread ",
                     begin, " is at ", Name(first.stop), " (", Place(first.site), ")"));
    break;
  }
  if (watch_.on()) watch_.EndBlock();
  threads_.clear();
  warps_.clear();
  MakeThreads(block_threads_);
}

}  // namespace withy::engine::on_cpu
