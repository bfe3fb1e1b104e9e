#include "profiler_agent/latency_histogram.h"

#include <algorithm>
#include <bit>

namespace withy::profiler_agent {

size_t LatencyHistogram::FineIndex(uint64_t ns) {
  ns = std::min(ns, (uint64_t{1} << kTopBit) - 1);
  if (ns < (1u << kSubBits)) return static_cast<size_t>(ns);
  const int top = std::bit_width(ns) - 1;  // the octave
  const uint64_t sub = (ns >> (top - kSubBits)) & ((1u << kSubBits) - 1);
  return static_cast<size_t>((static_cast<uint64_t>(top - kSubBits + 1) << kSubBits) + sub);
}

double LatencyHistogram::FineLower(size_t index) {
  if (index < (1u << kSubBits)) return static_cast<double>(index);
  const int octave = static_cast<int>(index >> kSubBits) - 1;
  const uint64_t sub = index & ((1u << kSubBits) - 1);
  return static_cast<double>(((uint64_t{1} << kSubBits) + sub) << octave);
}

void LatencyHistogram::Add(int64_t duration_ns, uint32_t weight) {
  weight = std::max<uint32_t>(weight, 1);
  const int64_t clamped = std::max<int64_t>(duration_ns, 0);
  const auto ns = static_cast<uint64_t>(clamped);
  const auto bound = std::lower_bound(kBucketBoundsNs.begin(), kBucketBoundsNs.end(), clamped);
  buckets_[static_cast<size_t>(bound - kBucketBoundsNs.begin())] += weight;
  fine_[FineIndex(ns)] += weight;
  min_ns_ = count_ == 0 ? ns : std::min(min_ns_, ns);
  max_ns_ = std::max(max_ns_, ns);
  total_ns_ += static_cast<double>(ns) * weight;
  count_ += weight;
  ++added_;
}

double LatencyHistogram::QuantileNs(double q) const {
  if (count_ == 0) return 0;
  const double wanted = std::clamp(q, 0.0, 1.0) * static_cast<double>(count_);
  double before = 0;
  for (size_t i = 0; i < kFineCount; ++i) {
    const auto here = static_cast<double>(fine_[i]);
    if (here > 0 && before + here >= wanted) {
      const double share = std::max(wanted - before, 0.0) / here;
      const double value = FineLower(i) + share * (FineLower(i + 1) - FineLower(i));
      return std::clamp(value, static_cast<double>(min_ns_), static_cast<double>(max_ns_));
    }
    before += here;
  }
  return static_cast<double>(max_ns_);
}

}  // namespace withy::profiler_agent
