#include "engine/cuda/on_cpu/runner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace withy::engine::on_cpu {

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

namespace {

bool SamePlace(const Site& a, const Site& b) { return a.line == b.line && a.file == b.file; }

constexpr size_t kStackBytes = 64 << 10;
constexpr size_t kSharedAlignment = 128;

std::string Place(const Site& site) {
  const std::string_view file = site.file;
  const size_t slash = file.rfind('/');
  const std::string name(slash == std::string_view::npos ? file : file.substr(slash + 1));
  return absl::StrCat(name, ":", site.line);
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
    stacks_.push_back(std::make_unique_for_overwrite<std::byte[]>(kStackBytes));
    MakeFiber(thread);
  }
}

void Runner::MakeFiber(Thread& thread) {
  std::byte* stack = stacks_[static_cast<size_t>(thread.index)].get();
  thread.context = make_fcontext(stack + kStackBytes, kStackBytes, RunFiber);
}

void Runner::RunFiber(transfer_t from) {
  Runner& runner = *current->runner;
  runner.Arrive(from);
  Thread& thread = *current;
  for (;;) {
    (*runner.kernel_)();
    thread.StopAt(Stop::kDone, Site::Here());
  }
}

void Runner::Arrive(transfer_t from) {
  if (from.data == nullptr) {
    scheduler_ = from.fctx;
  } else {
    static_cast<Thread*>(from.data)->context = from.fctx;
  }
}

void Runner::Leave(Thread& thread) {
  while (++position_ < kWarpLanes) {
    Thread& next =
        *threads_[static_cast<size_t>(warp_begin_ + lane_order_[static_cast<size_t>(position_)])];
    if (next.stop != Stop::kReady) continue;
    current = &next;
    Arrive(jump_fcontext(next.context, &thread));
    return;
  }
  current = nullptr;
  Arrive(jump_fcontext(scheduler_, &thread));
}

void Thread::StopAt(Stop at, const Site& where) {
  stop = at;
  site = where;
  if (runner->first_stop_ == Stop::kReady) {
    runner->first_stop_ = at;
    runner->first_site_ = where;
  } else if (runner->first_stop_ != at || !SamePlace(runner->first_site_, where)) {
    runner->diverged_ = true;
  }
  runner->Leave(*this);
}

const std::vector<int>& Runner::Ordered(int count, std::vector<int>* order) {
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
  warp_begin_ = warp * kWarpLanes;
  const auto thread = [this](int lane) -> Thread& {
    return *threads_[static_cast<size_t>(warp_begin_ + lane)];
  };
  for (;;) {
    const std::vector<int>& order = Ordered(kWarpLanes, &lane_order_);
    first_stop_ = Stop::kReady;
    diverged_ = false;
    position_ = 0;
    current = &thread(order[0]);
    const transfer_t from = jump_fcontext(current->context, nullptr);
    static_cast<Thread*>(from.data)->context = from.fctx;
    if (diverged_) {
      ReportDivergence(warp_begin_, warp_begin_ + kWarpLanes);
      return false;
    }
    if (first_stop_ != Stop::kWarp) return true;
    if (watch_.on()) watch_.OnWarpBarrier(warp);
    for (int lane = 0; lane < kWarpLanes; ++lane) thread(lane).stop = Stop::kReady;
  }
}

bool Runner::AllAt(int begin, int end, Stop stop) const {
  const Site& site = threads_[static_cast<size_t>(begin)]->site;
  for (int i = begin; i < end; i += kWarpLanes) {  // the threads of a warp are at the same place
    const Thread& thread = *threads_[static_cast<size_t>(i)];
    if (thread.stop != stop || !SamePlace(thread.site, site)) return false;
  }
  return true;
}

// The block is given up: its threads are ended where they stand, and new ones take their places.
void Runner::ReportDivergence(int begin, int end) {
  const Thread& first = *threads_[static_cast<size_t>(begin)];
  for (int i = begin; i < end; ++i) {
    const Thread& thread = *threads_[static_cast<size_t>(i)];
    if (thread.stop == first.stop && SamePlace(thread.site, first.site)) continue;
    watch_.Report(
        Finding::Kind::kDivergentBarrier, i,
        absl::StrCat("it is at ", Name(thread.stop), " (", Place(thread.site), ") while thread ",
                     begin, " is at ", Name(first.stop), " (", Place(first.site), ")"));
    break;
  }
  if (watch_.on()) watch_.EndBlock();
  for (const std::unique_ptr<Warp>& warp : warps_) warp->combined_turn = 0;
  for (const std::unique_ptr<Thread>& thread : threads_) {
    thread->turn = 0;
    MakeFiber(*thread);
  }
}

}  // namespace withy::engine::on_cpu
