#include "policy/kv/arena_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "base/test_seed.h"

namespace withy::policy {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kMib = 1 << 20;
constexpr MemoryParts kParts{256 * kMib, 100 * kMib, 64 * kMib, 128 * kMib};

TEST(ArenaSize, WithRoomItIsAsConfigured) {
  EXPECT_EQ(FitArena(kParts, {}).bytes, kParts.arena);
  const std::vector<MemoryBound> bounds = {{548 * kMib, 0, false, "a"}, {320 * kMib, 0, true, "b"}};
  EXPECT_EQ(FitArena(kParts, bounds).bytes, kParts.arena);
  EXPECT_EQ(FitArena(kParts, bounds).sum, "");
}

TEST(ArenaSize, ItIsWhatTheOtherPartsLeaveAndTheSumNamesThem) {
  const std::vector<MemoryBound> shared = {{400 * kMib, 20 * kMib, false, "/sys/x"}};
  const ArenaSize size = FitArena(kParts, shared);
  EXPECT_EQ(size.bytes, 108 * kMib);
  EXPECT_THAT(size.sum, AllOf(HasSubstr("arena 256 MiB + weights 100 MiB + buffers 192 MiB > "
                                        "allowed 400 MiB"),
                              HasSubstr("/sys/x"), HasSubstr("20 MiB of it are in use")));
  const std::vector<MemoryBound> alone = {{200 * kMib, 0, true, "own"}};
  EXPECT_EQ(FitArena(kParts, alone).bytes, 136 * kMib);
  EXPECT_THAT(FitArena(kParts, alone).sum,
              HasSubstr("arena 256 MiB + buffers 64 MiB > allowed 200 MiB"));
}

TEST(ArenaSize, WhatOthersUseIsNotTaken) {
  const std::vector<MemoryBound> used = {{1000 * kMib, 900 * kMib, false, "a"}};
  EXPECT_EQ(FitArena(kParts, used).bytes, 36 * kMib);
}

TEST(ArenaSize, OtherProcessesGiveWayToTheLeastArenaAndItsOwnBuffersDoNot) {
  const std::vector<MemoryBound> small = {{150 * kMib, 0, false, "a"}};
  EXPECT_EQ(FitArena(kParts, small).bytes, kLeastArenaBytes);
  const std::vector<MemoryBound> tiny = {{70 * kMib, 0, false, "a"}};
  EXPECT_EQ(FitArena(kParts, tiny).bytes, 0u);
  EXPECT_NE(FitArena(kParts, tiny).sum, "");
}

// Never more than configured, never above a bound together with the buffers, and no less room ever
// gives a larger arena.
TEST(ArenaSize, HoldsForAnyNumbers) {
  std::mt19937_64 random(TestSeed());
  const auto any = [&] { return random() >> (random() % 64); };
  for (int round = 0; round < 20'000; ++round) {
    const MemoryParts parts{any() / 4 + 1, any() / 8, any() / 8, any() / 8};
    std::vector<MemoryBound> bounds;
    for (size_t n = random() % 4; n > 0; --n) {
      bounds.push_back({any(), any(), random() % 2 == 0, "bound"});
    }
    const ArenaSize size = FitArena(parts, bounds);
    ASSERT_LE(size.bytes, parts.arena);
    ASSERT_TRUE(size.bytes == 0 || size.bytes >= std::min(parts.arena, kLeastArenaBytes));
    for (MemoryBound& bound : bounds) {
      if (size.bytes > 0) {
        ASSERT_LE(size.bytes + parts.store_buffers, bound.limit_bytes);
        if (!bound.alone && size.bytes > kLeastArenaBytes) {
          ASSERT_LE(size.bytes + parts.store_buffers + parts.other_buffers + parts.weights,
                    bound.limit_bytes);
        }
      }
      bound.limit_bytes -= bound.limit_bytes / 3;
    }
    ASSERT_LE(FitArena(parts, bounds).bytes, size.bytes);
  }
}

}  // namespace
}  // namespace withy::policy
