#include "offline/elastic/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace withy::elastic {
namespace {

engine::ModelShape Shape() {
  engine::ModelShape shape;
  shape.layers = 30;
  shape.d_model = 576;
  shape.heads = 9;
  shape.kv_heads = 3;
  shape.head_dim = 64;
  shape.d_ff = 1536;
  return shape;
}

StepTimes Times() {
  return {.loss = {20, 0.3, 0.8},
          .units = {20, 1, 3},
          .train = {20, 2, 5},
          .train_threads = 2,
          .write_s = 5};
}

double CostOf(const std::vector<PlannedStage>& stages, StageKind kind, int32_t percent) {
  double sum = 0;
  for (const PlannedStage& stage : stages) {
    if (stage.kind == kind && stage.percent == percent) sum += stage.cost_s;
  }
  return sum;
}

TEST(BatchTimeTest, IsALineThroughWhatWasMeasured) {
  const BatchTime time{20, 1, 5};
  EXPECT_DOUBLE_EQ(time.At(20), 1);
  EXPECT_DOUBLE_EQ(time.At(100), 5);
  EXPECT_DOUBLE_EQ(time.At(60), 3);
  EXPECT_DOUBLE_EQ(time.At(1), 0.5) << "not below half of the low level's";
}

TEST(StepsAtTest, LowLevelsTakeMore) {
  using enum StepGrowth;
  EXPECT_EQ(StepsAt(50, 400, kRatio), 401);
  EXPECT_EQ(StepsAt(20, 400, kRatio), 4001);
  EXPECT_EQ(StepsAt(90, 400, kRatio), 25);
  EXPECT_EQ(StepsAt(20, 0, kRatio), 0);
  EXPECT_EQ(StepsAt(50, 400, kCut), 401);
  EXPECT_EQ(StepsAt(20, 400, kCut), 641);
  EXPECT_EQ(StepsAt(90, 400, kCut), 81);
}

TEST(ParallelSecondsTest, ThreadsWithoutATaskDoNothing) {
  EXPECT_DOUBLE_EQ(6 * ParallelSeconds(10, 6, 1), 60);
  EXPECT_DOUBLE_EQ(6 * ParallelSeconds(10, 6, 2), 30);
  EXPECT_DOUBLE_EQ(6 * ParallelSeconds(10, 6, 4), 20);
  EXPECT_DOUBLE_EQ(6 * ParallelSeconds(10, 6, 64), 10);
}

TEST(PlanStagesTest, StagesComeInTheirOrderAndCostWhatTheirStepsCost) {
  const ScheduleOptions options{.percents = {50, 80}, .recoveries = 2, .threads = 2};
  const std::vector<PlannedStage> stages = PlanStages(Shape(), options, Times());
  std::vector<StageKind> kinds;
  for (const PlannedStage& stage : stages) kinds.push_back(stage.kind);
  using enum StageKind;
  EXPECT_EQ(kinds, (std::vector<StageKind>{kUnits, kLayers, kCuts, kSplits, kRecovery, kLosses,
                                           kUnits, kCuts, kSplits, kRecovery, kLosses, kWrite}));
  EXPECT_DOUBLE_EQ(CostOf(stages, kUnits, 100), 32 * 3);
  EXPECT_DOUBLE_EQ(CostOf(stages, kUnits, 80), 32 * 2.5);
  EXPECT_DOUBLE_EQ(CostOf(stages, kLayers, 100), 31 * 32 * 0.8);
  const double loss = 32 * Times().loss.At(50);
  EXPECT_DOUBLE_EQ(CostOf(stages, kRecovery, 50), 2 * 401 * Times().train.At(50) + 3 * loss);
  EXPECT_NEAR(CostOf(stages, kSplits, 50), 3 * (61 * 2 * Times().train.At(50) + 2 * loss), 1e-6);
}

TEST(PlanStagesTest, OptionsTakeStagesAway) {
  ScheduleOptions options{.percents = {50}, .recovery_steps = 0, .order = "random"};
  options.cuts = Cuts::kAlike;
  const std::vector<PlannedStage> stages = PlanStages(Shape(), options, Times());
  for (const PlannedStage& stage : stages) {
    EXPECT_NE(stage.kind, StageKind::kUnits);
    EXPECT_NE(stage.kind, StageKind::kCuts);
    EXPECT_NE(stage.kind, StageKind::kRecovery);
  }
  EXPECT_NEAR(CostOf(stages, StageKind::kSplits, 50), 5 * 32 * Times().loss.At(50), 1e-6);
}

TEST(PlanStagesTest, EstimatedCutsMeasureTwoALayerAndTryNothing) {
  const ScheduleOptions options{.percents = {50}, .cuts = Cuts::kEstimated, .text_batches = 40};
  StepTimes times = Times();
  times.text_s = 0.5;
  const std::vector<PlannedStage> stages = PlanStages(Shape(), options, times);
  using enum StageKind;
  EXPECT_EQ(stages.front().kind, kText);
  EXPECT_DOUBLE_EQ(stages.front().cost_s, 20);
  EXPECT_DOUBLE_EQ(CostOf(stages, kSplits, 50), 0);
  EXPECT_DOUBLE_EQ(CostOf(stages, kLayers, 100), 32 * 0.8);
  EXPECT_DOUBLE_EQ(CostOf(stages, kCuts, 50), (2 * 30 + 1) * 8 * 0.8);
}

TEST(FitToHoursTest, TheRunTakesTheTimeThatItHas) {
  ScheduleOptions options{.percents = {30, 50, 70, 90},
                          .calibration_batches = 16,
                          .recoveries = 1,
                          .cuts = Cuts::kEstimated,
                          .text_batches = 6400};
  StepTimes times = Times();
  times.text_s = 1;
  for (const double hours : {1.0, 3.0, 10.0}) {
    const ScheduleOptions fitted = FitToHours(Shape(), options, times, hours);
    EXPECT_NEAR(TotalCost(PlanStages(Shape(), fitted, times)), hours * 3600, 60) << hours;
    EXPECT_EQ(fitted.text_batches, static_cast<int64_t>(hours * 450));
    EXPECT_GT(fitted.recovery_steps, 1);
  }
  EXPECT_EQ(FitToHours(Shape(), options, times, 100).text_batches, 6400)
      << "no more than asked for";
  EXPECT_EQ(FitToHours(Shape(), options, times, 0.01).recovery_steps, 1) << "too short";
  times.text_s = 0;
  EXPECT_EQ(FitToHours(Shape(), options, times, 1).text_batches, 6400) << "text that takes no time";
}

TEST(EstimateTextTest, SaysTheWholeAndWhatItIsMadeOf) {
  const std::vector<PlannedStage> stages = {{StageKind::kUnits, 100, 720},
                                            {StageKind::kSplits, 50, 3 * 3600},
                                            {StageKind::kRecovery, 50, 6 * 3600},
                                            {StageKind::kLosses, 50, 3}};
  EXPECT_EQ(EstimateText(stages, {}, 2),
            "about 9 h 10 min on 2 threads: importance of units 12 min, heads and neurons 3 h, "
            "recovery 6 h");
  EXPECT_EQ(EstimateText({{StageKind::kUnits, 100, 0.1}}, {}, 2), "less than 1 s on 2 threads");
  EXPECT_EQ(EstimateText(stages, {1, 1, 0, 0}, 1),
            "about 6 h more on 1 thread: recovery 6 h (3 h 10 min of work is done)");
}

}  // namespace
}  // namespace withy::elastic
