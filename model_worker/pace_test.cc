#include "model_worker/pace.h"

#include <gtest/gtest.h>

#include <vector>

namespace withy::model_worker {
namespace {

constexpr int64_t kMs = 1'000'000;
// 10 ms a token and 2 ms a row at the full level.
const std::vector<LevelPace> kLevels = {{0.4, 2}, {1.2, 6}, {2, 10}};

// Gives `count` tokens `ms` apart; the level after each.
struct Answer {
  Answer(const PaceLimits& limits, int32_t max_tokens) : pacer(limits, max_tokens) {}
  size_t Tokens(int count, double ms) {
    for (int i = 0; i < count; ++i) {
      now_ns += static_cast<int64_t>(ms * kMs);
      pacer.OnToken(now_ns);
      level = pacer.Choose(kLevels, level, 0);
    }
    return level;
  }
  Pacer pacer;
  int64_t now_ns = 0;
  size_t level = 2;
};

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
    run.pacer.OnPrompt(share);
    return run;
  };
  EXPECT_EQ(after(1.1).Tokens(1, 0), 2u);
  EXPECT_EQ(after(1.3).Tokens(1, 0), 2u) << "11.8 of 12 ms";
  EXPECT_EQ(after(1.6).Tokens(1, 0), 1u) << "13.6 of 12 ms, 8.2 at 60 %";
  EXPECT_EQ(after(3).Tokens(1, 0), 0u);
  EXPECT_EQ(after(1.3).Tokens(20, 11.9), 2u) << "its own times are what counts then";
}

TEST(PacerTest, AnAnswersFirstTokensMayTakeLonger) {
  Answer run({.tpot_ms = 10, .ramp_ms = 25}, 1000);
  EXPECT_EQ(run.pacer.SpareMs(0), std::numeric_limits<double>::infinity()) << "before the first";
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
  run.pacer.Skip(5000 * kMs);
  EXPECT_EQ(run.Tokens(20, 9), 2u);
}

TEST(PacerTest, TheEndIsKeptForAllTokens) {
  Answer run({.end_by_ns = 1000 * kMs}, 100);
  EXPECT_EQ(run.Tokens(50, 9.9), 2u);
  EXPECT_EQ(run.Tokens(1, 20), 1u) << "the tokens that are left no longer fit";
  EXPECT_EQ(Answer({.end_by_ns = 1}, 100).Tokens(10, 5), 0u) << "too late anyway: the fastest";
}

TEST(PacerTest, TheEndIsKeptForTheTokensThatAreExpected) {
  // 100 tokens of 10 ms in a second; nobody knows whether a thousand come.
  const PaceLimits limits{.end_by_ns = 1010 * kMs, .expected_tokens = 100};
  Answer run(limits, 1000);
  EXPECT_EQ(run.Tokens(100, 10), 2u);
  EXPECT_EQ(Answer({.end_by_ns = 1010 * kMs}, 1000).Tokens(10, 10), 0u)
      << "a thousand are asked for";
  EXPECT_EQ(run.Tokens(1, 10), 0u) << "it may end after any token, and is late";
}

TEST(PacerTest, APromptThatIsBehindGoesOnAtTheHighestLevelThatIsInTime) {
  const Pacer pacer({.first_token_by_ns = 1000 * kMs}, 10);
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
  Answer run({.tpot_ms = 10, .level_fixed = true}, 1000);
  EXPECT_EQ(run.Tokens(50, 20), 2u);
  EXPECT_LT(run.pacer.SpareMs(run.now_ns), 0);
  const Pacer pacer({.first_token_by_ns = 1000 * kMs, .level_fixed = true}, 10);
  EXPECT_EQ(pacer.ChooseForPrompt(kLevels, 2, 5000, 0, 1, 0), 2u);
  EXPECT_DOUBLE_EQ(pacer.PromptSpareMs(100, 0), 900);
}

TEST(PacerTest, AFirstTokenHurriesWhereNothingWaitsBehindItOrItIsDue) {
  const auto hurries = [](const PaceLimits& limits, int64_t now_ms) {
    return Pacer(limits, 10).FirstTokenHurries(now_ms * kMs);
  };
  EXPECT_TRUE(hurries({}, 0));
  EXPECT_TRUE(hurries({.first_token_by_ns = 100 * kMs}, 0)) << "no pace to keep";
  EXPECT_FALSE(hurries({.tpot_ms = 10}, 0));
  EXPECT_FALSE(hurries({.tpot_ms = 10, .first_token_by_ns = 100 * kMs}, 97));
  EXPECT_TRUE(hurries({.tpot_ms = 10, .first_token_by_ns = 100 * kMs}, 98));
  EXPECT_TRUE(hurries({.tpot_ms = 10, .first_token_by_ns = 100 * kMs}, 150)) << "late";
}

TEST(PacerTest, APromptFallsForThoseWhoseTurnIsBefore) {
  const Pacer later({.first_token_by_ns = 1000 * kMs}, 10);
  const Pacer sooner({.first_token_by_ns = 500 * kMs}, 10);
  std::vector<PromptTurn> prompts = {
      {.pacer = &later, .order = {.deadline_ns = 1000 * kMs}, .rows = 400, .level = 2},
      {.pacer = &sooner, .order = {.deadline_ns = 500 * kMs}, .rows = 200, .level = 2}};
  EXPECT_EQ(KeepPrompts(kLevels, prompts, 1, 0), (std::vector<size_t>{1, 2}))
      << "600 ms are left of 800, 60 % takes 480";
  prompts.pop_back();
  EXPECT_EQ(KeepPrompts(kLevels, prompts, 1, 0), (std::vector<size_t>{2})) << "alone it is in time";
}

TEST(PacerTest, WhatFallsHasSomeTimeToSpare) {
  // 60 % takes 1.2 ms a row: 100 rows are 120 ms, and 122 are left.
  const Pacer pacer({.first_token_by_ns = 122 * kMs}, 10);
  EXPECT_EQ(pacer.ChooseForPrompt(kLevels, 1, 100, 0, 1, 0), 1u) << "it is in time where it is";
  EXPECT_EQ(pacer.ChooseForPrompt(kLevels, 2, 100, 0, 1, 0), 0u);
}

// At a depth of 1,000 tokens all three levels take 1 ms more for a row and 5 ms for a token.
const std::vector<LevelPace> kDeep = {
    {0.4, 2, 0.001, 0.005}, {1.2, 6, 0.001, 0.005}, {2, 10, 0.001, 0.005}};

TEST(DepthTest, TimesGrowWithTheContext) {
  EXPECT_DOUBLE_EQ(kDeep[2].TokenMs(1000), 15);
  EXPECT_DOUBLE_EQ(kDeep[2].RowsMs(100, 1000), 100 * (2 + 1.05));
  EXPECT_DOUBLE_EQ(kDeep[2].RowsMs(60, 0) + kDeep[2].RowsMs(40, 60), kDeep[2].RowsMs(100, 0))
      << "in any pieces";
}

TEST(DepthTest, APromptBehindALongContextFallsSooner) {
  const Pacer pacer({.first_token_by_ns = 250 * kMs}, 10);
  EXPECT_EQ(pacer.ChooseForPrompt(kDeep, 2, 100, 0, 1, 0), 2u);
  EXPECT_EQ(pacer.ChooseForPrompt(kDeep, 2, 100, 1000, 1, 0), 1u);
  EXPECT_EQ(pacer.ChooseForPrompt(kDeep, 2, 100, 5000, 1, 0), 0u);
  const PromptTurn turn{.pacer = &pacer, .order = {}, .rows = 100, .level = 2, .depth = 1000};
  EXPECT_EQ(KeepPrompts(kDeep, std::vector{turn}, 1, 0), (std::vector<size_t>{1}));
}

TEST(DepthTest, AnAnswerBehindALongContextIsJudgedByItsDepth) {
  // 12 ms are allowed: enough for the full model in a short context, for 60 % in a long one.
  const auto first = [](int32_t depth) {
    Pacer pacer({.tpot_ms = 12}, 1000);
    pacer.OnToken(0);
    return pacer.Choose(kDeep, 2, depth);
  };
  EXPECT_EQ(first(0), 2u);
  EXPECT_EQ(first(1000), 1u);
  EXPECT_EQ(first(3000), 0u);
  // 1,000 tokens at 10 ms would be in time but for their own depth, which adds 2.5 ms to each.
  Pacer pacer({.end_by_ns = 11'000 * kMs}, 1000);
  pacer.OnToken(0);
  EXPECT_EQ(pacer.Choose(kDeep, 2, 0), 1u);
  Pacer flat({.end_by_ns = 11'000 * kMs}, 1000);
  flat.OnToken(0);
  EXPECT_EQ(flat.Choose(kLevels, 2, 0), 2u);
}

TEST(DepthTest, RowsBesideAnswersCountWhatBothTake) {
  Pacer answer({.tpot_ms = 100}, 100);
  answer.OnToken(0);
  const Pacer prompt;
  const auto rows = [&](int32_t answer_depth, int32_t prompt_depth) {
    const AnswerTurn turn{.pacer = &answer, .level = 2, .depth = answer_depth};
    const PromptTurn turns{
        .pacer = &prompt, .order = {}, .rows = 200, .level = 2, .depth = prompt_depth};
    return RowsBeside(kDeep, std::vector{turn}, std::vector{turns}, 128, 1, 0);
  };
  EXPECT_GT(rows(0, 0), rows(0, 2000));
  EXPECT_GT(rows(0, 0), rows(4000, 0));
}

TEST(SlowdownTest, FollowsWhatIsSeen) {
  Slowdown slowdown;
  for (int i = 0; i < 50; ++i) slowdown.Observe(150, 100);
  EXPECT_NEAR(slowdown.value(), 1.5, 0.01);
  slowdown.Observe(1e6, 100);
  EXPECT_LT(slowdown.value(), 2.1) << "one stall is not the pace";
  slowdown.Observe(100, 0);
  EXPECT_LT(slowdown.value(), 2.1) << "nothing was expected";
}

// An answer at the full level that has had `tokens` tokens, 10 ms apart, and may take 12 a token.
struct Beside {
  explicit Beside(int tokens, double tpot_ms = 12) : answer({.tpot_ms = tpot_ms}, 1000) {
    answer.Tokens(tokens, 10);
  }
  int32_t Rows(const PaceLimits& limits, int32_t rows, size_t level, int32_t at_most = 64,
               double slowdown = 1, int64_t arrived_ns = 0) const {
    const Pacer pacer(limits, 10);
    const std::vector<AnswerTurn> answers = {{.pacer = &answer.pacer, .level = answer.level}};
    const std::vector<PromptTurn> prompts = {
        {.pacer = &pacer, .order = {.arrived_ns = arrived_ns}, .rows = rows, .level = level}};
    return RowsBeside(kLevels, answers, prompts, at_most, slowdown, answer.now_ns);
  }
  Answer answer;
};

TEST(RowsBesideTest, AsManyAsTheAnswerBears) {
  const PaceLimits later{.first_token_by_ns = 10'000 * kMs};
  EXPECT_EQ(Beside(1).Rows(later, 300, 2), 0) << "2 ms to spare, a row takes as much";
  EXPECT_EQ(Beside(21).Rows(later, 300, 2), 0) << "42 ms to spare, and 41 in reserve";
  EXPECT_EQ(Beside(81).Rows(later, 300, 2), 30) << "162 ms to spare, and 101 in reserve";
  EXPECT_EQ(Beside(81).Rows(later, 300, 1), 50);
  EXPECT_EQ(Beside(81).Rows(later, 300, 0), 64) << "at most";
  EXPECT_EQ(Beside(81).Rows(later, 300, 1, 64, 2), 25);
  EXPECT_EQ(Beside(21, 40).Rows(later, 300, 2, 256), 242) << "630 ms to spare, and 146 in reserve";
  EXPECT_EQ(Beside(21, 0).Rows(later, 300, 2), 64) << "it has no limit";
  EXPECT_EQ(Beside(21, 5).Rows(later, 300, 2), 64) << "it is late, and falls behind further";
}

TEST(RowsBesideTest, AnAnswerThatCanCatchUpDoes) {
  Beside beside(6);  // 22 ms to spare
  beside.answer.now_ns += 37 * kMs;
  EXPECT_EQ(beside.Rows({}, 300, 2), 0) << "15 ms behind: it gains 16 in 8 tokens";
  beside.answer.now_ns += kMs;
  EXPECT_EQ(beside.Rows({}, 300, 2), 64);
}

TEST(RowsBesideTest, APromptThatCannotWaitForTheReserveHasIt) {
  const Beside beside(81);
  const auto rows = [&](int64_t spare_ms) {  // beside 600 ms of work
    const PaceLimits limits{.first_token_by_ns = beside.answer.now_ns + (600 + spare_ms) * kMs};
    return beside.Rows(limits, 300, 2, 128);
  };
  EXPECT_EQ(rows(112), 30);
  EXPECT_EQ(rows(110), 81) << "a step of the answer takes 10, its reserve 101";
  EXPECT_EQ(rows(9), 128);
}

TEST(RowsBesideTest, APromptThatCannotWaitGoesOn) {
  const auto due_in = [](int64_t ms) { return PaceLimits{.first_token_by_ns = (10 + ms) * kMs}; };
  EXPECT_EQ(Beside(1).Rows(due_in(615), 300, 2), 0) << "600 ms of work, 15 to spare";
  EXPECT_EQ(Beside(1).Rows(due_in(605), 300, 2), 64) << "a step of the answer takes 10";
  EXPECT_EQ(Beside(1).Rows(due_in(605), 300, 1), 0) << "at 60 % it can wait";
}

TEST(RowsBesideTest, PatienceHasAnEnd) {
  EXPECT_EQ(Beside(1).Rows({}, 300, 2), 0);
  EXPECT_EQ(Beside(1).Rows({}, 300, 2, 64, 1, -kPatienceNs), 64);
}

TEST(RowsBesideTest, WithoutAnswersThePieceIsWhatItMayBe) {
  const Pacer pacer({.first_token_by_ns = 1000 * kMs}, 10);
  const std::vector<PromptTurn> prompts = {{.pacer = &pacer, .order = {}, .rows = 9, .level = 1}};
  EXPECT_EQ(RowsBeside(kLevels, {}, prompts, 64, 1, 0), 64);
  EXPECT_DOUBLE_EQ(RowShare(kLevels, prompts), 0.6);
  EXPECT_DOUBLE_EQ(RowShare(kLevels, {}), 1);
}

TEST(TokenGoesBetweenTest, WhenItWouldFallBehindAndPromptsCanWait) {
  const auto goes = [](const Beside& beside, const PaceLimits& limits, double left_ms,
                       double slowdown = 1) {
    const Pacer pacer(limits, 10);
    const std::vector<PromptTurn> prompts = {
        {.pacer = &pacer, .order = {.arrived_ns = 0}, .rows = 100, .level = 1}};
    return TokenGoesBetween(kLevels, {.pacer = &beside.answer.pacer, .level = 2}, prompts, left_ms,
                            slowdown, beside.answer.now_ns);
  };
  const Beside beside(6);  // 22 ms to spare, a token takes 10
  EXPECT_TRUE(goes(beside, {}, 13));
  EXPECT_FALSE(goes(Beside(81), {}, 61)) << "172 to spare, 101 in reserve: it has time for all";
  EXPECT_TRUE(goes(Beside(81), {}, 62));
  EXPECT_FALSE(goes(Beside(6, 0), {}, 13)) << "it has no limit";
  EXPECT_FALSE(goes(Beside(6, 5), {}, 13)) << "it is late, and falls behind further";
  // At 60 ms; 13 ms of the step and 120 after it are left to do.
  const auto due_in = [](int64_t ms) { return PaceLimits{.first_token_by_ns = (60 + ms) * kMs}; };
  EXPECT_TRUE(goes(beside, due_in(144), 13));
  EXPECT_FALSE(goes(beside, due_in(142), 13));
  EXPECT_FALSE(goes(beside, due_in(144), 13, 2));
  // An answer that is in time without its reserve of 26 ms has it when prompts can wait.
  EXPECT_TRUE(goes(beside, due_in(11 + 120 + 36), 11));
  EXPECT_FALSE(goes(beside, due_in(11 + 120 + 35), 11));
}

TEST(PacerTest, TheLastTokenChangesNothing) {
  EXPECT_EQ(Answer({.tpot_ms = 1}, 1).Tokens(1, 100), 2u);
  EXPECT_EQ(Answer({.tpot_ms = 1}, 2).Tokens(1, 100), 0u);
}

TEST(YoungStepTest, TellsWhatTheRestTakes) {
  YoungStep step;
  EXPECT_EQ(step.next_look(), 0.04);
  step.Look(0.04, 3);  // with what comes before the first layer
  EXPECT_EQ(step.WholeMs(), 0) << "not known";
  step.Look(0.08, 4);
  step.Look(0.12, 9);  // somebody had the core for 4 ms
  EXPECT_EQ(step.next_look(), 0.16);
  step.Look(0.16, 10);
  EXPECT_EQ(step.next_look(), 1);
  EXPECT_NEAR(step.WholeMs(), 25, 1e-9);
  EXPECT_NEAR(step.LeftMs(), 21, 1e-9);
}

TEST(YoungStepTest, LayersMayBeLongerThanTheSpaceBetweenLooks) {
  YoungStep step;
  step.Look(0.13, 2);
  EXPECT_EQ(step.next_look(), 0.16);
  step.Look(0.25, 3.2);
  EXPECT_EQ(step.next_look(), 1);
  EXPECT_EQ(step.WholeMs(), 0) << "one time between looks may be a moment without a core";
  YoungStep two;
  two.Look(0.07, 1);
  two.Look(0.14, 1.7);
  two.Look(0.21, 6);
  EXPECT_EQ(two.next_look(), 1);
  EXPECT_NEAR(two.WholeMs(), 10, 1e-9) << "the lower one";
  YoungStep shallow;
  shallow.Look(0.5, 2);
  EXPECT_EQ(shallow.next_look(), 1);
  EXPECT_EQ(shallow.WholeMs(), 0) << "one look tells nothing";
}

// The first token is to be there in 60 ms.
TEST(BeginsAgainTest, OnlyWhereALowerLevelMakesIt) {
  const Pacer pacer({.first_token_by_ns = 60 * kMs}, 10);
  const PromptTurn prompt{.pacer = &pacer, .order = {}, .rows = 40, .level = 1};
  EXPECT_EQ(BeginsAgainAt(kLevels, prompt, 40, 40, 1, 8 * kMs), 1u) << "in time";
  EXPECT_EQ(BeginsAgainAt(kLevels, prompt, 40, 60, 1.5, 8 * kMs), 0u) << "24 ms there";
  EXPECT_EQ(BeginsAgainAt(kLevels, prompt, 30, 50, 1.5, 8 * kMs), 0u)
      << "18 ms more for the other rows";
  EXPECT_EQ(BeginsAgainAt(kLevels, prompt, 30, 30, 1.5, 8 * kMs), 1u);
  EXPECT_EQ(BeginsAgainAt(kLevels, prompt, 40, 80, 4, 8 * kMs), 1u) << "late everywhere";
  const PromptTurn full{.pacer = &pacer, .order = {}, .rows = 24, .level = 2};
  EXPECT_EQ(BeginsAgainAt(kLevels, full, 24, 70, 1.5, 8 * kMs), 1u) << "the highest that makes it";
  const PromptTurn lowest{.pacer = &pacer, .order = {}, .rows = 40, .level = 0};
  EXPECT_EQ(BeginsAgainAt(kLevels, lowest, 40, 80, 1, 8 * kMs), 0u);
  const Pacer fixed({.first_token_by_ns = 60 * kMs, .level_fixed = true}, 10);
  const PromptTurn stays{.pacer = &fixed, .order = {}, .rows = 40, .level = 1};
  EXPECT_EQ(BeginsAgainAt(kLevels, stays, 40, 60, 1.5, 8 * kMs), 1u);
  const Pacer unlimited;
  const PromptTurn free{.pacer = &unlimited, .order = {}, .rows = 40, .level = 2};
  EXPECT_EQ(BeginsAgainAt(kLevels, free, 40, 1e6, 1, 8 * kMs), 2u);
}

}  // namespace
}  // namespace withy::model_worker
