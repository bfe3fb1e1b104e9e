#include "policy/board/step_learner.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "policy/constants.h"

namespace withy::policy {
namespace {

StepPlan PlanOf(int32_t prompt_rows, int32_t decode_rows, double expected_ms) {
  StepPlan plan;
  if (decode_rows > 0) plan.entries.push_back({.call = 0, .rows = decode_rows, .decode = true});
  if (prompt_rows > 0) plan.entries.push_back({.call = 1, .rows = prompt_rows, .decode = false});
  plan.expected_ms = expected_ms;
  return plan;
}

const StepLearnerOptions kOptions = {.us_per_row = 1000, .full_row_ms = 1, .piece_ms = 50};

TEST(StepLearnerTest, RowsOfPromptsTellHowSlowTheBoardIs) {
  StepLearner learner(kOptions);
  EXPECT_DOUBLE_EQ(learner.Observe(PlanOf(32, 0, 32), 48), 1.5);
  EXPECT_GT(learner.slowdown(), 1);
  const double slowdown = learner.slowdown();
  EXPECT_DOUBLE_EQ(learner.Observe(PlanOf(8, 0, 8), 80), 1) << "too few rows to tell";
  EXPECT_DOUBLE_EQ(learner.Observe(PlanOf(0, 32, 32), 320), 1) << "answers alone";
  EXPECT_DOUBLE_EQ(learner.slowdown(), slowdown);
  EXPECT_DOUBLE_EQ(learner.Observe(PlanOf(32, 0, 32), 32 * slowdown), 1);
}

TEST(StepLearnerTest, OnlyStepsWithAnswersBoundThePiece) {
  StepLearner learner(kOptions);
  const int32_t rows = learner.sizer().Rows(0);
  learner.Observe(PlanOf(128, 0, 128), 500);
  EXPECT_EQ(learner.sizer().Rows(0), rows);
  learner.Observe(PlanOf(rows, 1, rows + 1), 100);
  EXPECT_LT(learner.sizer().Rows(0), rows);
}

// The slowdown that is learnt from passes that take twice what they should, `pause_ns` apart.
double SlowdownAfter(int64_t pause_ns, ObservedPass pass) {
  StepLearner learner(kOptions);
  pass.shape = {.weights_ms = 10, .rows_ms = 1, .depth_ms = 0, .rows = 1};
  int64_t now_ns = kNanosPerSecond;
  for (int i = 0; i < 100; ++i) {
    pass.started_ns = now_ns + pause_ns;
    pass.ms = i < 50 ? 10 : 20;
    now_ns = pass.ended_ns = pass.started_ns + static_cast<int64_t>(pass.ms * kNanosPerMilli);
    learner.ObserveBoard(pass);
  }
  return learner.board().slowdown();
}

TEST(StepLearnerTest, WhatFindsColdCachesTeachesNothing) {
  EXPECT_NEAR(SlowdownAfter(0, {}), 2, 0.2);
  EXPECT_NEAR(SlowdownAfter(kColdPauseNs, {}), 2, 0.2);
  EXPECT_EQ(SlowdownAfter(kColdPauseNs + 1, {}), 1) << "each is the first one behind a pause";
  EXPECT_EQ(SlowdownAfter(0, {.shape = {}, .preempted = true}), 1);
  EXPECT_EQ(SlowdownAfter(0, {.shape = {}, .streams_weights = true}), 1);
}

}  // namespace
}  // namespace withy::policy
