#include "engine/cpu/ceilings.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <vector>

#include "base/huge_memory.h"

namespace withy::engine {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

double MeasureInt8Peak(ThreadPool& pool, const Kernels& kernels) {
  constexpr int kTrials = 6;
  constexpr int kPieces = 8;  // per thread and trial, so that all threads work while one is timed
  // Some milliseconds: shorter pieces would measure a boost clock that does not last.
  constexpr int kRounds = 400000;
  double best = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> rate(static_cast<size_t>(pool.threads() * kPieces));
    pool.ParallelFor(static_cast<int>(rate.size()), 1, [&](int begin, int end) {
      alignas(64) int32_t sink[32] = {};
      const Clock::time_point start = Clock::now();
      const double ops = kernels.peak_loop(kRounds, sink);
      rate[static_cast<size_t>(begin)] = ops / SecondsSince(start);
    });
    best = std::max(best, *std::max_element(rate.begin(), rate.end()));
  }
  return best * pool.threads();
}

double MeasureReadBandwidth(ThreadPool& pool, const Kernels& kernels, size_t buffer_bytes) {
  constexpr size_t kPiece = 4 << 20;  // a stream as long as those of large matrices
  constexpr size_t kAhead = 8 << 10;  // as the kernels request weights
  constexpr int kTrials = 8;
  if (buffer_bytes == 0) buffer_bytes = size_t{768} << 20;
  const int pieces = static_cast<int>(buffer_bytes / kPiece);
  absl::StatusOr<HugeMemory> memory = HugeMemory::Allocate(static_cast<size_t>(pieces) * kPiece);
  if (!memory.ok()) return 0;
  const std::span<std::byte> buffer = memory->bytes();
  std::memset(buffer.data(), 1, buffer.size());  // real pages, not the shared zero page
  std::vector<int32_t> sinks(static_cast<size_t>(pieces));
  double best = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    const Clock::time_point start = Clock::now();
    pool.ParallelFor(pieces, 1, [&](int begin, int end) {
      for (int i = begin; i < end; ++i) {
        sinks[static_cast<size_t>(i)] = kernels.read_loop(
            buffer.data() + static_cast<size_t>(i) * kPiece, kPiece, trial % 2 == 0 ? 0 : kAhead);
      }
    });
    best = std::max(best, static_cast<double>(buffer.size()) / SecondsSince(start));
  }
  return best;
}

}  // namespace withy::engine
