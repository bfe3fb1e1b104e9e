#include "policy/kv/kv_shrink.h"

#include <gtest/gtest.h>

#include <random>

#include "base/test_seed.h"

namespace withy::policy {
namespace {

constexpr uint64_t kArena = 1 << 20;

TEST(KvShrinkTest, ShrinksAtOnceAndGrowsAfterAQuietTime) {
  ArenaShrink shrink(kArena,
                     {.shrink_share = 0.1, .quiet_before_growth = 3, .quiet_between_growths = 2});
  EXPECT_EQ(shrink.Observe(0.05), 0u);
  EXPECT_EQ(shrink.Observe(0.1), kArena / 8);
  EXPECT_EQ(shrink.Observe(0.9), kArena / 4);
  EXPECT_EQ(shrink.Observe(0.05), kArena / 4) << "neither pressed nor quiet";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(shrink.Observe(0), kArena / 4);
  EXPECT_EQ(shrink.Observe(0), kArena * 3 / 16);
  EXPECT_EQ(shrink.Observe(0), kArena * 3 / 16);
  EXPECT_EQ(shrink.Observe(0), kArena / 8);
}

TEST(KvShrinkTest, APartAlwaysStaysAndAllComesBack) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 200; ++round) {
    const uint64_t arena = 1 + random() % (1 << 24);
    ArenaShrink shrink(arena, {});
    for (int i = 0; i < 200; ++i) {
      const uint64_t before = shrink.withheld_bytes();
      const double share = random() % 3 == 0 ? (random() % 100) / 100.0 : 0;
      const uint64_t after = shrink.Observe(share);
      EXPECT_LE(after, arena - arena / ArenaShrink::kStaysDivisor);
      if (share >= 0.1) {
        EXPECT_GE(after, before);
      } else {
        EXPECT_LE(after, before);
      }
    }
    for (int i = 0; i < 400; ++i) shrink.Observe(0);
    EXPECT_EQ(shrink.withheld_bytes(), 0u);
  }
}

TEST(KvShrinkTest, HundredPerCentTurnsItOff) {
  ArenaShrink shrink(kArena, {.shrink_share = 1});
  EXPECT_EQ(shrink.Observe(1), 0u);
}

}  // namespace
}  // namespace withy::policy
