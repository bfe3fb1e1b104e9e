#include "model_worker/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace withy::model_worker {
namespace {

using testing::ElementsAre;

constexpr int64_t kSecond = 1'000'000'000;

CallOrder Order(int64_t arrived, int64_t deadline = 0, int32_t priority = 0) {
  return {.deadline_ns = deadline,
          .priority = priority,
          .arrived_ns = arrived,
          .sequence = static_cast<uint64_t>(arrived)};
}

TEST(ComesBeforeTest, DeadlineThenPriorityThenArrival) {
  EXPECT_TRUE(ComesBefore(Order(5, 100), Order(1), 10));
  EXPECT_TRUE(ComesBefore(Order(5, 100), Order(1, 200), 10));
  EXPECT_TRUE(ComesBefore(Order(5, 0, 3), Order(1), 10));
  EXPECT_FALSE(ComesBefore(Order(5, 200, 3), Order(1, 100), 10));
  EXPECT_TRUE(ComesBefore(Order(1), Order(5), 10));
}

TEST(ComesBeforeTest, LongWaitGoesBeforeUrgency) {
  const int64_t now = 100 * kSecond;
  EXPECT_TRUE(ComesBefore(Order(now - kPatienceNs), Order(now - 1, now + 1, 10), now));
}

TEST(ChooseStartsTest, OneCallAContextAndOthersPass) {
  const std::vector<WaitingCall> waiting = {{Order(1), "a"}, {Order(2), "a"}, {Order(3), "b"},
                                            {Order(4), ""},  {Order(5), ""},  {Order(6), "c"}};
  const std::string_view busy[] = {"c"};
  EXPECT_THAT(ChooseStarts(waiting, busy, 10, 10), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(ChooseStarts(waiting, busy, 2, 10), ElementsAre(0, 2));
  EXPECT_THAT(ChooseStarts(waiting, {}, 0, 10), ElementsAre());
}

TEST(ChooseStartsTest, NobodyStarvesBehindAStreamOfUrgentCalls) {
  // One patient call; an urgent one arrives for each that starts.
  std::vector<WaitingCall> waiting = {{Order(0), ""}};
  int64_t now = 0;
  for (int step = 0; step < 1000; ++step) {
    now += kSecond / 10;
    waiting.push_back({Order(now, now + 1, 10), ""});
    const size_t started = ChooseStarts(waiting, {}, 1, now).front();
    if (started == 0) {
      EXPECT_LE(now, kPatienceNs + kSecond);
      return;
    }
    waiting.erase(waiting.begin() + static_cast<int64_t>(started));
  }
  FAIL() << "it never started";
}

std::vector<RunningCall> RandomCalls(std::mt19937& random) {
  std::vector<RunningCall> calls(random() % 12);
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].order = Order(static_cast<int64_t>(random() % 1000), random() % 2 ? random() % 500 : 0,
                           static_cast<int32_t>(random() % 3));
    calls[i].decoding = random() % 2 == 0;
    calls[i].pending_rows = calls[i].decoding ? 1 : 1 + static_cast<int32_t>(random() % 300);
    calls[i].ready_rows = std::min<int32_t>(calls[i].pending_rows, random() % 200);
    calls[i].paused = random() % 5 == 0;
  }
  return calls;
}

// Whether a prompt with a deadline comes to its end.
bool EndsHurried(const std::vector<RunningCall>& calls, const std::vector<int32_t>& rows) {
  for (size_t i = 0; i < calls.size(); ++i) {
    const bool ends = !calls[i].decoding && rows[i] > 0 && rows[i] == calls[i].pending_rows;
    if (ends && calls[i].order.deadline_ns != 0) return true;
  }
  return false;
}

TEST(PlanStepTest, BoundsHoldAndDecodingNeverWaits) {
  std::mt19937 random(3);
  for (int round = 0; round < 5000; ++round) {
    const std::vector<RunningCall> calls = RandomCalls(random);
    const int32_t piece = 8 + static_cast<int32_t>(random() % 100);
    std::vector<int32_t> rows(calls.size());
    int32_t prefill = 0;
    for (const PlannedRows& planned : PlanStep(calls, piece, 1000)) {
      ASSERT_GT(planned.rows, 0);
      ASSERT_EQ(rows[planned.call], 0) << "one entry a call";
      rows[planned.call] = planned.rows;
      if (!calls[planned.call].decoding) prefill += planned.rows;
    }
    EXPECT_LE(prefill, piece);
    int32_t could = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      const bool may = !calls[i].paused && calls[i].ready_rows > 0;
      EXPECT_LE(rows[i], may ? calls[i].ready_rows : 0);
      if (may && calls[i].decoding) {
        EXPECT_EQ(rows[i], 1);
      }
      if (may && !calls[i].decoding) could += calls[i].ready_rows;
    }
    if (!EndsHurried(calls, rows)) {
      EXPECT_EQ(prefill, std::min(could, piece)) << "a piece is as full as it can be";
    }
  }
}

TEST(PlanStepTest, APromptWithADeadlineSharesItsTurnWithNobody) {
  std::vector<RunningCall> calls = {
      {.order = Order(0), .decoding = false, .pending_rows = 20, .ready_rows = 20},
      {.order = Order(1, 500), .decoding = false, .pending_rows = 100, .ready_rows = 100}};
  const auto rows_of = [&](size_t call) {
    for (const PlannedRows& planned : PlanStep(calls, 32, 10)) {
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
TEST(PlanStepTest, EveryPrefillEndsAndShortOnesAreNotStuckBehindLongOnes) {
  constexpr int32_t kPiece = 32;
  std::vector<RunningCall> calls = {
      {.order = Order(0), .decoding = false, .pending_rows = 8000, .ready_rows = 8000}};
  for (int32_t i = 1; i < 8; ++i) {
    calls.push_back({.order = Order(i), .decoding = false, .pending_rows = 40, .ready_rows = 40});
  }
  int steps = 0;
  int short_steps = 0;
  while (
      std::any_of(calls.begin(), calls.end(), [](const auto& c) { return c.pending_rows > 0; })) {
    ASSERT_LT(++steps, 1000);
    int32_t first_rows = 0;
    for (const PlannedRows& planned : PlanStep(calls, kPiece, 1000)) {
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

TEST(GoesBetweenTest, AnEarlierDeadlineThanAllPromptsUnderWay) {
  const std::vector<CallOrder> none;
  const std::vector<CallOrder> prompts = {Order(1, 200), Order(2, 300)};
  EXPECT_TRUE(GoesBetween(Order(5, 100), false, prompts, 10));
  EXPECT_TRUE(GoesBetween(Order(5, 100), true, prompts, 10));
  EXPECT_FALSE(GoesBetween(Order(5, 250), false, prompts, 10));
  EXPECT_TRUE(GoesBetween(Order(5, 250), false, none, 10)) << "the step only decodes";
}

TEST(GoesBetweenTest, WithoutDeadlinesTheFirstRowsOnly) {
  const std::vector<CallOrder> none;
  const std::vector<CallOrder> patient = {Order(1)};
  const std::vector<CallOrder> hurried = {Order(1), Order(2, 300)};
  EXPECT_TRUE(GoesBetween(Order(5), false, patient, 10));
  EXPECT_FALSE(GoesBetween(Order(5), true, patient, 10));
  EXPECT_FALSE(GoesBetween(Order(5), false, hurried, 10));
  EXPECT_FALSE(GoesBetween(Order(5), false, none, 10)) << "it joins the next step";
}

TEST(PieceSizerTest, FindsThePieceThatFits) {
  // A step costs `base` and `slope` for each row: memory-bound at first, compute-bound later.
  struct Machine {
    double base_us, slope_us, guess_us;
  };
  for (const Machine& m : {Machine{27'000, 2'000, 2'500}, Machine{500, 20, 1'000},
                           Machine{10'000, 500, 1}, Machine{100'000, 5'000, 100}}) {
    constexpr int32_t kPieceMs = 50;
    constexpr int32_t kMost = 256;
    PieceSizer sizer(m.guess_us, kPieceMs, kMost);
    for (int step = 0; step < 100; ++step) {
      const int32_t rows = sizer.Rows(0);
      sizer.Observe(rows, m.base_us + m.slope_us * rows);
    }
    const int32_t rows = sizer.Rows(0);
    const double fits = std::clamp((kPieceMs * 1e3 - m.base_us) / m.slope_us, 8.0, 256.0);
    EXPECT_LE(rows, std::max(fits, 8.0)) << m.base_us;
    EXPECT_GE(rows, std::max(8.0, 0.7 * fits - 8)) << m.base_us;
    EXPECT_LE(sizer.Rows(8), std::max(8, rows - 8));
  }
}

TEST(PieceSizerTest, LastShortPiecesDoNotShrinkTheNextOnes) {
  PieceSizer sizer(/*us_per_row=*/500, /*piece_ms=*/50, /*max_rows=*/256);
  const int32_t before = sizer.Rows(0);
  for (int i = 0; i < 50; ++i) sizer.Observe(3, 20'000);
  EXPECT_EQ(sizer.Rows(0), before);
}

TEST(PieceSizerTest, RowsOfLowerLevelsAreMore) {
  PieceSizer sizer(/*us_per_row=*/1000, /*piece_ms=*/50, /*max_rows=*/256);
  EXPECT_EQ(sizer.Rows(0), 32) << "35, in whole eights";
  EXPECT_EQ(sizer.Rows(0, 0.25), 136);
  EXPECT_EQ(sizer.Rows(5, 0.25), 120);
  EXPECT_EQ(sizer.Rows(0, 0.01), 256) << "no more than there may be";
  EXPECT_EQ(sizer.Rows(100, 0.25), 8) << "nor fewer than go on";
}

}  // namespace
}  // namespace withy::model_worker
