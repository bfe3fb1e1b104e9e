#include "profiler_agent/latency_histogram.h"

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace withy::profiler_agent {
namespace {

TEST(LatencyHistogramTest, EmptyIsZero) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.mean_ns(), 0);
  EXPECT_EQ(histogram.QuantileNs(0.5), 0);
}

TEST(LatencyHistogramTest, ExportedBucketsHoldTheirUpperBound) {
  LatencyHistogram histogram;
  for (const int64_t bound : kBucketBoundsNs) {
    histogram.Add(bound);
    histogram.Add(bound + 1);
  }
  EXPECT_EQ(histogram.bucket(0), 1u);  // 1 µs itself
  for (size_t i = 1; i < kBucketBoundsNs.size(); ++i) EXPECT_EQ(histogram.bucket(i), 2u) << i;
  EXPECT_EQ(histogram.bucket(kBucketBoundsNs.size()), 1u);  // just over the last bound
}

TEST(LatencyHistogramTest, AWeightIsSoManyEqualDurations) {
  LatencyHistogram weighted, plain;
  for (const auto& [ns, weight] : {std::pair{700, 3}, {90'000, 1}, {2'000'000, 6}}) {
    weighted.Add(ns, static_cast<uint32_t>(weight));
    for (int i = 0; i < weight; ++i) plain.Add(ns);
  }
  EXPECT_EQ(weighted.added(), 3u);
  EXPECT_EQ(weighted.count(), plain.count());
  EXPECT_EQ(weighted.total_ns(), plain.total_ns());
  for (const double q : {0.1, 0.35, 0.5, 0.9}) {
    EXPECT_EQ(weighted.QuantileNs(q), plain.QuantileNs(q)) << q;
  }
  for (size_t i = 0; i <= kBucketBoundsNs.size(); ++i) {
    EXPECT_EQ(weighted.bucket(i), plain.bucket(i)) << i;
  }
}

TEST(LatencyHistogramTest, OneValueIsEveryQuantile) {
  LatencyHistogram histogram;
  for (int i = 0; i < 10; ++i) histogram.Add(123'456);
  EXPECT_EQ(histogram.QuantileNs(0), 123'456);
  EXPECT_EQ(histogram.QuantileNs(0.5), 123'456);
  EXPECT_EQ(histogram.QuantileNs(1), 123'456);
  EXPECT_EQ(histogram.mean_ns(), 123'456);
}

TEST(LatencyHistogramTest, ExtremesAreTaken) {
  LatencyHistogram histogram;
  histogram.Add(-5);
  histogram.Add(INT64_MAX);
  EXPECT_EQ(histogram.count(), 2u);
  EXPECT_EQ(histogram.QuantileNs(0), 0);
  EXPECT_GT(histogram.QuantileNs(1), 1e12);
}

TEST(LatencyHistogramTest, QuantilesAreWithinSevenPerCent) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::lognormal_distribution<double> draw(14, 3);
  LatencyHistogram histogram;
  std::vector<double> values;
  for (int i = 0; i < 20'000; ++i) {
    const auto ns = static_cast<int64_t>(std::min(draw(random), 1e13));
    histogram.Add(ns);
    values.push_back(static_cast<double>(ns));
  }
  std::sort(values.begin(), values.end());
  for (const double q : {0.01, 0.1, 0.5, 0.9, 0.99}) {
    const double exact = values[static_cast<size_t>(q * static_cast<double>(values.size()))];
    EXPECT_NEAR(histogram.QuantileNs(q), exact, 0.07 * exact + 1) << q;
  }
}

}  // namespace
}  // namespace withy::profiler_agent
