#include "policy/board/latency_model.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "policy/constants.h"
#include "policy/testing.h"

namespace withy::policy {
namespace {

TEST(LatencyModelTest, IdleBoardIsTheTwoParameters) {
  const Prediction p = PredictFullIdle(kCost, kNeutral, {100, 11, {}});
  EXPECT_DOUBLE_EQ(p.ttft_ms, 100);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 20);
  EXPECT_DOUBLE_EQ(p.end_to_end_ms, 300);
  EXPECT_DOUBLE_EQ(p.wait_ms, 0);
}

TEST(LatencyModelTest, TimesScaleWithTheLevel) {
  const CostParameters level = Scaled(kCost, {.prefill = 0.4, .decode = 0.5});
  const Prediction p = Predict(kCost, kNeutral, {100, 1, level}, Load{});
  EXPECT_DOUBLE_EQ(p.ttft_ms, 40);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 10);
  EXPECT_DOUBLE_EQ(PredictFullIdle(kCost, kNeutral, {100, 1, level}).ttft_ms, 100);
}

TEST(LatencyModelTest, RunningCallsCostRowsAndSteps) {
  Load load{.running = {{0, 50}, {0, 50}}, .ahead = {}, .slots = 4, .piece_ms = 50};
  const Prediction p = Predict(kCost, kNeutral, {100, 1, {}}, load);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 24);            // three rows
  EXPECT_DOUBLE_EQ(p.ttft_ms, 100 + 2 * 22);  // two pieces, each followed by a step of two rows
  load.running[0].prefill_tokens = 300;       // prefills before this one
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, {100, 1, {}}, load).ttft_ms, 400 + 8 * 22);
}

TEST(LatencyModelTest, FullSlotsMeanWaiting) {
  const Load full{.running = {{0, 10}}, .ahead = {}, .slots = 1, .piece_ms = 50};
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, {100, 1, {}}, full).wait_ms, 200);
  Load queued = full;
  queued.ahead = {{100, 5}};
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, {100, 1, {}}, queued).wait_ms, 200 + 100 + 100);
  Load room = full;
  room.slots = 2;
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, {100, 1, {}}, room).wait_ms, 0);
}

// More load, more tokens or a higher level never make a call faster.
TEST(LatencyModelTest, ARefusedCallerIsToldWhenASlotComesFree) {
  LiveCorrection live = kNeutral;
  live.mean_completion_tokens = 100;
  EXPECT_DOUBLE_EQ(RetryAfterMs(kCost, live, 0), 2000);
  EXPECT_DOUBLE_EQ(RetryAfterMs(kCost, live, 1), 2000);
  EXPECT_DOUBLE_EQ(RetryAfterMs(kCost, live, 4), 2600) << "steps of four rows";
  live.mean_completion_tokens = 1e9;
  EXPECT_DOUBLE_EQ(RetryAfterMs(kCost, live, 1), kMostRetryMs);
  live.mean_completion_tokens = 0;
  EXPECT_DOUBLE_EQ(RetryAfterMs(kCost, live, 1), kLeastRetryMs);
}

TEST(LatencyModelTest, Monotone) {
  const unsigned seed = 99;
  std::mt19937 random(seed);
  const auto some_call = [&] {
    return OtherCall{static_cast<uint32_t>(random() % 500), static_cast<uint32_t>(random() % 200)};
  };
  for (int round = 0; round < 3000; ++round) {
    Load load;
    load.slots = 1 + random() % 8;
    for (uint32_t i = 0; i < load.slots && random() % 3 != 0; ++i)
      load.running.push_back(some_call());
    if (load.running.size() == load.slots) {
      while (random() % 2 == 0) load.ahead.push_back(some_call());
    }
    const double share = static_cast<double>(10 + random() % 91) / 100;
    const CallShape call{static_cast<uint32_t>(random() % 1000),
                         1 + static_cast<uint32_t>(random() % 100),
                         Scaled(kCost, {.prefill = share, .decode = share})};
    const Prediction base = Predict(kCost, kNeutral, call, load);
    CallShape longer = call;
    longer.prefill_tokens += 1 + random() % 100;
    EXPECT_GE(Predict(kCost, kNeutral, longer, load).ttft_ms, base.ttft_ms) << "seed " << seed;
    CallShape lower = call;
    lower.level = Scaled(*call.level, {.prefill = static_cast<double>(1 + random() % 100) / 100,
                                       .decode = static_cast<double>(1 + random() % 100) / 100});
    EXPECT_LE(Predict(kCost, kNeutral, lower, load).ttft_ms, base.ttft_ms) << "seed " << seed;
    EXPECT_LE(Predict(kCost, kNeutral, lower, load).tpot_ms, base.tpot_ms) << "seed " << seed;
    Load busier = load;
    busier.ahead.push_back(some_call());
    EXPECT_GE(Predict(kCost, kNeutral, call, busier).wait_ms, base.wait_ms) << "seed " << seed;
    EXPECT_GE(base.ttft_ms, 0);
    EXPECT_GE(base.tpot_ms, 0);
  }
}

TEST(LatencyModelTest, TheTlmsTimeIsPartOfTheFirstToken) {
  CallShape call{100, 11, {}};
  call.tlm_ms = 7;
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, call, Load{}).ttft_ms, 107);
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, call, Load{}).end_to_end_ms, 307);
  EXPECT_DOUBLE_EQ(PredictFullIdle(kCost, kNeutral, call).ttft_ms, 100) << "not of a ratio's base";
}

TEST(LatencyModelTest, WhatTheWorkerTellsOfItsBoardScalesAllComputing) {
  LiveCorrection slow = kNeutral;
  slow.slowdown = 2;
  CallShape call{100, 11, {}};
  call.tlm_ms = 7;
  EXPECT_DOUBLE_EQ(Predict(kCost, slow, call, Load{}).ttft_ms, 207);
  EXPECT_DOUBLE_EQ(Predict(kCost, slow, call, Load{}).tpot_ms, 40);
  EXPECT_DOUBLE_EQ(ForeignPrefillMs(kCost, slow, 10, 0), 20);
  EXPECT_DOUBLE_EQ(PredictFullIdle(kCost, slow, call).ttft_ms, 100) << "not of a ratio's base";
}

TEST(LatencyModelTest, WaitsForWhatTheRunningCallsCanBear) {
  Load load{.running = {{0, 50}}, .ahead = {}, .slots = 4, .piece_ms = 50};
  EXPECT_EQ(Predict(kCost, kNeutral, {100, 1, {}}, load).wait_ms, 0) << "it has no SLO";
  load.running[0].slack = {.ms = 90, .gain = 0.5, .left_ms = 1000, .left_tokens = 50};
  const Prediction held = Predict(kCost, kNeutral, {100, 1, {}}, load);
  EXPECT_DOUBLE_EQ(held.wait_ms, (100 + 2 * 4 - 90) / 0.5);
  EXPECT_GE(held.ttft_ms, held.wait_ms + 100);
  EXPECT_EQ(Predict(kCost, kNeutral, {50, 1, {}}, load).wait_ms, 0) << "half the prompt it bears";
}

TEST(LatencyModelTest, TellsHowManyCallsAreToBeExpectedMeanwhile) {
  Load load;
  load.arrivals_per_ms = 0.01;
  CallShape call{100, 11, {}, /*tlm_ms=*/5};
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, call, Load{}).newcomers, 0);
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, call, load).newcomers, 0.01 * (5 + 100 + 11 * 20));
  call.max_tokens = 1000;
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, call, load).newcomers, 0.01 * (5 + 100 + 64 * 20))
      << "an answer of usual length";
}

TEST(LatencyModelTest, DecodeGrowsWithDepth) {
  CallShape call{256, 100, {}};
  EXPECT_DOUBLE_EQ(PredictFullIdle(kMeasured, kNeutral, call).tpot_ms, 20 + (256 + 32) * 0.01);
  call.resident_tokens = 1000;
  EXPECT_DOUBLE_EQ(PredictFullIdle(kMeasured, kNeutral, call).tpot_ms,
                   20 + (1000 + 256 + 32) * 0.01);
  EXPECT_DOUBLE_EQ(PredictFullIdle(kMeasured, kNeutral, call).TpotMs(100),
                   20 + (1000 + 256 + 50) * 0.01)
      << "a longer answer is deeper";
}

TEST(LatencyModelTest, AMeasuredLevelIsTakenAsMeasured) {
  CostParameters low{.prefill_us_per_token = 500,
                     .decode_us_per_token = 9'000,
                     .decode_us_per_extra_row = 1'000,
                     .prefill = {{100, 50'000}}};
  const std::vector<LevelCost> levels = {
      {.percent = 20, .weight_bytes = 20, .flops = 20, .measured = low},
      {.percent = 60, .weight_bytes = 60, .flops = 50},
      {.percent = 100, .weight_bytes = 100, .flops = 100, .measured = kMeasured}};
  const CallShape at_20{100, 1, CostOfLevel(kMeasured, levels, 20)};
  const Prediction p = Predict(kMeasured, kNeutral, at_20, Load{});
  EXPECT_DOUBLE_EQ(p.ttft_ms, 50) << "and not a fifth of the full model's";
  EXPECT_DOUBLE_EQ(p.tpot_ms, 9);
  EXPECT_DOUBLE_EQ(DemandOf(kMeasured, kNeutral, at_20, p).row_ms, 1);
  const CallShape at_60{64, 1, CostOfLevel(kMeasured, levels, 60)};
  EXPECT_DOUBLE_EQ(Predict(kMeasured, kNeutral, at_60, Load{}).ttft_ms, 32) << "its share";
  const CallShape at_100{64, 1, CostOfLevel(kMeasured, levels, 100)};
  EXPECT_DOUBLE_EQ(Predict(kMeasured, kNeutral, at_100, Load{}).ttft_ms, 64);
}

}  // namespace
}  // namespace withy::policy
