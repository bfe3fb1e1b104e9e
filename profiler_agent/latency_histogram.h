// A histogram of durations: exact counts for the exported buckets, and fine logarithmic buckets for
// percentiles.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace withy::profiler_agent {

// Upper bounds (inclusive) of the exported buckets in nanoseconds, 1 µs (a kernel) to 10 minutes (a
// long answer of a slow board); one more bucket counts longer durations.
inline constexpr std::array<int64_t, 27> kBucketBoundsNs = {
    1'000,           2'500,          5'000,          10'000,         25'000,
    50'000,          100'000,        250'000,        500'000,        1'000'000,
    2'500'000,       5'000'000,      10'000'000,     25'000'000,     50'000'000,
    100'000'000,     250'000'000,    500'000'000,    1'000'000'000,  2'500'000'000,
    5'000'000'000,   10'000'000'000, 30'000'000'000, 60'000'000'000, 120'000'000'000,
    300'000'000'000, 600'000'000'000};

// A plain value of about 5 KB.
class LatencyHistogram {
 public:
  // Negative durations count as 0. `weight`: durations that this one stands for; 0 counts as 1.
  void Add(int64_t duration_ns, uint32_t weight = 1);

  // All figures are of what the added durations stand for, but `added()`, which is their number.
  uint64_t count() const { return count_; }
  uint64_t added() const { return added_; }
  double total_ns() const { return total_ns_; }
  double mean_ns() const { return count_ == 0 ? 0 : total_ns_ / static_cast<double>(count_); }

  // The q-quantile (`q` in 0..1), within 7 % of the true value. 0 if empty.
  double QuantileNs(double q) const;

  // Number of durations in exported bucket i (not cumulative); i = kBucketBoundsNs.size() counts
  // those above the last bound.
  uint64_t bucket(size_t i) const { return buckets_[i]; }

 private:
  // Each duration below 16 ns has its own bucket; above, each octave up to 2^44 ns (5 hours)
  // has 16.
  static constexpr int kSubBits = 4;
  static constexpr int kTopBit = 44;
  static constexpr size_t kFineCount = ((kTopBit - kSubBits) << kSubBits) + (1 << kSubBits);
  static size_t FineIndex(uint64_t ns);
  // Lower bound of a fine bucket in nanoseconds.
  static double FineLower(size_t index);

  uint64_t count_ = 0;
  uint64_t added_ = 0;
  double total_ns_ = 0;
  uint64_t min_ns_ = 0;
  uint64_t max_ns_ = 0;
  std::array<uint64_t, kBucketBoundsNs.size() + 1> buckets_ = {};
  std::array<uint64_t, kFineCount> fine_ = {};
};

}  // namespace withy::profiler_agent
