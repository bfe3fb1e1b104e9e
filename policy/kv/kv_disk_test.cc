#include "policy/kv/kv_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kHour = 3600 * kNanosPerSecond;
constexpr int64_t kDiskNow = 1'000'000 * kHour;

struct DiskCase {
  std::vector<std::vector<LiveKv>> live;
  std::vector<KvSegment> segments;
  DiskUse use;
};

DiskCase RandomDiskCase(std::mt19937& random, size_t max_segments) {
  DiskCase made;
  made.live.resize(random() % (max_segments + 1));
  uint64_t total = 0;
  for (std::vector<LiveKv>& live : made.live) {
    KvSegment segment{.bytes = 10 + random() % 40, .open = random() % 10 == 0};
    total += segment.bytes;
    for (uint64_t left = segment.bytes; left > 10 && random() % 3 != 0; left -= live.back().bytes) {
      live.push_back({1 + random() % 10, kDiskNow - static_cast<int64_t>(random() % 100) * kHour});
    }
    segment.live = live;
    made.segments.push_back(segment);
  }
  made.use = {.limit_bytes = 1 + random() % (total + 100),
              .text_bytes = random() % 100,
              .wanted_bytes = random() % 60};
  return made;
}

TEST(PlanDiskTest, MakesRoomAndGivesUpNothingNeedlessly) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const DiskCase given = RandomDiskCase(random, 20);
    const DiskPlan plan = PlanDisk(given.segments, given.use, kDiskNow);
    std::vector<bool> gone(given.segments.size());
    uint64_t freed = 0, kv = 0, open = 0;
    for (const size_t i : plan.give_up) {
      ASSERT_FALSE(gone[i]);
      ASSERT_FALSE(given.segments[i].open);
      gone[i] = true;
      freed += given.segments[i].bytes;
    }
    for (const KvSegment& segment : given.segments) {
      kv += segment.bytes;
      open += segment.open ? segment.bytes : 0;
    }
    EXPECT_EQ(freed, plan.freed_bytes);
    const DiskUse& use = given.use;
    const uint64_t least = use.text_bytes + open + use.wanted_bytes;
    EXPECT_EQ(plan.excess_bytes, least > use.limit_bytes ? least - use.limit_bytes : 0);
    const uint64_t wanted = plan.excess_bytes == 0 ? use.wanted_bytes : 0;
    const uint64_t after = use.text_bytes + kv - freed + wanted;
    if (use.text_bytes + open > use.limit_bytes) {
      EXPECT_EQ(kv - freed, open) << "all KV goes before text is short of room";
      continue;
    }
    EXPECT_LE(after, use.limit_bytes);
    for (const size_t i : plan.give_up) {
      EXPECT_GT(after + given.segments[i].bytes, use.limit_bytes) << "it need not go";
    }
  }
}

// The loss is at most one segment's more than that of the best choice.
TEST(PlanDiskTest, SmallCasesAgainstAllChoices) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 500; ++round) {
    const DiskCase given = RandomDiskCase(random, 8);
    const DiskPlan plan = PlanDisk(given.segments, given.use, kDiskNow);
    if (plan.excess_bytes > 0) continue;
    uint64_t needed = given.use.text_bytes + given.use.wanted_bytes;
    double largest = 0;
    for (const KvSegment& segment : given.segments) {
      needed += segment.bytes;
      largest = std::max(largest, UsefulBytes(segment, kDiskNow));
    }
    needed -= std::min(needed, given.use.limit_bytes);
    double least = std::numeric_limits<double>::infinity();
    for (uint32_t set = 0; set < 1u << given.segments.size(); ++set) {
      uint64_t freed = 0;
      double loss = 0;
      for (size_t i = 0; i < given.segments.size(); ++i) {
        if ((set >> i & 1) == 0) continue;
        if (given.segments[i].open) loss = std::numeric_limits<double>::infinity();
        freed += given.segments[i].bytes;
        loss += UsefulBytes(given.segments[i], kDiskNow);
      }
      if (freed >= needed) least = std::min(least, loss);
    }
    double ours = 0;
    for (const size_t i : plan.give_up) ours += UsefulBytes(given.segments[i], kDiskNow);
    EXPECT_LE(ours, least + largest + 1e-9);
  }
}

TEST(PlanDiskTest, TheDeadAndTheOldGoFirst) {
  const std::vector<LiveKv> old = {{8, kDiskNow - 48 * kHour}};
  const std::vector<LiveKv> young = {{8, kDiskNow}};
  const std::vector<LiveKv> few = {{1, kDiskNow}};
  const std::vector<KvSegment> segments = {
      {10, young}, {10, old}, {10, {}, true}, {10, {}}, {10, few}};
  EXPECT_THAT(PlanDisk(segments, {100, 0, 50}, kDiskNow).give_up, IsEmpty());
  EXPECT_THAT(PlanDisk(segments, {100, 10, 50}, kDiskNow).give_up, ElementsAre(3));
  EXPECT_THAT(PlanDisk(segments, {100, 30, 50}, kDiskNow).give_up, ElementsAre(3, 1, 4));
  EXPECT_THAT(PlanDisk(segments, {100, 60, 50}, kDiskNow).give_up, ElementsAre(3));
  EXPECT_EQ(PlanDisk(segments, {100, 60, 50}, kDiskNow).excess_bytes, 20u);
  EXPECT_EQ(UsefulBytes(segments[1], kDiskNow - 47 * kHour), 4);
}

TEST(DailyWritesTest, AnyDayHasItsLimit) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr uint64_t kLimit = 1000;
  std::optional<DailyWrites> writes(kLimit);
  int64_t now = kDiskNow;
  std::vector<std::pair<int64_t, uint64_t>> written;
  for (int i = 0; i < 5000; ++i) {
    now += static_cast<int64_t>(random() % 4000) * kNanosPerSecond;
    const uint64_t bytes = std::min<uint64_t>(random() % 200, writes->LeftBytes(now));
    writes->Wrote(bytes, now);
    written.emplace_back(now, bytes);
    if (random() % 50 == 0) writes.emplace(kLimit, WriteHistory(writes->history()));
    uint64_t last_day = 0;
    for (auto it = written.rbegin(); it != written.rend() && now - it->first < 24 * kHour; ++it) {
      last_day += it->second;
    }
    ASSERT_LE(last_day, kLimit);
  }
}

TEST(DailyWritesTest, IsGivenBackAfterADayAndNotByAClockThatJumps) {
  DailyWrites writes(100);
  writes.Wrote(80, kDiskNow);
  EXPECT_EQ(writes.LeftBytes(kDiskNow + 23 * kHour), 20u);
  for (int i = 0; i < 100; ++i) {
    writes.Wrote(0, kDiskNow + 22 * kHour);
    writes.Wrote(0, kDiskNow + 23 * kHour);
  }
  EXPECT_EQ(writes.LeftBytes(kDiskNow + 23 * kHour), 20u);
  EXPECT_EQ(writes.LeftBytes(kDiskNow - 1000 * kHour), 20u);
  EXPECT_EQ(writes.LeftBytes(kDiskNow - 998 * kHour), 100u) << "23 and 2 hours ago";
  writes.Wrote(200, kDiskNow);
  EXPECT_EQ(writes.LeftBytes(kDiskNow), 0u);
}

TEST(JudgeWriteTest, TheDaysBytesAndContextsThatAreUsedOnce) {
  const WriteCandidate first{.bytes = 10};
  EXPECT_EQ(JudgeWrite(first, 100, 100), WriteVerdict::kWrite);
  EXPECT_EQ(JudgeWrite(first, 30, 100), WriteVerdict::kNotUsedAgain);
  EXPECT_EQ(JudgeWrite({.bytes = 10, .has_copy = true}, 100, 100), WriteVerdict::kNotUsedAgain);
  const WriteCandidate again{.bytes = 10, .has_copy = true, .used_again = true};
  EXPECT_EQ(JudgeWrite(again, 100, 100), WriteVerdict::kWrite);
  EXPECT_EQ(JudgeWrite(again, 10, 100), WriteVerdict::kWrite);
  EXPECT_EQ(JudgeWrite(again, 9, 100), WriteVerdict::kDailyLimit);
  // What leaves the arena takes from the reserve, too: else it would lose bits.
  const WriteCandidate leaves{.for_room = true, .bytes = 10};
  EXPECT_EQ(JudgeWrite(leaves, 10, 100), WriteVerdict::kWrite);
  EXPECT_EQ(JudgeWrite(leaves, 9, 100), WriteVerdict::kDailyLimit);
}

}  // namespace
}  // namespace withy::policy
