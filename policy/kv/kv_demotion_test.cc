#include "policy/kv/kv_demotion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "base/test_seed.h"

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using IdleContexts = std::vector<std::vector<DensityChunk>>;

const std::vector<KvFormatCost> kDemotionFormats = {
    {136, 0.001}, {72, 0.01}, {57, 0.06}, {42, 0.3}};

DensityChunk Dense(double density, KvFormatIndex format = 0) {
  return {.density = density, .tokens = 16, .format = format};
}

IdleContexts RandomContexts(std::mt19937& random) {
  IdleContexts contexts(1 + random() % 6);
  for (std::vector<DensityChunk>& chunks : contexts) {
    for (size_t i = random() % 12; i > 0; --i) {
      chunks.push_back(Dense(static_cast<double>(random() % 1000) / 1000,
                             static_cast<KvFormatIndex>(random() % 4 == 0 ? random() % 4 : 0)));
      chunks.back().pinned = random() % 5 == 0;
    }
  }
  return contexts;
}

void Apply(const DemotionPlan& plan, IdleContexts* contexts) {
  for (const KvDemotion& one : plan.demotions) {
    (*contexts)[one.context][one.chunk].format = one.format;
  }
}

uint64_t BytesOf(const std::vector<DensityChunk>& chunks) {
  uint64_t bytes = 0;
  for (const DensityChunk& chunk : chunks) bytes += kDemotionFormats[chunk.format].chunk_bytes;
  return bytes;
}

// What a context may still lose.
uint64_t LeftToFree(const std::vector<DensityChunk>& chunks, double ratio) {
  const IdleContexts one = {chunks};
  return PlanDemotions(kDemotionFormats, one, ratio, UINT64_MAX).freed_bytes;
}

TEST(KvDemotionTest, TheEndsOfAContextStayExact) {
  std::vector<size_t> lossy;
  for (size_t i = 0; i < 7; ++i) {
    if (!StaysExact(i, 7)) lossy.push_back(i);
  }
  EXPECT_THAT(lossy, ElementsAre(2, 3, 4));
  for (size_t i = 0; i < 4; ++i) EXPECT_TRUE(StaysExact(i, 4));
}

TEST(KvDemotionTest, NothingLosesBitsUnlessRoomIsAskedFor) {
  const IdleContexts contexts = {{Dense(0.1), Dense(0.2)}, {Dense(0.3)}};
  EXPECT_THAT(PlanDemotions(kDemotionFormats, contexts, 0.25, 0).demotions, IsEmpty());
  EXPECT_THAT(PlanDemotions(kDemotionFormats, contexts, 1, 1000).demotions, IsEmpty());
  EXPECT_THAT(PlanDemotions(kDemotionFormats, {}, 0.25, 1000).demotions, IsEmpty());
}

TEST(KvDemotionTest, TheContextUsedLongestAgoAndItsLeastReadChunkComeFirst) {
  const IdleContexts contexts = {{Dense(0.9), Dense(0.1), Dense(0.5)}, {Dense(0.01), Dense(0.01)}};
  const DemotionPlan plan = PlanDemotions(kDemotionFormats, contexts, 0.25, 64);
  EXPECT_THAT(plan.demotions, ElementsAre(KvDemotion{0, 1, 1}));
  EXPECT_EQ(plan.freed_bytes, 64u);
}

// By construction and by brute force over what is left: as much as is asked for and no more than a
// step of one chunk above it; a context loses bits only when those used before it have reached the
// ratio; what is pinned stays.
TEST(KvDemotionTest, RandomContextsLoseWhatIsAskedForInOrder) {
  std::mt19937 random(TestSeed());
  const uint64_t step = kDemotionFormats.front().chunk_bytes - kDemotionFormats.back().chunk_bytes;
  for (int round = 0; round < 3000; ++round) {
    const IdleContexts before = RandomContexts(random);
    const double ratio = 0.25 + static_cast<double>(random() % 80) / 100;
    const uint64_t asked = random() % 3000;
    const DemotionPlan plan = PlanDemotions(kDemotionFormats, before, ratio, asked);
    IdleContexts after = before;
    Apply(plan, &after);
    uint64_t freed = 0, left = 0;
    bool later_lost = false;
    for (size_t i = before.size(); i-- > 0;) {
      const uint64_t lost = BytesOf(before[i]) - BytesOf(after[i]);
      freed += lost;
      const uint64_t more = LeftToFree(after[i], ratio);
      left += more;
      if (later_lost) {
        ASSERT_EQ(more, 0u) << "round " << round << ", context " << i;
      }
      later_lost = later_lost || lost > 0;
      for (size_t chunk = 0; chunk < before[i].size(); ++chunk) {
        ASSERT_GE(after[i][chunk].format, before[i][chunk].format);
        if (before[i][chunk].pinned) {
          ASSERT_EQ(after[i][chunk].format, before[i][chunk].format);
        }
      }
    }
    ASSERT_EQ(freed, plan.freed_bytes);
    ASSERT_LE(freed, asked + step) << "round " << round;
    if (freed < asked) {
      ASSERT_EQ(left, 0u) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace withy::policy
