#include "context_store/slot_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <random>

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
  EXPECT_EQ(pool.LargestGap(), 4 * kUnitBytes);
  EXPECT_EQ(pool.Claim(2 * kUnitBytes, 1), a) << "the smallest gap that holds it";
  pool.Free(a);
  pool.Free(b);
  EXPECT_TRUE(pool.Claim(8 * kUnitBytes, 1).has_value());
  EXPECT_TRUE(pool.Consistent());
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
  EXPECT_EQ(pool.state(kept), SlotPool::State::kClaimed);
}

TEST(SlotPoolDeathTest, FreeingTwiceEndsTheProcess) {
  SlotPool pool;
  pool.Reset(kUnitBytes);
  const SlotAt slot = *pool.Claim(kUnitBytes, 1);
  pool.Free(slot);
  EXPECT_DEATH(pool.Free(slot), "broken invariant");
}

TEST(SlotPoolProperty, SlotsNeverOverlapAndNothingIsLost) {
  const uint32_t seed = std::random_device()();
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
        ASSERT_LT(pool.LargestGap(), bytes);
      }
    } else if (!slots.empty()) {
      const auto slot =
          std::next(slots.begin(), static_cast<std::ptrdiff_t>(random() % slots.size()));
      pool.Free(slot->first);
      slots.erase(slot);
    }
    ASSERT_TRUE(pool.Consistent());
  }
}

}  // namespace
}  // namespace withy::context_store
