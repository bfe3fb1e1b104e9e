#include "bench/quality/printed_eq3.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "base/test_seed.h"

namespace withy::bench {
namespace {

using testing::Each;

// As printed it rewards compression, so that no dense chunk is worth its 8 bits.
TEST(PrintedEq3Test, PicksOneFormatForAll) {
  const std::vector<policy::KvFormatCost> ideal = {{8, 0}, {4, 1}, {2, 10}};
  std::vector<policy::DensityChunk> chunks;
  for (int i = 0; i < 60; ++i) chunks.push_back({.density = std::pow(0.9, i), .tokens = 16});
  EXPECT_THAT(FormatsByPrintedEq3(ideal, chunks, 60 * 8 / 2), Each(1));
}

TEST(PrintedEq3Test, AgainstAllThresholds) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<policy::KvFormatCost> ideal = {{8, 0}, {4, 1}, {2, 10}};
  for (int round = 0; round < 200; ++round) {
    std::vector<policy::DensityChunk> chunks(1 + random() % 20);
    for (policy::DensityChunk& chunk : chunks) {
      chunk = {.density = std::uniform_real_distribution<double>(0, 1)(random), .tokens = 16};
    }
    std::sort(chunks.begin(), chunks.end(),
              [](const auto& a, const auto& b) { return a.density > b.density; });
    // At 50 % every pair of chunks at 2 bits pays for one at 8.
    double best = 0;
    for (size_t eight = 0; 3 * eight <= chunks.size(); ++eight) {
      double info = 0;
      for (size_t i = 0; i < chunks.size(); ++i) {
        info += chunks[i].density * (i < eight ? 1 : i + 2 * eight < chunks.size() ? 2 : 4);
      }
      best = std::max(best, info);
    }
    const auto formats = FormatsByPrintedEq3(ideal, chunks, chunks.size() * 8 / 2);
    ASSERT_EQ(formats.size(), chunks.size());
    double info = 0;
    for (size_t i = 0; i < chunks.size(); ++i) info += chunks[i].density * (1 << formats[i]);
    EXPECT_GE(info, best - 1e-9);
  }
}

}  // namespace
}  // namespace withy::bench
