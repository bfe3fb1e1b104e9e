#include "engine/kernels/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace withy::engine {
namespace {

void CpuRelax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Looks at done() for at most `spin_us`; true once it holds.
template <typename Done>
bool SpinUntil(int spin_us, Done done) {
  if (done()) return true;
  const auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(spin_us);
  do {
    for (int i = 0; i < 16; ++i) {
      CpuRelax();
      if (done()) return true;
    }
  } while (std::chrono::steady_clock::now() < until);
  return false;
}

}  // namespace

// `next` holds (job number << 32 | pieces left). A piece is taken by compare-and-swap, so a late
// worker cannot take one of a job that is over; and while pieces are left or unfinished the job's
// other fields do not change, so what is read after a successful take is the job's own.
struct ThreadPool::State {
  int spin_us = 0;
  std::vector<std::thread> workers;

  alignas(64) std::atomic<uint64_t> next{0};
  alignas(64) std::atomic<int> finished{0};
  std::atomic<int> caller_waits{0};
  alignas(64) std::atomic<uint32_t> signal{
      0};  // job number, or an odd step for stop; what workers park on
  std::atomic<int> parked{0};
  std::atomic<bool> stop{false};
  std::atomic<const RangeFn*> fn{nullptr};
  std::atomic<int> count{0};
  std::atomic<int> grain{1};
  std::atomic<int> pieces{0};

  // Takes and runs one piece of job `job`; false when there is none left.
  bool RunPiece(uint32_t job) {
    uint64_t value = next.load(std::memory_order_acquire);
    do {
      if (static_cast<uint32_t>(value >> 32) != job || (value & 0xffffffffu) == 0) return false;
    } while (!next.compare_exchange_weak(value, value - 1, std::memory_order_acq_rel,
                                         std::memory_order_acquire));
    const int left = static_cast<int>(value & 0xffffffffu);
    const int total = pieces.load(std::memory_order_relaxed);
    const int begin = (total - left) * grain.load(std::memory_order_relaxed);
    const int end = std::min(begin + grain.load(std::memory_order_relaxed),
                             count.load(std::memory_order_relaxed));
    (*fn.load(std::memory_order_relaxed))(begin, end);
    if (finished.fetch_add(1, std::memory_order_seq_cst) + 1 == total &&
        caller_waits.load(std::memory_order_seq_cst) != 0) {
      finished.notify_one();
    }
    return true;
  }

  void Work() {
    uint32_t seen = 0;
    for (;;) {
      const auto changed = [&] { return signal.load(std::memory_order_acquire) != seen; };
      if (!SpinUntil(spin_us, changed)) {
        parked.fetch_add(1, std::memory_order_seq_cst);
        signal.wait(seen, std::memory_order_seq_cst);
        parked.fetch_sub(1, std::memory_order_relaxed);
      }
      if (stop.load(std::memory_order_acquire)) return;
      seen = signal.load(std::memory_order_acquire);
      while (RunPiece(seen)) {
      }
    }
  }
};

ThreadPool::ThreadPool(int threads, int spin_us) : state_(std::make_unique<State>()) {
  state_->spin_us = spin_us;
  for (int i = 1; i < threads; ++i) {
    state_->workers.emplace_back([state = state_.get()] { state->Work(); });
  }
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->signal.fetch_add(1, std::memory_order_seq_cst);
  state_->signal.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

int ThreadPool::threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::ParallelFor(int count, int grain, RangeFn fn) {
  if (count <= 0) return;
  grain = std::max(grain, 1);
  const int pieces = (count + grain - 1) / grain;
  State& s = *state_;
  if (pieces == 1 || s.workers.empty()) {
    for (int begin = 0; begin < count; begin += grain) fn(begin, std::min(begin + grain, count));
    return;
  }
  s.fn.store(&fn, std::memory_order_relaxed);
  s.count.store(count, std::memory_order_relaxed);
  s.grain.store(grain, std::memory_order_relaxed);
  s.pieces.store(pieces, std::memory_order_relaxed);
  s.finished.store(0, std::memory_order_relaxed);
  s.caller_waits.store(0, std::memory_order_relaxed);
  const uint32_t job = s.signal.load(std::memory_order_relaxed) + 1;
  s.next.store(static_cast<uint64_t>(job) << 32 | static_cast<uint32_t>(pieces),
               std::memory_order_release);
  s.signal.store(job, std::memory_order_seq_cst);
  if (s.parked.load(std::memory_order_seq_cst) > 0) s.signal.notify_all();
  while (s.RunPiece(job)) {
  }
  const auto done = [&] { return s.finished.load(std::memory_order_acquire) == pieces; };
  if (SpinUntil(s.spin_us, done)) return;
  s.caller_waits.store(1, std::memory_order_seq_cst);
  for (int now = s.finished.load(std::memory_order_seq_cst); now != pieces;
       now = s.finished.load(std::memory_order_seq_cst)) {
    s.finished.wait(now, std::memory_order_seq_cst);
  }
}

}  // namespace withy::engine
