#include "engine/weights/stage_ring.h"

#include <cstdint>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using State = StageRing::State;

// Makes every read that is due end at once.
void ReadAll(StageRing* ring) {
  while (const auto read = ring->NextRead()) ring->Finished(ring->SlotOf(read->stage), true);
}

TEST(StageRing, ReadsAheadAcrossTheEndOfAPass) {
  StageRing ring(8, 4, 0);
  ReadAll(&ring);
  for (int round = 0; round < 20; ++round) {
    const int32_t stage = round % 8;
    EXPECT_EQ(ring.StateOf(stage, 0), State::kReady) << round;
    EXPECT_EQ(ring.StateOf((stage + 3) % 8, 0), State::kReady) << round;
    EXPECT_EQ(ring.StateOf((stage + 4) % 8, 0), State::kAbsent) << round;
    ring.Demand(stage, 0);
    ring.Release(stage);
    ReadAll(&ring);
  }
}

TEST(StageRing, AHigherLevelReadsOnlyWhatIsMissing) {
  StageRing ring(8, 4, 1);
  ReadAll(&ring);
  ring.Demand(0, 3);
  EXPECT_EQ(ring.StateOf(0, 1), State::kReady);
  EXPECT_EQ(ring.StateOf(0, 3), State::kReading);
  const auto read = ring.NextRead();
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->stage, 0);
  EXPECT_EQ(read->from_level, 1);
  EXPECT_EQ(read->to_level, 3);
  ring.Finished(0, true);
  EXPECT_EQ(ring.StateOf(0, 3), State::kReady);
}

TEST(StageRing, AFailureHoldsUntilTheNextDemand) {
  StageRing ring(8, 4, 0);
  ASSERT_TRUE(ring.NextRead().has_value());
  ring.Finished(0, false);
  EXPECT_EQ(ring.StateOf(0, 0), State::kFailed);
  ring.Reset();
  EXPECT_FALSE(ring.NextRead().has_value()) << "nothing is read for nobody";
  ring.Demand(0, 0);
  ReadAll(&ring);
  EXPECT_EQ(ring.StateOf(0, 0), State::kReady);
}

// Passes of any levels that skip stages, are left in their middle and resumed, over reads that end
// in any order: a stage that is ready has been read whole, and no memory is read into while
// somebody may use it or other reads into it are under way.
TEST(StageRing, AnyOrderOfPassesAndReadsIsSound) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    const auto stages = static_cast<int32_t>(1 + random() % 12);
    const auto slots = static_cast<int32_t>(1 + random() % 9);
    StageRing ring(stages, slots, 2);
    std::vector<std::pair<int32_t, int32_t>> content(static_cast<size_t>(stages), {-1, -1});
    std::vector<StageRead> under_way;
    int32_t held = -1;  // a stage that is in use
    for (int step = 0; step < 400; ++step) {
      const uint32_t what = random() % 4;
      if (what == 0) {
        const auto read = ring.NextRead();
        if (!read.has_value()) continue;
        const int32_t slot = ring.SlotOf(read->stage);
        if (held >= 0 && ring.SlotOf(held) == slot) {
          ASSERT_EQ(read->stage, held) << "memory in use is overwritten";
        }
        for (const StageRead& other : under_way) {
          if (ring.SlotOf(other.stage) == slot) {
            ASSERT_EQ(other.stage, read->stage);
          }
        }
        auto& [stage, level] = content[static_cast<size_t>(slot)];
        if (read->from_level >= 0) {
          ASSERT_EQ(stage, read->stage);
          ASSERT_EQ(level, read->from_level);
        }
        stage = read->stage;
        level = read->to_level;
        under_way.push_back(*read);
      } else if (what == 1 && !under_way.empty()) {
        const size_t i = random() % under_way.size();
        ring.Finished(ring.SlotOf(under_way[i].stage), random() % 16 != 0);
        under_way.erase(under_way.begin() + static_cast<ptrdiff_t>(i));
      } else if (what == 2 && held >= 0) {
        ring.Release(held);
        held = -1;
      } else if (what == 3 && held < 0) {
        const auto stage = static_cast<int32_t>(random() % static_cast<uint32_t>(stages));
        const auto level = static_cast<int32_t>(random() % 3);
        ring.Demand(stage, level);
        if (ring.StateOf(stage, level) == State::kFailed) ring.Reset();
        if (ring.StateOf(stage, level) != State::kReady) continue;
        held = stage;
        EXPECT_EQ(content[static_cast<size_t>(ring.SlotOf(stage))].first, stage);
        EXPECT_GE(content[static_cast<size_t>(ring.SlotOf(stage))].second, level);
        for (const StageRead& read : under_way) ASSERT_NE(read.stage, stage);
      }
    }
    // Whatever happened, a demand is met once reads end.
    if (held >= 0) ring.Release(held);
    ring.Reset();
    ring.Demand(0, 2);
    for (const StageRead& read : under_way) ring.Finished(ring.SlotOf(read.stage), true);
    ReadAll(&ring);
    ASSERT_EQ(ring.StateOf(0, 2), State::kReady);
  }
}

}  // namespace
}  // namespace withy::engine
