#include <vector>

#include "bench/profiler/profiler_figures.h"
#include "bench/samples.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::bench {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;

TEST(ProfilerFigures, OutliersDoNotMoveTheMean) {
  std::vector<double> samples(20, 1.0);
  samples[3] = 100;
  samples[4] = -50;
  EXPECT_DOUBLE_EQ(TrimmedMean(samples).mean, 1);
  EXPECT_DOUBLE_EQ(TrimmedMean(samples).upper95, 1);
  EXPECT_DOUBLE_EQ(TrimmedMean({}).mean, 0);
  const MeanBound few = TrimmedMean({1, 3});
  EXPECT_DOUBLE_EQ(few.mean, 2);
  EXPECT_GT(few.upper95, 3);
}

TEST(ProfilerFigures, QuantilesAreSamples) {
  EXPECT_EQ(Quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(Quantile({3, 1, 2}, 1), 3);
  EXPECT_EQ(Quantile({3, 1, 2}, 0), 1);
  EXPECT_EQ(Quantile({}, 0.5), 0);
}

TEST(ProfilerFigures, AccuracyIsEquationOne) {
  EXPECT_DOUBLE_EQ(Accuracy(99, 100), 0.99);
  EXPECT_DOUBLE_EQ(Accuracy(101, 100), 0.99);
  EXPECT_EQ(Accuracy(1, 0), 0);
}

TEST(ProfilerFigures, TheFloorOfPredictionsIsWhatLikePassesDeviateBy) {
  std::vector<PredictedPass> passes;
  const auto add = [&](int32_t prompt, int32_t step, int32_t calls, double predicted_ms,
                       double took_ms) {
    passes.push_back({.prompt = prompt,
                      .held_out = prompt > 1,
                      .step = step,
                      .calls = calls,
                      .predicted_ms = predicted_ms,
                      .took_ms = took_ms});
  };
  for (const double took_ms : {1.0, 2.0, 1.0, 1.0, 4.0}) add(3, 1, 2, 2, took_ms);
  add(4, 1, 1, 6, 5);
  add(1, 1, 1, 9, 1);   // not held out
  add(3, -1, 2, 9, 1);  // the prompt
  add(3, 0, 2, 9, 1);   // behind it with cold caches
  EXPECT_THAT(PredictionErrors(passes), ElementsAre(1, 0, 1, 1, 0.5, DoubleEq(6.0 / 5 - 1)));
  EXPECT_THAT(PredictionErrors(passes, 1), ElementsAre(DoubleEq(6.0 / 5 - 1)));
  EXPECT_THAT(PredictionFloor(passes), ElementsAre(0, 0.5, 0, 0, 0.75, 0));
  EXPECT_THAT(PredictionFloor(passes, 1), ElementsAre(0));
}

TEST(ProfilerFigures, RecoveryIsTheFirstCallFromWhichOnCallsAreInTime) {
  std::vector<bool> in_time(40, true);
  EXPECT_EQ(RecoveryCalls(in_time, 20, 10, 0.9), 0u);
  for (const size_t late : {20, 21, 23}) in_time[late] = false;
  EXPECT_EQ(RecoveryCalls(in_time, 20, 10, 0.9), 2u);
  in_time[28] = false;
  EXPECT_EQ(RecoveryCalls(in_time, 20, 10, 0.9), 4u);
  EXPECT_EQ(RecoveryCalls(std::vector<bool>(40, false), 20, 10, 0.9), 20u) << "never";
}

}  // namespace
}  // namespace withy::bench
