#include "context_store/arena/slot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <vector>

#include "base/test_seed.h"
#include "context_store/arena/slot_layout.h"

namespace withy::context_store {
namespace {

constexpr uint64_t kUnitBytes = 64;

TEST(SlotPool, GapsMergeSoThatSizesCanChange) {
  SlotPool pool;
  pool.Reset(8 * kUnitBytes);
  const SlotAt a = *pool.Claim(2 * kUnitBytes, 1);
  const SlotAt b = *pool.Claim(2 * kUnitBytes, 1);
  const SlotAt c = *pool.Claim(4 * kUnitBytes, 1);
  EXPECT_FALSE(pool.Claim(kUnitBytes, 1).has_value());
  pool.Free(a);
  pool.Free(c);
  EXPECT_FALSE(pool.Claim(5 * kUnitBytes, 1).has_value()) << "six units are free, in two gaps";
  EXPECT_EQ(LargestGap(pool), 4 * kUnitBytes);
  EXPECT_EQ(pool.Claim(2 * kUnitBytes, 1), a) << "the smallest gap that holds it";
  pool.Free(a);
  pool.Free(b);
  EXPECT_TRUE(pool.Claim(8 * kUnitBytes, 1).has_value());
  EXPECT_TRUE(FillsItsSpace(pool));
}

TEST(SlotPool, QuarantinedSlotsComeBackOnlyForTheirWriter) {
  SlotPool pool;
  pool.Reset(2 * kUnitBytes);
  const SlotAt a = *pool.Claim(kUnitBytes, 1);
  const SlotAt b = *pool.Claim(kUnitBytes, 2);
  pool.Quarantine(a, 100);
  pool.Quarantine(b, 200);
  pool.Release(300);
  EXPECT_FALSE(pool.Claim(kUnitBytes, 3).has_value());
  pool.Release(100);
  EXPECT_EQ(pool.counts().quarantined, kUnitBytes);
  EXPECT_EQ(pool.Claim(kUnitBytes, 3), a);
}

TEST(SlotPool, ASharedSlotIsFreedByItsLastContext) {
  SlotPool pool;
  pool.Reset(2 * kUnitBytes);
  int left = 0;
  pool.set_on_leave([&](SlotAt) { ++left; });
  const SlotAt slot = *pool.Claim(kUnitBytes, 1);
  pool.Keep(slot);
  pool.Share(slot);
  pool.Share(slot);
  EXPECT_EQ(pool.at(slot).contexts, 3u);
  EXPECT_EQ(pool.counts().resident, kUnitBytes);
  EXPECT_EQ(pool.counts().shared_slots, 1u);
  EXPECT_EQ(pool.counts().saved, 2 * kUnitBytes);
  pool.Free(slot);
  pool.Free(slot);
  EXPECT_EQ(pool.counts().shared_slots, 0u);
  EXPECT_EQ(pool.counts().saved, 0u);
  EXPECT_EQ(left, 0);
  pool.Take(slot, 2);
  EXPECT_EQ(left, 1);
  pool.Free(slot);
  EXPECT_EQ(pool.counts().free, 2 * kUnitBytes);
}

TEST(SlotPool, APinnedSlotIsWithheldUntilItIsReadNoMore) {
  SlotPool pool;
  pool.Reset(2 * kUnitBytes);
  const SlotAt freed = *pool.Claim(kUnitBytes, 1);
  const SlotAt broken = *pool.Claim(kUnitBytes, 1);
  const uint64_t run = pool.Pin(freed);
  EXPECT_EQ(pool.Pin(freed), run);
  pool.Pin(broken);
  pool.Free(freed);
  pool.Quarantine(broken, 100);
  pool.Release(100);
  EXPECT_EQ(pool.counts().quarantined, 2 * kUnitBytes);
  pool.Unpin(freed, run);
  EXPECT_FALSE(pool.Claim(kUnitBytes, 2).has_value()) << "one pin is left";
  pool.Unpin(freed, run);
  pool.Unpin(broken, run);
  EXPECT_EQ(pool.counts().free, 2 * kUnitBytes);
  const SlotAt kept = *pool.Claim(kUnitBytes, 2);
  const uint64_t before = pool.Pin(kept);
  pool.Reset(2 * kUnitBytes);
  ASSERT_EQ(pool.Claim(kUnitBytes, 3), kept);
  pool.Unpin(kept, before);  // of another run: ignored
  EXPECT_EQ(pool.at(kept).state, SlotPool::State::kClaimed);
}

TEST(SlotPoolDeathTest, FreeingTwiceEndsTheProcess) {
  SlotPool pool;
  pool.Reset(kUnitBytes);
  const SlotAt slot = *pool.Claim(kUnitBytes, 1);
  pool.Free(slot);
  EXPECT_DEATH(pool.Free(slot), "broken invariant");
}

TEST(SlotPoolProperty, SlotsNeverOverlapAndNothingIsLost) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  SlotPool pool;
  pool.Reset(200 * kUnitBytes);
  std::map<SlotAt, uint64_t> slots;
  for (int step = 0; step < 5000; ++step) {
    if (random() % 2 == 0) {
      const uint64_t bytes = (random() % 20 + 1) * kUnitBytes;
      if (const auto slot = pool.Claim(bytes, 1)) {
        ASSERT_TRUE(slots.emplace(*slot, bytes).second);
      } else {
        ASSERT_LT(LargestGap(pool), bytes);
      }
    } else if (!slots.empty()) {
      const auto slot =
          std::next(slots.begin(), static_cast<std::ptrdiff_t>(random() % slots.size()));
      pool.Free(slot->first);
      slots.erase(slot);
    }
    ASSERT_TRUE(FillsItsSpace(pool));
  }
}

TEST(SlotPool, ASlotCanBeClaimedAtItsPlace) {
  SlotPool pool;
  pool.Reset(8 * kUnitBytes);
  EXPECT_TRUE(pool.ClaimAt(2, 3 * kUnitBytes, 1));
  EXPECT_FALSE(pool.ClaimAt(4, kUnitBytes, 1)) << "part of the first";
  EXPECT_FALSE(pool.ClaimAt(1, 2 * kUnitBytes, 1));
  EXPECT_FALSE(pool.ClaimAt(7, 2 * kUnitBytes, 1)) << "beyond the end";
  EXPECT_TRUE(pool.ClaimAt(5, 3 * kUnitBytes, 1));
  EXPECT_TRUE(pool.ClaimAt(0, 2 * kUnitBytes, 1));
  EXPECT_EQ(pool.counts().free, 0u);
  EXPECT_TRUE(FillsItsSpace(pool));
}

TEST(SlotPool, WholePagesAreWithheldAndComeBack) {
  constexpr uint64_t kPage = 4 * kUnitBytes;
  SlotPool pool;
  pool.Reset(4 * kPage);
  const SlotAt first = *pool.Claim(kUnitBytes, 1);
  const auto pages = pool.Withhold(2 * kPage, kPage);
  ASSERT_TRUE(pages.has_value());
  EXPECT_EQ(pages->offset, kPage) << "the first page is used";
  EXPECT_EQ(pages->bytes, 2 * kPage);
  EXPECT_EQ(pool.Withhold(2 * kPage, kPage)->bytes, kPage);
  EXPECT_FALSE(pool.Withhold(kPage, kPage).has_value());
  EXPECT_EQ(pool.counts().withheld, 3 * kPage);
  EXPECT_EQ(WithheldPages(pool).size(), 2u);
  EXPECT_TRUE(FillsItsSpace(pool));
  pool.GiveBack(1);
  EXPECT_EQ(pool.counts().withheld, kPage);
  pool.GiveBack(kPage);
  pool.Free(first);
  EXPECT_EQ(LargestGap(pool), 4 * kPage);
  EXPECT_TRUE(FillsItsSpace(pool));
}

TEST(SlotPool, WhoeverWantsToKnowIsToldWhenASlotStopsBeingResident) {
  SlotPool pool;
  std::vector<SlotAt> left;
  pool.set_on_leave([&](SlotAt slot) { left.push_back(slot); });
  pool.Reset(8 * kUnitBytes);
  const SlotAt taken = *pool.Claim(kUnitBytes, 1);
  const SlotAt freed = *pool.Claim(kUnitBytes, 1);
  const SlotAt broken = *pool.Claim(kUnitBytes, 1);
  const SlotAt never = *pool.Claim(kUnitBytes, 1);
  for (const SlotAt slot : {taken, freed, broken}) pool.Keep(slot);
  EXPECT_TRUE(left.empty());
  pool.Take(taken, 2);
  pool.Free(freed);
  pool.Quarantine(broken, 100);
  pool.Free(never);
  pool.Free(taken);
  EXPECT_EQ(left, (std::vector<SlotAt>{taken, freed, broken}));
}

}  // namespace
}  // namespace withy::context_store
