#include "policy/call/prompt_level.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "policy/step/step_testing.h"

namespace withy::policy {
namespace {

TEST(ChoosePromptLevelsTest, APromptFallsForThoseWhoseTurnIsBefore) {
  const Pacer later({.ttft_ms = 1000}, 10);
  const Pacer sooner({.ttft_ms = 500}, 10);
  std::vector<PromptTurn> prompts = {
      {.pacer = &later, .turn = {.deadline_ns = 1000 * kMs}, .rows = 400, .level = 2},
      {.pacer = &sooner, .turn = {.deadline_ns = 500 * kMs}, .rows = 200, .level = 2}};
  EXPECT_EQ(ChoosePromptLevels(kLevels, prompts, 1, 0), (std::vector<size_t>{1, 2}))
      << "600 ms are left of 800, 60 % takes 480";
  prompts.pop_back();
  EXPECT_EQ(ChoosePromptLevels(kLevels, prompts, 1, 0), (std::vector<size_t>{2}))
      << "alone it is in time";
}

TEST(ChoosePromptLevelsTest, APromptBehindALongContextFallsSooner) {
  const Pacer pacer({.ttft_ms = 250}, 10);
  EXPECT_EQ(pacer.ChooseForPrompt(kDeepLevels, 2, 100, 0, 1, 0), 2u);
  EXPECT_EQ(pacer.ChooseForPrompt(kDeepLevels, 2, 100, 1000, 1, 0), 1u);
  EXPECT_EQ(pacer.ChooseForPrompt(kDeepLevels, 2, 100, 5000, 1, 0), 0u);
  const PromptTurn turn{.pacer = &pacer, .turn = {}, .rows = 100, .level = 2, .depth = 1000};
  EXPECT_EQ(ChoosePromptLevels(kDeepLevels, std::vector{turn}, 1, 0), (std::vector<size_t>{1}));
}

TEST(RestartLevelTest, OnlyWhereALowerLevelMakesIt) {
  const Pacer pacer({.ttft_ms = 60}, 10);
  const PromptTurn prompt{.pacer = &pacer, .turn = {}, .rows = 40, .level = 1};
  EXPECT_EQ(RestartLevel(kLevels, prompt, 40, 40, 1, 8 * kMs), 1u) << "in time";
  EXPECT_EQ(RestartLevel(kLevels, prompt, 40, 60, 1.5, 8 * kMs), 0u) << "24 ms there";
  EXPECT_EQ(RestartLevel(kLevels, prompt, 30, 50, 1.5, 8 * kMs), 0u)
      << "18 ms more for the other rows";
  EXPECT_EQ(RestartLevel(kLevels, prompt, 30, 30, 1.5, 8 * kMs), 1u);
  EXPECT_EQ(RestartLevel(kLevels, prompt, 40, 80, 4, 8 * kMs), 1u) << "late everywhere";
  const PromptTurn full{.pacer = &pacer, .turn = {}, .rows = 24, .level = 2};
  EXPECT_EQ(RestartLevel(kLevels, full, 24, 70, 1.5, 8 * kMs), 1u) << "the highest that makes it";
  const PromptTurn lowest{.pacer = &pacer, .turn = {}, .rows = 40, .level = 0};
  EXPECT_EQ(RestartLevel(kLevels, lowest, 40, 80, 1, 8 * kMs), 0u);
  const Pacer fixed({.ttft_ms = 60}, 10, {.level_fixed = true});
  const PromptTurn stays{.pacer = &fixed, .turn = {}, .rows = 40, .level = 1};
  EXPECT_EQ(RestartLevel(kLevels, stays, 40, 60, 1.5, 8 * kMs), 1u);
  const Pacer unlimited;
  const PromptTurn free{.pacer = &unlimited, .turn = {}, .rows = 40, .level = 2};
  EXPECT_EQ(RestartLevel(kLevels, free, 40, 1e6, 1, 8 * kMs), 2u);
}

TEST(SlowStepWatchTest, IsNeededWhereHalfTheSpeedWouldBeLate) {
  const auto needed = [](const CallTargets& targets, size_t level, double slowdown,
                         const PaceOptions& options = {}) {
    const Pacer pacer(targets, 10, options);
    const PromptTurn prompt{.pacer = &pacer, .turn = {}, .rows = 40, .level = level};
    return SlowStepWatch::IsNeeded(kLevels, prompt, slowdown, 0);
  };
  EXPECT_FALSE(needed({.ttft_ms = 161}, 2, 1)) << "80 ms";
  EXPECT_TRUE(needed({.ttft_ms = 159}, 2, 1));
  EXPECT_TRUE(needed({.ttft_ms = 161}, 2, 1.1));
  EXPECT_FALSE(needed({.ttft_ms = 10}, 0, 1)) << "there is no lower level";
  EXPECT_FALSE(needed({.ttft_ms = 10}, 2, 1, {.level_fixed = true}));
  EXPECT_FALSE(needed({}, 2, 1)) << "no limit";
}

// 40 rows take 48 ms at the middle level and 16 ms at the lowest; the first token is due in 60 ms.
TEST(SlowStepWatchTest, GivesUpAStepThatIsLateAtItsOwnPace) {
  const Pacer pacer({.ttft_ms = 60}, 10);
  const PromptTurn prompt{.pacer = &pacer, .turn = {}, .rows = 40, .level = 1};
  const auto level_at = [&](double whole_ms, int looks) {
    SlowStepWatch watch;
    for (int i = 0; i < looks; ++i) watch.Look(watch.next_look(), watch.next_look() * whole_ms);
    return watch.RestartLevel(kLevels, prompt, 40, 48, 8 * kMs);
  };
  EXPECT_EQ(level_at(50, 4), 1u) << "in time";
  EXPECT_EQ(level_at(80, 4), 0u);
  EXPECT_EQ(level_at(80, 2), 1u) << "one time between looks does not tell";
  EXPECT_EQ(level_at(400, 4), 1u) << "late at every level";
}

}  // namespace
}  // namespace withy::policy
