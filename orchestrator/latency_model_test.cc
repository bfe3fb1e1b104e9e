#include "orchestrator/latency_model.h"

#include <random>

#include "gtest/gtest.h"

namespace withy::orchestrator {
namespace {

constexpr CostParameters kCost{1000, 20'000,
                               2'000};  // 1 ms a prompt token, 20 ms a token, 2 ms a further row
constexpr LiveCorrection kNeutral{1, 1, 0, 64};

TEST(LatencyModelTest, IdleBoardIsTheTwoParameters) {
  const Prediction p = PredictFullIdle(kCost, kNeutral, {100, 11, 100});
  EXPECT_DOUBLE_EQ(p.ttft_ms, 100);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 20);
  EXPECT_DOUBLE_EQ(p.end_to_end_ms, 300);
  EXPECT_DOUBLE_EQ(p.wait_ms, 0);
}

TEST(LatencyModelTest, TimesScaleWithTheLevel) {
  const Prediction p = Predict(kCost, kNeutral, {100, 1, 40}, Load{});
  EXPECT_DOUBLE_EQ(p.ttft_ms, 40);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 8);
  EXPECT_DOUBLE_EQ(PredictFullIdle(kCost, kNeutral, {100, 1, 40}).ttft_ms, 100);
}

TEST(LatencyModelTest, RunningCallsCostRowsAndSteps) {
  Load load{.running = {{0, 50}, {0, 50}}, .ahead = {}, .slots = 4, .piece_ms = 50};
  const Prediction p = Predict(kCost, kNeutral, {100, 1, 100}, load);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 24);            // three rows
  EXPECT_DOUBLE_EQ(p.ttft_ms, 100 + 2 * 22);  // two pieces, each followed by a step of two rows
  load.running[0].prefill_tokens = 300;       // prefills before this one
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, {100, 1, 100}, load).ttft_ms, 400 + 8 * 22);
}

TEST(LatencyModelTest, FullSlotsMeanWaiting) {
  const Load full{.running = {{0, 10}}, .ahead = {}, .slots = 1, .piece_ms = 50};
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, {100, 1, 100}, full).wait_ms, 200);
  Load queued = full;
  queued.ahead = {{100, 5}};
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, {100, 1, 100}, queued).wait_ms, 200 + 100 + 100);
  Load room = full;
  room.slots = 2;
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, {100, 1, 100}, room).wait_ms, 0);
}

// More load, more tokens or a higher level never make a call faster.
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
    const CallShape call{static_cast<uint32_t>(random() % 1000),
                         1 + static_cast<uint32_t>(random() % 100),
                         10 + static_cast<uint32_t>(random() % 91)};
    const Prediction base = Predict(kCost, kNeutral, call, load);
    CallShape longer = call;
    longer.prefill_tokens += 1 + random() % 100;
    EXPECT_GE(Predict(kCost, kNeutral, longer, load).ttft_ms, base.ttft_ms) << "seed " << seed;
    CallShape lower = call;
    lower.level_percent = 1 + random() % call.level_percent;
    EXPECT_LE(Predict(kCost, kNeutral, lower, load).ttft_ms, base.ttft_ms) << "seed " << seed;
    EXPECT_LE(Predict(kCost, kNeutral, lower, load).tpot_ms, base.tpot_ms) << "seed " << seed;
    Load busier = load;
    busier.ahead.push_back(some_call());
    EXPECT_GE(Predict(kCost, kNeutral, call, busier).wait_ms, base.wait_ms) << "seed " << seed;
    EXPECT_GE(base.ttft_ms, 0);
    EXPECT_GE(base.tpot_ms, 0);
  }
}

// A board that is really slower than its parameters say is found out, and the prediction then fits.
TEST(LatencyModelTest, LearnsTheBoard) {
  LiveCorrection live;
  for (int i = 0; i < 60; ++i) {
    Observation seen;
    seen.prefilled_tokens = 100;
    seen.prefill_ms = 150;
    seen.overhead_ms = 3;
    seen.decoded_tokens = 10;
    seen.mean_decode_rows = 2;
    seen.decode_ms = 10 * 22 * 0.5 + 40;
    seen.foreign_prefill_ms = 40;
    seen.complete = true;
    live = Learn(kCost, live, seen);
  }
  EXPECT_NEAR(live.prefill_ratio, 1.5, 0.01);
  EXPECT_NEAR(live.decode_ratio, 0.5, 0.01);
  EXPECT_NEAR(live.overhead_ms, 3, 0.01);
  EXPECT_NEAR(live.mean_completion_tokens, 11, 0.1);
  EXPECT_NEAR(PredictFullIdle(kCost, live, {200, 1, 100}).ttft_ms, 303, 1);
}

TEST(LatencyModelTest, OneStallDoesNotPoisonTheModel) {
  Observation stall;
  stall.prefilled_tokens = 10;
  stall.prefill_ms = 1e9;
  stall.overhead_ms = 1e9;
  stall.decoded_tokens = 2;
  stall.decode_ms = 1e9;
  const LiveCorrection live = Learn(kCost, kNeutral, stall);
  EXPECT_LE(live.prefill_ratio, 2.5);
  EXPECT_LE(live.decode_ratio, 2.5);
  EXPECT_LE(live.overhead_ms, 2);
  Observation nothing;
  nothing.prefill_ms = -1;
  const LiveCorrection same = Learn(kCost, kNeutral, nothing);
  EXPECT_EQ(same.prefill_ratio, 1);
  EXPECT_EQ(same.decode_ratio, 1);
}

}  // namespace
}  // namespace withy::orchestrator
