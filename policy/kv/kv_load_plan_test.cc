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

constexpr LoadPolicy kLoadPolicies[] = {LoadPolicy::kPrefix, LoadPolicy::kPipeline,
                                        LoadPolicy::kReadAll, LoadPolicy::kRecomputeAll,
                                        LoadPolicy::kCake};

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

double LeastLoadMs(const std::vector<MissingChunk>& missing, const LoadCosts& costs) {
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t set = 0; set < 1u << missing.size(); ++set) {
    std::vector<bool> recomputed;
    for (size_t i = 0; i < missing.size(); ++i) recomputed.push_back((set >> i & 1) != 0);
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

TEST(PlanLoadTest, AtMostOneChunkSlowerThanAnyPlan) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const auto missing = RandomMissing(random, random() % 11, random() % 2 == 0);
    const LoadCosts costs = RandomLoadCosts(random);
    const double least = LeastLoadMs(missing, costs);
    double chunk_ms = 0;
    for (const MissingChunk& chunk : missing) {
      chunk_ms = std::max(chunk_ms, std::min(costs.RecomputeMs(chunk), costs.ReadMs(chunk)));
    }
    const double ours = PlanLoad(missing, costs).ms();
    EXPECT_GE(ours, least - 1e-9);
    EXPECT_LE(ours, least + chunk_ms + 1e-9);
    EXPECT_LE(ours, PlanLoad(missing, costs, LoadPolicy::kReadAll).ms() + 1e-9);
    EXPECT_LE(ours, PlanLoad(missing, costs, LoadPolicy::kRecomputeAll).ms() + 1e-9);
    EXPECT_LE(ours, PlanLoad(missing, costs, LoadPolicy::kCake).ms() + chunk_ms + 1e-9);
  }
}

TEST(PlanLoadTest, ExactWhereChunksAreAlike) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    auto missing = RandomMissing(random, random() % 11, false);
    for (MissingChunk& chunk : missing) chunk.stored_bytes = std::min(chunk.stored_bytes, kMib / 4);
    LoadCosts costs = RandomLoadCosts(random);
    costs.recompute_position_ms = 0;
    EXPECT_NEAR(PlanLoad(missing, costs).ms(), LeastLoadMs(missing, costs), 1e-9);
  }
}

TEST(PlanLoadTest, HeavyChunksAreRecomputedAndEarlyOnes) {
  const LoadCosts costs{.recompute_chunk_ms = 1, .recompute_position_ms = 0.01, .read_mib_ms = 1};
  const std::vector<MissingChunk> mixed = {{0, kMib / 4}, {1, kMib}, {2, kMib / 4},
                                           {3, kMib / 4}, {4, kMib}, {5, kMib / 4}};
  const LoadPlan plan = PlanLoad(mixed, costs);
  EXPECT_THAT(plan.recompute, ElementsAre(1));
  EXPECT_THAT(plan.read, ElementsAre(0, 2, 3, 4, 5));
  const std::vector<MissingChunk> alike(4, {0, kMib});
  std::vector<MissingChunk> in_turn = alike;
  for (uint32_t i = 0; i < in_turn.size(); ++i) in_turn[i].position = i;
  EXPECT_THAT(PlanLoad(in_turn, costs).recompute, ElementsAre(0, 1));
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
