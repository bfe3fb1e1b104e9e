#include "policy/board/step_learner.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "policy/constants.h"

namespace withy::policy {
namespace {

StepPlan PlanOf(int32_t prompt_rows, int32_t decode_rows) {
  const LevelPace pace = {
      .row_ms = 1, .token_ms = 10, .row_depth_ms = 1e-9, .token_depth_ms = 1e-9};
  StepPlan plan;
  const auto add = [&](size_t call, int32_t rows, bool decode) {
    if (rows == 0) return;
    plan.entries.push_back({.call = call, .rows = rows, .decode = decode});
    plan.expected_ms += pace.RowsMs(rows, 0);
    plan.shape.Add(pace, rows, 0, decode);
  };
  add(0, decode_rows, true);
  add(1, prompt_rows, false);
  return plan;
}

const StepLearnerOptions kOptions = {.us_per_row = 1000, .full_row_ms = 1, .piece_ms = 50};

// A learner, and passes that follow one another on its board.
class StepLearnerTest : public testing::Test {
 protected:
  // A step that takes `ms`, `pause_ns` behind the one before.
  double Run(const StepPlan& plan, double ms, int64_t pause_ns = 0, ObservedPass pass = {}) {
    pass.ms = ms;
    pass.started_ns = now_ns_ + pause_ns;
    now_ns_ = pass.ended_ns = pass.started_ns + static_cast<int64_t>(ms * kNanosPerMilli);
    return learner_.Observe(plan, pass);
  }
  // Of a prompt whose step begins without a pause.
  double slowdown() const { return learner_.slowdown(now_ns_); }
  double slowdown_behind_a_pause() const { return learner_.slowdown(now_ns_ + 2 * kColdPauseNs); }

  StepLearner learner_{kOptions};
  int64_t now_ns_ = kNanosPerSecond;
};

TEST_F(StepLearnerTest, RowsOfPromptsTellHowSlowTheBoardIs) {
  for (int i = 0; i < 50; ++i) Run(PlanOf(32, 0), 48);
  EXPECT_NEAR(slowdown(), 1.5, 0.05);
  EXPECT_NEAR(Run(PlanOf(32, 0), 96), 2, 0.1);
  EXPECT_NEAR(slowdown(), 1.5, 0.05) << "one stall is not the pace";
  EXPECT_EQ(Run(PlanOf(8, 0), 80), 1) << "too few rows to tell";
  EXPECT_EQ(Run(PlanOf(0, 32), 320), 1) << "answers alone";
}

// The first steps behind a pause take half as long again.
TEST_F(StepLearnerTest, StepsBehindAPauseHaveATimeOfTheirOwn) {
  for (int call = 0; call < 60; ++call) {
    Run(PlanOf(32, 0), 48, 2 * kColdPauseNs);
    Run(PlanOf(32, 0), 48);
    for (int step = 0; step < 4; ++step) Run(PlanOf(32, 0), 32);
  }
  EXPECT_NEAR(slowdown(), 1, 0.02);
  EXPECT_NEAR(slowdown_behind_a_pause(), 1.5, 0.05);
  EXPECT_NEAR(Run(PlanOf(32, 0), 48, 2 * kColdPauseNs), 1, 0.05) << "as predicted";
  EXPECT_NEAR(slowdown(), 1.5, 0.05) << "the second step of a prompt is cold, too";
}

// The board becomes slower while all prompts come behind a pause; their answers' steps tell.
TEST_F(StepLearnerTest, WhatAnswersTellOfTheBoardHoldsForPrompts) {
  const auto call = [&](double slowdown) {
    const double share = Run(PlanOf(32, 0), 48 * slowdown, 2 * kColdPauseNs);
    for (int step = 0; step < 20; ++step) Run(PlanOf(0, 1), 10 * slowdown);
    return share;
  };
  for (int i = 0; i < 20; ++i) call(1);
  EXPECT_NEAR(call(1), 1, 0.05);
  EXPECT_NEAR(call(2), 2, 0.1) << "it comes as a surprise";
  EXPECT_NEAR(call(2), 1, 0.2) << "the answer has told";
}

TEST_F(StepLearnerTest, OnlyStepsWithAnswersBoundThePiece) {
  const int32_t rows = learner_.sizer().Rows(0);
  Run(PlanOf(128, 0), 500);
  EXPECT_EQ(learner_.sizer().Rows(0), rows);
  Run(PlanOf(rows, 1), 100);
  EXPECT_LT(learner_.sizer().Rows(0), rows);
}

// The slowdown that is told of passes that take twice what they should, `pause_ns` apart.
double SlowdownAfter(int64_t pause_ns, ObservedPass pass) {
  StepLearner learner(kOptions);
  int64_t now_ns = kNanosPerSecond;
  for (int i = 0; i < 100; ++i) {
    pass.started_ns = now_ns + pause_ns;
    pass.ms = i < 50 ? 10 : 20;
    now_ns = pass.ended_ns = pass.started_ns + static_cast<int64_t>(pass.ms * kNanosPerMilli);
    learner.Observe(PlanOf(0, 1), pass);
  }
  return learner.board().slowdown();
}

TEST_F(StepLearnerTest, WhatFindsColdCachesTellsNothingOfTheBoard) {
  EXPECT_NEAR(SlowdownAfter(0, {}), 2, 0.2);
  EXPECT_NEAR(SlowdownAfter(kColdPauseNs, {}), 2, 0.2);
  EXPECT_EQ(SlowdownAfter(kColdPauseNs + 1, {}), 1) << "each is the first one behind a pause";
  EXPECT_EQ(SlowdownAfter(0, {.preempted = true}), 1);
  EXPECT_EQ(SlowdownAfter(0, {.streams_weights = true}), 1);
}

}  // namespace
}  // namespace withy::policy
