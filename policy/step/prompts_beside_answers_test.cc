#include "policy/step/prompts_beside_answers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "policy/step/step_testing.h"

namespace withy::policy {
namespace {

TEST(PromptRowsBesideAnswersTest, DepthCountsWhatBothTake) {
  Pacer answer({.tpot_ms = 100}, 100);
  answer.OnTokens(0);
  const Pacer prompt;
  const auto rows = [&](int32_t answer_depth, int32_t prompt_depth) {
    const AnswerTurn turn{.pacer = &answer, .level = 2, .depth = answer_depth};
    const PromptTurn turns{
        .pacer = &prompt, .turn = {}, .rows = 200, .level = 2, .depth = prompt_depth};
    return PromptRowsBesideAnswers(kDeepLevels, std::vector{turn}, std::vector{turns}, 128, 1, 0);
  };
  EXPECT_GT(rows(0, 0), rows(0, 2000));
  EXPECT_GT(rows(0, 0), rows(4000, 0));
}

struct Beside {
  explicit Beside(int tokens, double tpot_ms = 12) : answer({.tpot_ms = tpot_ms}, 1000) {
    answer.Tokens(tokens, 10);
  }
  int32_t Rows(const CallTargets& limits, int32_t rows, size_t level, int32_t at_most = 64,
               double slowdown = 1, int64_t arrived_ns = 0) const {
    const Pacer pacer(limits, 10);
    const std::vector<AnswerTurn> answers = {{.pacer = &answer.pacer, .level = answer.level}};
    const std::vector<PromptTurn> prompts = {
        {.pacer = &pacer, .turn = {.arrived_ns = arrived_ns}, .rows = rows, .level = level}};
    return PromptRowsBesideAnswers(kLevels, answers, prompts, at_most, slowdown, answer.now_ns);
  }
  Answer answer;
};

TEST(PromptRowsBesideAnswersTest, AsManyAsTheAnswerBears) {
  const CallTargets later{.ttft_ms = 10'000};
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

TEST(PromptRowsBesideAnswersTest, AnAnswerThatCanCatchUpDoes) {
  Beside beside(6);  // 22 ms to spare
  beside.answer.now_ns += 37 * kMs;
  EXPECT_EQ(beside.Rows({}, 300, 2), 0) << "15 ms behind: it gains 16 in 8 tokens";
  beside.answer.now_ns += kMs;
  EXPECT_EQ(beside.Rows({}, 300, 2), 64);
}

TEST(PromptRowsBesideAnswersTest, APromptThatCannotWaitForTheReserveHasIt) {
  const Beside beside(81);
  const auto rows = [&](int64_t spare_ms) {  // beside 600 ms of work
    const CallTargets limits{.ttft_ms = static_cast<double>(beside.answer.now_ns) / kMs + 600.0 +
                                        static_cast<double>(spare_ms)};
    return beside.Rows(limits, 300, 2, 128);
  };
  EXPECT_EQ(rows(112), 30);
  EXPECT_EQ(rows(110), 81) << "a step of the answer takes 10, its reserve 101";
  EXPECT_EQ(rows(9), 128);
}

TEST(PromptRowsBesideAnswersTest, APromptThatCannotWaitGoesOn) {
  const auto due_in = [](int64_t ms) {
    return CallTargets{.ttft_ms = static_cast<double>(10 + ms)};
  };
  EXPECT_EQ(Beside(1).Rows(due_in(615), 300, 2), 0) << "600 ms of work, 15 to spare";
  EXPECT_EQ(Beside(1).Rows(due_in(605), 300, 2), 64) << "a step of the answer takes 10";
  EXPECT_EQ(Beside(1).Rows(due_in(605), 300, 1), 0) << "at 60 % it can wait";
}

TEST(PromptRowsBesideAnswersTest, PatienceHasAnEnd) {
  EXPECT_EQ(Beside(1).Rows({}, 300, 2), 0);
  EXPECT_EQ(Beside(1).Rows({}, 300, 2, 64, 1, -kPatienceNs), 64);
}

TEST(PromptRowsBesideAnswersTest, WithoutAnswersThePieceIsWhatItMayBe) {
  const Pacer pacer({.ttft_ms = 1000}, 10);
  const std::vector<PromptTurn> prompts = {{.pacer = &pacer, .turn = {}, .rows = 9, .level = 1}};
  EXPECT_EQ(PromptRowsBesideAnswers(kLevels, {}, prompts, 64, 1, 0), 64);
  EXPECT_DOUBLE_EQ(RowTimeShare(kLevels, prompts), 0.6);
  EXPECT_DOUBLE_EQ(RowTimeShare(kLevels, {}), 1);
}

TEST(PromptRowsBesideAnswersTest, ATreesRowsTakeTime) {
  const Beside beside(81);
  const Pacer pacer({.ttft_ms = 10'000}, 10);
  const std::vector<PromptTurn> prompts = {
      {.pacer = &pacer, .turn = {.arrived_ns = 0}, .rows = 300, .level = 2}};
  const auto rows = [&](int32_t tree_rows) {
    const std::vector<AnswerTurn> answers = {
        {.pacer = &beside.answer.pacer, .level = 2, .rows = tree_rows}};
    return PromptRowsBesideAnswers(kLevels, answers, prompts, 64, 1, beside.answer.now_ns);
  };
  EXPECT_EQ(rows(1), 30);
  EXPECT_LT(rows(5), 30);
}

TEST(PromptPreemptsStepTest, AnEarlierDeadlineThanAllPromptsUnderWay) {
  const std::vector<Turn> none;
  const std::vector<Turn> prompts = {Arriving(1, 200), Arriving(2, 300)};
  EXPECT_TRUE(PromptPreemptsStep(Arriving(5, 100), false, prompts, 10));
  EXPECT_TRUE(PromptPreemptsStep(Arriving(5, 100), true, prompts, 10));
  EXPECT_FALSE(PromptPreemptsStep(Arriving(5, 250), false, prompts, 10));
  EXPECT_TRUE(PromptPreemptsStep(Arriving(5, 250), false, none, 10)) << "the step only decodes";
}

TEST(PromptPreemptsStepTest, WithoutDeadlinesTheFirstRowsOnly) {
  const std::vector<Turn> none;
  const std::vector<Turn> patient = {Arriving(1)};
  const std::vector<Turn> hurried = {Arriving(1), Arriving(2, 300)};
  EXPECT_TRUE(PromptPreemptsStep(Arriving(5), false, patient, 10));
  EXPECT_FALSE(PromptPreemptsStep(Arriving(5), true, patient, 10));
  EXPECT_FALSE(PromptPreemptsStep(Arriving(5), false, hurried, 10));
  EXPECT_FALSE(PromptPreemptsStep(Arriving(5), false, none, 10)) << "it joins the next step";
}

TEST(AnswerPreemptsStepTest, WhenItWouldFallBehindAndPromptsCanWait) {
  const auto goes = [](const Beside& beside, const CallTargets& limits, double left_ms,
                       double slowdown = 1) {
    const Pacer pacer(limits, 10);
    const std::vector<PromptTurn> prompts = {
        {.pacer = &pacer, .turn = {.arrived_ns = 0}, .rows = 100, .level = 1}};
    return AnswerPreemptsStep(kLevels, {.pacer = &beside.answer.pacer, .level = 2}, prompts,
                              left_ms, slowdown, beside.answer.now_ns);
  };
  const Beside beside(6);  // 22 ms to spare, a token takes 10
  EXPECT_TRUE(goes(beside, {}, 13));
  EXPECT_FALSE(goes(Beside(81), {}, 61)) << "172 to spare, 101 in reserve: it has time for all";
  EXPECT_TRUE(goes(Beside(81), {}, 62));
  EXPECT_FALSE(goes(Beside(6, 0), {}, 13)) << "it has no limit";
  EXPECT_FALSE(goes(Beside(6, 5), {}, 13)) << "it is late, and falls behind further";
  // At 60 ms; 13 ms of the step and 120 after it are left to do.
  const auto due_in = [](int64_t ms) {
    return CallTargets{.ttft_ms = static_cast<double>(60 + ms)};
  };
  EXPECT_TRUE(goes(beside, due_in(144), 13));
  EXPECT_FALSE(goes(beside, due_in(142), 13));
  EXPECT_FALSE(goes(beside, due_in(144), 13, 2));
  // An answer that is in time without its reserve of 26 ms has it when prompts can wait.
  EXPECT_TRUE(goes(beside, due_in(11 + 120 + 36), 11));
  EXPECT_FALSE(goes(beside, due_in(11 + 120 + 35), 11));
}

}  // namespace
}  // namespace withy::policy
