// A histogram of counts, such as the tokens of a prompt, in powers of two.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace withy::profiler_agent {

// Buckets with the upper bounds (inclusive) 1, 2, 4, … 65536; one more counts larger sizes. A plain
// value.
class SizeHistogram {
 public:
  static constexpr size_t kBounds = 17;
  static constexpr uint64_t BoundOf(size_t bucket) { return uint64_t{1} << bucket; }

  void Add(uint64_t size) {
    const auto bucket = size <= 1 ? 0 : static_cast<size_t>(std::bit_width(size - 1));
    ++buckets_[std::min(bucket, kBounds)];
    total_ += static_cast<double>(size);
    ++count_;
  }

  uint64_t count() const { return count_; }
  double total() const { return total_; }
  // Not cumulative; `i` = kBounds counts the sizes above the last bound.
  uint64_t bucket(size_t i) const { return buckets_[i]; }

 private:
  uint64_t count_ = 0;
  double total_ = 0;
  std::array<uint64_t, kBounds + 1> buckets_ = {};
};

}  // namespace withy::profiler_agent
