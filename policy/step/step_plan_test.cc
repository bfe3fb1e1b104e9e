#include "policy/step/step_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "policy/step/step_testing.h"

namespace withy::policy {
namespace {

std::vector<StepCall> RandomCalls(std::mt19937& random) {
  std::vector<StepCall> calls(random() % 12);
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].turn = Arriving(static_cast<int64_t>(random() % 1000),
                             random() % 2 ? random() % 500 : 0, static_cast<int32_t>(random() % 3));
    calls[i].decoding = random() % 2 == 0;
    calls[i].pending_rows = calls[i].decoding ? 1 + static_cast<int32_t>(random() % 4)
                                              : 1 + static_cast<int32_t>(random() % 300);
    calls[i].ready_rows = std::min<int32_t>(calls[i].pending_rows, random() % 200);
    calls[i].reader_behind = random() % 5 == 0;
  }
  return calls;
}

// Whether a prompt with a deadline comes to its end.
bool EndsHurried(const std::vector<StepCall>& calls, const std::vector<int32_t>& rows) {
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool ends = !calls[i].decoding && rows[i] > 0 && rows[i] == calls[i].pending_rows;
    if (ends && calls[i].turn.deadline_ns != 0) return true;
  }
  return false;
}

TEST(DealRowsTest, BoundsHoldAndDecodingNeverWaits) {
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    const std::vector<StepCall> calls = RandomCalls(random);
    const int32_t piece = 8 + static_cast<int32_t>(random() % 100);
    std::vector<int32_t> rows(calls.size());
    int32_t prefill = 0;
    for (const StepEntry& planned : DealRows(calls, piece, 1000)) {
      ASSERT_GT(planned.rows, 0);
      ASSERT_EQ(rows[planned.call], 0) << "one entry a call";
      rows[planned.call] = planned.rows;
      if (!calls[planned.call].decoding) prefill += planned.rows;
    }
    EXPECT_LE(prefill, piece);
    int32_t could = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      const bool may = !calls[i].reader_behind && calls[i].ready_rows > 0;
      EXPECT_LE(rows[i], may ? calls[i].ready_rows : 0);
      if (may && calls[i].decoding) {
        EXPECT_EQ(rows[i], calls[i].ready_rows) << "its whole tree";
      }
      if (may && !calls[i].decoding) could += calls[i].ready_rows;
    }
    if (!EndsHurried(calls, rows)) {
      EXPECT_EQ(prefill, std::min(could, piece)) << "a piece is as full as it can be";
    }
  }
}

TEST(DealRowsTest, APromptWithADeadlineSharesItsTurnWithNobody) {
  std::vector<StepCall> calls = {
      {.turn = Arriving(0), .decoding = false, .pending_rows = 20, .ready_rows = 20},
      {.turn = Arriving(1, 500), .decoding = false, .pending_rows = 100, .ready_rows = 100}};
  const auto rows_of = [&](size_t call) {
    for (const StepEntry& planned : DealRows(calls, 32, 10)) {
      if (planned.call == call) return planned.rows;
    }
    return 0;
  };
  EXPECT_EQ(rows_of(1), 32);
  EXPECT_EQ(rows_of(0), 0);
  calls[1].ready_rows = 24;
  EXPECT_EQ(rows_of(0), 8) << "what it cannot use";
  calls[1].pending_rows = 24;
  EXPECT_EQ(rows_of(1), 24);
  EXPECT_EQ(rows_of(0), 0) << "its first token does not wait for another's rows";
}

// Lets random prefills arrive and run until they are through.
TEST(DealRowsTest, EveryPrefillEndsAndShortOnesAreNotStuckBehindLongOnes) {
  constexpr int32_t kPiece = 32;
  std::vector<StepCall> calls = {
      {.turn = Arriving(0), .decoding = false, .pending_rows = 8000, .ready_rows = 8000}};
  for (int32_t i = 1; i < 8; ++i) {
    calls.push_back({.turn = Arriving(i), .decoding = false, .pending_rows = 40, .ready_rows = 40});
  }
  int steps = 0;
  int short_steps = 0;
  while (
      std::any_of(calls.begin(), calls.end(), [](const auto& c) { return c.pending_rows > 0; })) {
    ASSERT_LT(++steps, 1000);
    int32_t first_rows = 0;
    for (const StepEntry& planned : DealRows(calls, kPiece, 1000)) {
      calls[planned.call].pending_rows -= planned.rows;
      calls[planned.call].ready_rows -= planned.rows;
      if (planned.call == 0) first_rows = planned.rows;
    }
    if (calls[0].pending_rows > 0) {
      EXPECT_GE(first_rows, kPiece / 2) << "its turn: at least half";
    }
    const bool short_left = std::any_of(calls.begin() + 1, calls.end(),
                                        [](const auto& c) { return c.pending_rows > 0; });
    if (short_left) short_steps = steps;
  }
  EXPECT_LE(short_steps, 7 * 40 / (kPiece / 2) + 1);
  EXPECT_LE(steps, (8000 + 7 * 40) / kPiece + 2) << "no piece is wasted";
}

// Plans for calls on the levels of kLevels, at 50 ms a piece and 2 ms a row.
struct Board {
  StepPlan Plan(std::optional<StepUnderWay> under_way = std::nullopt) const {
    return PlanStep({.levels = kLevels,
                     .calls = calls,
                     .under_way = under_way,
                     .slowdown = 1,
                     .sizer = sizer,
                     .now_ns = now_ns});
  }
  // Rows of each call.
  std::vector<int32_t> Rows(std::optional<StepUnderWay> under_way = std::nullopt) const {
    std::vector<int32_t> rows(calls.size());
    for (const StepEntry& entry : Plan(under_way).entries) rows[entry.call] = entry.rows;
    return rows;
  }
  StepCall& Add(const Pacer& pacer, bool decoding, int32_t rows, Turn turn = Arriving(0)) {
    calls.push_back({.turn = turn,
                     .pacer = &pacer,
                     .level = 2,
                     .decoding = decoding,
                     .pending_rows = rows,
                     .ready_rows = rows,
                     .begun = decoding});
    return calls.back();
  }

  std::vector<StepCall> calls;
  PieceSizer sizer{2000, 50, 256};
  int64_t now_ns = 0;
};

using testing::ElementsAre;

TEST(PlanStepTest, APromptAloneGetsAPieceOfManyRows) {
  const Pacer free;
  Board board;
  board.Add(free, false, 300);
  EXPECT_THAT(board.Rows(), ElementsAre(kRowsWithoutAnswers));
  EXPECT_NEAR(board.Plan().expected_ms, 2.0 * kRowsWithoutAnswers, 1e-9);
  board.Add(free, true, 1);
  EXPECT_THAT(board.Rows(), ElementsAre(board.sizer.Rows(1), 1));
}

TEST(PlanStepTest, ACallThatWaitsForKvHoldsNobodyUp) {
  const Pacer free;
  Board board;
  board.Add(free, false, 20).waits_for_kv = true;
  EXPECT_THAT(board.Rows(), ElementsAre(20)) << "alone it waits in its pass";
  board.Add(free, false, 30);
  EXPECT_THAT(board.Rows(), ElementsAre(0, 30));
  board.Add(free, true, 1);
  EXPECT_EQ(board.Rows()[0], 0);
  EXPECT_EQ(board.Rows()[2], 1);
  // While its step stands still, everything else is computed in between.
  board.calls[0].under_way_rows = 20;
  const StepUnderWay stands{.expected_ms = 40, .waits_for_kv = true};
  EXPECT_EQ(board.Rows(stands)[0], 0);
  EXPECT_GT(board.Rows(stands)[1], 0);
  EXPECT_EQ(board.Rows(stands)[2], 1);
  board.calls[1].waits_for_kv = true;
  EXPECT_EQ(board.Rows(stands)[1], 0) << "two would wait";
}

TEST(PlanStepTest, AnAnswersTreeIsComputedWhole) {
  const Pacer free;
  Board board;
  board.Add(free, true, 5);
  board.Add(free, true, 1);
  board.Add(free, true, 3).ready_rows = 2;
  EXPECT_THAT(board.Rows(), ElementsAre(5, 1, 2)) << "as far as there are slots";
  EXPECT_TRUE(board.Plan().has_decode());
  EXPECT_FALSE(board.Plan().has_prefill());
  EXPECT_EQ(board.Plan().OnlyPrompt(), nullptr);
}

TEST(PlanStepTest, APromptThatIsLateGoesOnAtALowerLevel) {
  const Pacer hurried({.ttft_ms = 150}, 10);
  Board board;
  board.Add(hurried, false, 100, Arriving(0, 150 * kMs));
  const StepPlan plan = board.Plan();
  ASSERT_EQ(plan.level_changes.size(), 1u);
  EXPECT_EQ(plan.level_changes[0].from, 2u);
  EXPECT_EQ(plan.level_changes[0].to, 1u) << "200 ms at the full level, 120 at this one";
  EXPECT_NEAR(plan.expected_ms, 120, 1e-9) << "its rows are of the new level";
  board.calls[0].level = std::nullopt;
  EXPECT_THAT(board.Plan().level_changes, testing::IsEmpty()) << "its level is none of the model's";
  EXPECT_NEAR(board.Plan().expected_ms, 200, 1e-9);
}

TEST(PlanStepTest, WhatIsUnderWayKeepsItsLevelAndGetsNoRows) {
  const Pacer hurried({.ttft_ms = 150}, 10);
  Board board;
  board.Add(hurried, false, 100, Arriving(0, 150 * kMs)).under_way_rows = 100;
  const StepPlan plan = board.Plan(StepUnderWay{.expected_ms = 200});
  EXPECT_THAT(plan.level_changes, testing::IsEmpty());
  EXPECT_TRUE(plan.empty());
}

TEST(PlanStepTest, AnUrgentPromptPreemptsAStep) {
  const Pacer free;
  const Pacer hurried({.ttft_ms = 1000}, 10);
  Board board;
  board.Add(free, false, 128).under_way_rows = 128;
  board.Add(hurried, false, 12, Arriving(1, 1000 * kMs));
  board.Add(free, false, 30, Arriving(2));
  board.Add(free, true, 1);
  EXPECT_THAT(board.Rows(StepUnderWay{.expected_ms = 256}), ElementsAre(0, 12, 0, 0));
  board.calls[1].under_way_rows = 8;
  EXPECT_THAT(board.Rows(StepUnderWay{.expected_ms = 256}), ElementsAre(0, 0, 0, 0))
      << "a step with a deadline gives way to none without";
}

TEST(PlanStepTest, AnAnswerThatWouldFallBehindPreemptsAStepOfPrompts) {
  const Pacer free;
  Answer answer({.tpot_ms = 12}, 1000);
  answer.Tokens(81, 10);  // 162 ms to spare, 101 of them in reserve
  Board board;
  board.now_ns = answer.now_ns;
  board.Add(free, false, 128).under_way_rows = 128;
  board.Add(answer.pacer, true, 1);
  const auto rows_after = [&](double done) {
    return board.Rows(StepUnderWay{.expected_ms = 256, .computed_ms = 256 * done, .done = done})[1];
  };
  EXPECT_EQ(rows_after(0.5), 1);
  EXPECT_EQ(rows_after(0.9), 0) << "it can wait for the end";
}

TEST(PlanStepTest, AStepWithAnswersGivesWayOnceAndToAsManyRowsAsTheyBear) {
  const Pacer hurried({.ttft_ms = 10'000}, 10);
  Answer answer({.tpot_ms = 12}, 1000);
  answer.Tokens(81, 10);  // 162 ms to spare, 101 of them in reserve
  Board board;
  board.now_ns = answer.now_ns;
  board.sizer = PieceSizer(1, 50, 64);
  board.Add(answer.pacer, true, 1).under_way_rows = 1;
  board.Add(hurried, false, 300, Arriving(answer.now_ns, answer.now_ns + 9'000 * kMs));
  EXPECT_THAT(board.Rows(StepUnderWay{.expected_ms = 10}), ElementsAre(0, 30));
  EXPECT_TRUE(board.Plan(StepUnderWay{.expected_ms = 10, .preempted = true}).empty());
}

TEST(PlanStepTest, ACallWhoseReaderIsBehindGetsNoRows) {
  const Pacer free;
  Board board;
  board.Add(free, true, 1).reader_behind = true;
  board.Add(free, false, 300);
  EXPECT_THAT(board.Rows(), ElementsAre(0, kRowsWithoutAnswers)) << "nor does it bound the piece";
}

TEST(LeftOfStepMsTest, TheStepsOwnSpeedCountsOnceItTells) {
  EXPECT_DOUBLE_EQ(LeftOfStepMs({.expected_ms = 100, .computed_ms = 30, .done = 0.05}, 1.5), 120);
  EXPECT_DOUBLE_EQ(LeftOfStepMs({.expected_ms = 100, .computed_ms = 30, .done = 0.1}, 1.5), 270);
  EXPECT_DOUBLE_EQ(LeftOfStepMs({.expected_ms = 20, .computed_ms = 30, .done = 0}, 1), 0);
}

}  // namespace
}  // namespace withy::policy
