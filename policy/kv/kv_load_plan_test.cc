#include "policy/kv/kv_load_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "base/test_seed.h"
#include "policy/kv/kv_load_testing.h"

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr LoadPolicy kLoadPolicies[] = {LoadPolicy::kPrefix, LoadPolicy::kReadAll,
                                        LoadPolicy::kRecomputeAll, LoadPolicy::kCake};

double LoadMs(const std::vector<MissingChunk>& missing, const LoadCosts& costs,
              const std::vector<bool>& recomputed) {
  double read_ms = 0, recompute_ms = 0;
  for (size_t i = 0; i < missing.size(); ++i) {
    double& side = recomputed[i] ? recompute_ms : read_ms;
    if (side == 0) side = recomputed[i] ? costs.recompute_fixed_ms : costs.read_fixed_ms;
    side += recomputed[i] ? costs.RecomputeMs(missing[i]) : costs.ReadMs(missing[i]);
  }
  return std::max(read_ms, recompute_ms);
}

// Of all splits in which chunks without a copy are recomputed, and of the others the first ones.
double LeastPrefixMs(const std::vector<MissingChunk>& missing, const LoadCosts& costs) {
  double least = std::numeric_limits<double>::infinity();
  for (size_t end = 0; end <= missing.size(); ++end) {
    std::vector<bool> recomputed;
    for (const MissingChunk& chunk : missing) {
      recomputed.push_back(chunk.stored_bytes == 0 || recomputed.size() < end);
    }
    least = std::min(least, LoadMs(missing, costs, recomputed));
  }
  return least;
}

std::vector<bool> Recomputed(const LoadPlan& plan, size_t count) {
  std::vector<bool> recomputed(count);
  for (const size_t i : plan.recompute) recomputed[i] = true;
  return recomputed;
}

TEST(PlanLoadTest, EveryChunkOnceAndWithoutACopyRecomputed) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 1000; ++round) {
    const auto missing = RandomMissing(random, random() % 30, false);
    const LoadCosts costs = RandomLoadCosts(random);
    for (const LoadPolicy policy : kLoadPolicies) {
      const LoadPlan plan = PlanLoad(missing, costs, policy);
      ASSERT_EQ(plan.recompute.size() + plan.read.size(), missing.size());
      EXPECT_TRUE(std::is_sorted(plan.recompute.begin(), plan.recompute.end()));
      EXPECT_TRUE(std::is_sorted(plan.read.begin(), plan.read.end()));
      for (const size_t i : plan.read) {
        EXPECT_GT(missing[i].stored_bytes, 0u);
        EXPECT_FALSE(std::binary_search(plan.recompute.begin(), plan.recompute.end(), i));
      }
      EXPECT_NEAR(plan.ms(), LoadMs(missing, costs, Recomputed(plan, missing.size())), 1e-9);
    }
  }
}

TEST(PlanLoadTest, NoOtherPrefixIsThereSooner) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const auto missing = RandomMissing(random, random() % 30, random() % 2 == 0);
    const LoadCosts costs = RandomLoadCosts(random);
    const double ours = PlanLoad(missing, costs).ms();
    EXPECT_NEAR(ours, LeastPrefixMs(missing, costs), 1e-9);
    EXPECT_LE(ours, PlanLoad(missing, costs, LoadPolicy::kReadAll).ms() + 1e-9);
    EXPECT_LE(ours, PlanLoad(missing, costs, LoadPolicy::kRecomputeAll).ms() + 1e-9);
  }
}

TEST(PlanLoadTest, TheFirstChunksAreRecomputed) {
  const LoadCosts costs{.recompute_chunk_ms = 1, .recompute_position_ms = 0.01, .read_mib_ms = 1};
  std::vector<MissingChunk> missing(4, {0, kMib});
  for (uint32_t i = 0; i < missing.size(); ++i) missing[i].position = i;
  EXPECT_THAT(PlanLoad(missing, costs).recompute, ElementsAre(0, 1));
  missing[3].stored_bytes = 0;
  EXPECT_THAT(PlanLoad(missing, costs).recompute, ElementsAre(0, 3));
}

TEST(PlanLoadTest, ReadsWhatComesFastAndRecomputesBehindASlowCard) {
  std::vector<MissingChunk> missing;
  for (uint32_t i = 0; i < 8; ++i) missing.push_back({i, kMib});
  EXPECT_THAT(PlanLoad(missing, {.recompute_chunk_ms = 100, .read_mib_ms = 1}).recompute,
              IsEmpty());
  EXPECT_THAT(PlanLoad(missing, {.recompute_chunk_ms = 1, .read_mib_ms = 100}).read, IsEmpty());
  EXPECT_EQ(PlanLoad({}, {}).ms(), 0);
}

}  // namespace
}  // namespace withy::policy
