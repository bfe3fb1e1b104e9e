#include "policy/call/pace.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "policy/step/step_testing.h"

namespace withy::policy {
namespace {

TEST(PacerTest, ACallWithoutLimitsKeepsItsLevel) {
  Answer run({}, 1000);
  EXPECT_EQ(run.Tokens(500, 1000), 2u);
}

TEST(PacerTest, ACallInTimeKeepsItsLevel) {
  Answer run({.tpot_ms = 10}, 1000);
  EXPECT_EQ(run.Tokens(900, 10), 2u);
}

TEST(PacerTest, ASlowCallGoesToTheHighestLevelThatIsInTime) {
  Answer run({.tpot_ms = 10}, 1000);
  EXPECT_EQ(run.Tokens(1, 12), 2u);
  EXPECT_EQ(run.Tokens(1, 12), 1u) << "2 ms are missing, 60 % takes 6 ms a token";
  EXPECT_EQ(run.Tokens(200, 7.2), 1u);
  Answer slower({.tpot_ms = 10}, 1000);
  EXPECT_EQ(slower.Tokens(2, 30), 0u) << "20 ms are missing, 60 % would make up for 16";
  EXPECT_EQ(slower.Tokens(4, 30), 0u) << "there is none lower";
}

TEST(PacerTest, AnAnswerAfterASlowPromptBeginsLower) {
  const auto after = [](double share) {
    Answer run({.tpot_ms = 12}, 1000);
    run.pacer.OnPromptStep(share);
    return run;
  };
  EXPECT_EQ(after(1.1).Tokens(1, 0), 2u);
  EXPECT_EQ(after(1.3).Tokens(1, 0), 2u) << "11.8 of 12 ms";
  EXPECT_EQ(after(1.6).Tokens(1, 0), 1u) << "13.6 of 12 ms, 8.2 at 60 %";
  EXPECT_EQ(after(3).Tokens(1, 0), 0u);
  EXPECT_EQ(after(1.3).Tokens(20, 11.9), 2u) << "its own times are what counts then";
}

TEST(PacerTest, AnAnswersFirstTokensMayTakeLonger) {
  Answer run({.tpot_ms = 35, .ramp_ms = 25}, 1000);
  EXPECT_EQ(run.pacer.SpareMs(0), kNoLimit) << "before the first";
  EXPECT_EQ(run.Tokens(3, 20), 2u) << "20 ms more than two tokens may take otherwise";
  EXPECT_DOUBLE_EQ(run.pacer.SpareMs(run.now_ns), 3 * 10 + 25 - 2 * 20);
  EXPECT_EQ(Answer({.tpot_ms = 10}, 1000).Tokens(3, 20), 0u);
}

TEST(PacerTest, OneStallIsNotThePace) {
  Answer run({.tpot_ms = 10}, 1000);
  run.Tokens(50, 8);
  run.Tokens(1, 80);  // within what the tokens before have saved
  EXPECT_EQ(run.Tokens(100, 8), 2u);
}

TEST(PacerTest, WhatWasSavedMayBeSpent) {
  Answer run({.tpot_ms = 10}, 1000);
  run.Tokens(100, 8);
  EXPECT_EQ(run.Tokens(50, 11), 2u) << "200 ms were saved, a millisecond a token is lost";
  EXPECT_EQ(run.Tokens(120, 11), 2u);
  EXPECT_LT(run.Tokens(29, 11), 2u) << "before it is gone";
}

TEST(PacerTest, AReaderWhoIsBehindCostsNoLevel) {
  Answer run({.tpot_ms = 10}, 1000);
  run.Tokens(10, 9);
  run.now_ns += 5000 * kMs;
  run.pacer.SkipReaderPause(5000 * kMs);
  EXPECT_EQ(run.Tokens(20, 9), 2u);
}

TEST(PacerTest, TheEndIsKeptForAllTokens) {
  Answer run({.end_to_end_ms = 1000}, 100);
  EXPECT_EQ(run.Tokens(50, 9.9), 2u);
  EXPECT_EQ(run.Tokens(1, 20), 1u) << "the tokens that are left no longer fit";
  EXPECT_EQ(Answer({.end_to_end_ms = 0.001}, 100).Tokens(10, 5), 0u)
      << "too late anyway: the fastest";
}

TEST(PacerTest, TheEndIsKeptForTheTokensThatAreExpected) {
  // 100 tokens of 10 ms in a second; nobody knows whether a thousand come.
  Answer run({.end_to_end_ms = 1010}, 1000, {.expected_tokens = 100});
  EXPECT_EQ(run.Tokens(100, 10), 2u);
  EXPECT_EQ(Answer({.end_to_end_ms = 1010}, 1000).Tokens(10, 10), 0u) << "a thousand are asked for";
  EXPECT_EQ(run.Tokens(1, 10), 0u) << "it may end after any token, and is late";
}

TEST(PacerTest, APromptThatIsBehindGoesOnAtTheHighestLevelThatIsInTime) {
  const Pacer pacer({.ttft_ms = 1000}, 10);
  const auto choose = [&](int32_t rows, double slowdown, int64_t now_ms) {
    return pacer.ChooseForPrompt(kLevels, 2, rows, 0, slowdown, now_ms * kMs);
  };
  EXPECT_EQ(choose(500, 1, 0), 2u);
  EXPECT_EQ(choose(500, 1, 1), 1u) << "1,000 ms in 999";
  EXPECT_EQ(choose(500, 2, 0), 0u) << "60 % takes 1,200 ms on so busy a board";
  EXPECT_EQ(choose(500, 1, 2000), 0u) << "too late anyway: the fastest";
  EXPECT_EQ(choose(0, 1, 999), 2u);
  EXPECT_EQ(Pacer({.tpot_ms = 1}, 10).ChooseForPrompt(kLevels, 2, 500, 0, 1, 0), 2u) << "no limit";
}

TEST(PacerTest, ALevelThatTheCallerFixedStaysAndItsLimitsCount) {
  Answer run({.tpot_ms = 10}, 1000, {.level_fixed = true});
  EXPECT_EQ(run.Tokens(50, 20), 2u);
  EXPECT_LT(run.pacer.SpareMs(run.now_ns), 0);
  const Pacer pacer({.ttft_ms = 1000}, 10, {.level_fixed = true});
  EXPECT_EQ(pacer.ChooseForPrompt(kLevels, 2, 5000, 0, 1, 0), 2u);
  EXPECT_DOUBLE_EQ(pacer.PromptSpareMs(100, 0), 900);
}

TEST(PacerTest, AFirstTokenIsUrgentWhereNothingWaitsBehindItOrItIsDue) {
  const auto hurries = [](const CallTargets& limits, int64_t now_ms) {
    return Pacer(limits, 10).FirstTokenIsUrgent(now_ms * kMs);
  };
  EXPECT_TRUE(hurries({}, 0));
  EXPECT_TRUE(hurries({.ttft_ms = 100}, 0)) << "no pace to keep";
  EXPECT_FALSE(hurries({.tpot_ms = 10}, 0));
  EXPECT_FALSE(hurries({.ttft_ms = 100, .tpot_ms = 10}, 97));
  EXPECT_TRUE(hurries({.ttft_ms = 100, .tpot_ms = 10}, 98));
  EXPECT_TRUE(hurries({.ttft_ms = 100, .tpot_ms = 10}, 150)) << "late";
}

TEST(PacerTest, WhatFallsHasSomeTimeToSpare) {
  // 60 % takes 1.2 ms a row: 100 rows are 120 ms, and 122 are left.
  const Pacer pacer({.ttft_ms = 122}, 10);
  EXPECT_EQ(pacer.ChooseForPrompt(kLevels, 1, 100, 0, 1, 0), 1u) << "it is in time where it is";
  EXPECT_EQ(pacer.ChooseForPrompt(kLevels, 2, 100, 0, 1, 0), 0u);
}

TEST(DepthTest, TimesGrowWithTheContext) {
  EXPECT_DOUBLE_EQ(kDeepLevels[2].TokenMs(1000), 15);
  EXPECT_DOUBLE_EQ(kDeepLevels[2].RowsMs(100, 1000), 100 * (2 + 1.05));
  EXPECT_DOUBLE_EQ(kDeepLevels[2].RowsMs(60, 0) + kDeepLevels[2].RowsMs(40, 60),
                   kDeepLevels[2].RowsMs(100, 0))
      << "in any pieces";
}

TEST(DepthTest, AnAnswerBehindALongContextIsJudgedByItsDepth) {
  // 12 ms are allowed: enough for the full model in a short context, for 60 % in a long one.
  const auto first = [](int32_t depth) {
    Pacer pacer({.tpot_ms = 12}, 1000);
    pacer.OnTokens(0);
    return pacer.Choose(kDeepLevels, 2, depth);
  };
  EXPECT_EQ(first(0), 2u);
  EXPECT_EQ(first(1000), 1u);
  EXPECT_EQ(first(3000), 0u);
  // 1,000 tokens at 10 ms would be in time but for their own depth, which adds 2.5 ms to each.
  Pacer pacer({.end_to_end_ms = 11'000}, 1000);
  pacer.OnTokens(0);
  EXPECT_EQ(pacer.Choose(kDeepLevels, 2, 0), 1u);
  Pacer flat({.end_to_end_ms = 11'000}, 1000);
  flat.OnTokens(0);
  EXPECT_EQ(flat.Choose(kLevels, 2, 0), 2u);
}

TEST(PacerTest, TheLastTokenChangesNothing) {
  EXPECT_EQ(Answer({.tpot_ms = 1}, 1).Tokens(1, 100), 2u);
  EXPECT_EQ(Answer({.tpot_ms = 1}, 2).Tokens(1, 100), 0u);
}

TEST(PacerTest, TokensOfOneStepShareItsTime) {
  const auto level_after = [](int32_t tokens_a_step, double step_ms) {
    Pacer pacer({.tpot_ms = 10}, 1000);
    pacer.OnTokens(0);
    size_t level = 2;
    for (int step = 1; step <= 20; ++step) {
      pacer.OnTokens(static_cast<int64_t>(step * step_ms * kMs), tokens_a_step);
      level = pacer.Choose(kLevels, level, 0);
    }
    return level;
  };
  EXPECT_EQ(level_after(1, 30), 0u);
  EXPECT_EQ(level_after(3, 30), 2u);
  EXPECT_EQ(level_after(3, 33), 0u);
  EXPECT_EQ(level_after(4, 33), 2u);
}

TEST(FirstTokenLeadTest, AnUrgentOneHasMore) {
  EXPECT_GT(FirstTokenLeadUs(true), FirstTokenLeadUs(false));
}

}  // namespace
}  // namespace withy::policy
