#include "orchestrator/latency_model.h"

#include <random>

#include "gtest/gtest.h"

namespace withy::orchestrator {
namespace {

constexpr CostParameters kCost{1000, 20'000,
                               2'000};  // 1 ms a prompt token, 20 ms a token, 2 ms a further row
constexpr LiveCorrection kNeutral{1, 1, 0, 64};

TEST(LatencyModelTest, IdleBoardIsTheTwoParameters) {
  const Prediction p = PredictFullIdle(kCost, kNeutral, {100, 11, {}});
  EXPECT_DOUBLE_EQ(p.ttft_ms, 100);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 20);
  EXPECT_DOUBLE_EQ(p.end_to_end_ms, 300);
  EXPECT_DOUBLE_EQ(p.wait_ms, 0);
}

TEST(LatencyModelTest, TimesScaleWithTheLevel) {
  const LevelShare level{.prefill = 0.4, .decode = 0.5};
  const Prediction p = Predict(kCost, kNeutral, {100, 1, level}, Load{});
  EXPECT_DOUBLE_EQ(p.ttft_ms, 40);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 10);
  EXPECT_DOUBLE_EQ(PredictFullIdle(kCost, kNeutral, {100, 1, level}).ttft_ms, 100);
}

// A large output head, which no level cuts, makes a low level dearer than its per cent.
TEST(LatencyModelTest, ALevelTakesWhatItComputesAndReads) {
  const std::vector<LevelCost> levels = {{.percent = 20, .weight_bytes = 30, .flops = 26},
                                         {.percent = 60, .weight_bytes = 70, .flops = 64},
                                         {.percent = 100, .weight_bytes = 100, .flops = 100}};
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 20).prefill, 0.26);
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 20).decode, 0.30);
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 60).decode, 0.70);
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 100).prefill, 1);
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 100).decode, 1);
  const Prediction p = Predict(kCost, kNeutral, {100, 1, ShareOfLevel(levels, 20)}, Load{});
  EXPECT_DOUBLE_EQ(p.ttft_ms, 26);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 6);
  // A worker that states nothing, or levels without figures.
  EXPECT_DOUBLE_EQ(ShareOfLevel({}, 40).prefill, 0.4);
  EXPECT_DOUBLE_EQ(ShareOfLevel({}, 40).decode, 0.4);
  EXPECT_DOUBLE_EQ(ShareOfLevel(std::vector<LevelCost>{{.percent = 100}}, 100).decode, 1);
}

// What is learnt at a low level holds at the full one.
TEST(LatencyModelTest, LearnsFromAnyLevel) {
  const LevelShare level{.prefill = 0.26, .decode = 0.30};
  LiveCorrection live = kNeutral;
  for (int i = 0; i < 60; ++i) {
    Observation seen;
    seen.level = level;
    seen.prefilled_tokens = 100;
    seen.prefill_ms = 1.5 * 26;
    seen.decoded_tokens = 10;
    seen.decode_ms = 10 * 6 * 0.5;
    live = Learn(kCost, live, seen);
  }
  EXPECT_NEAR(live.prefill_ratio, 1.5, 0.01);
  EXPECT_NEAR(live.decode_ratio, 0.5, 0.01);
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
                         {.prefill = share, .decode = share}};
    const Prediction base = Predict(kCost, kNeutral, call, load);
    CallShape longer = call;
    longer.prefill_tokens += 1 + random() % 100;
    EXPECT_GE(Predict(kCost, kNeutral, longer, load).ttft_ms, base.ttft_ms) << "seed " << seed;
    CallShape lower = call;
    lower.level.prefill *= static_cast<double>(1 + random() % 100) / 100;
    lower.level.decode *= static_cast<double>(1 + random() % 100) / 100;
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
  EXPECT_NEAR(PredictFullIdle(kCost, live, {200, 1, {}}).ttft_ms, 303, 1);
}

TEST(LatencyModelTest, TheTlmsTimeIsPartOfTheFirstToken) {
  CallShape call{100, 11, {}};
  call.tlm_ms = 7;
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, call, Load{}).ttft_ms, 107);
  EXPECT_DOUBLE_EQ(Predict(kCost, kNeutral, call, Load{}).end_to_end_ms, 307);
  EXPECT_DOUBLE_EQ(PredictFullIdle(kCost, kNeutral, call).ttft_ms, 100) << "not of a ratio's base";
}

TEST(LatencyModelTest, LearnsTheTlmsSpeed) {
  LiveCorrection live = kNeutral;
  EXPECT_EQ(TlmMs(live, 1000), 0) << "nothing is known";
  Observation seen;
  seen.tlm_bytes = 1000;
  seen.tlm_ms = 4;
  live = Learn(kCost, live, seen);
  EXPECT_DOUBLE_EQ(TlmMs(live, 2000), 8);
  seen.tlm_ms = 2;
  for (int i = 0; i < 60; ++i) live = Learn(kCost, live, seen);
  EXPECT_NEAR(TlmMs(live, 2000), 4, 0.01);
  EXPECT_EQ(live.prefill_ratio, 1) << "and nothing else";
  seen.tlm_ms = 1e9;
  EXPECT_LE(TlmMs(Learn(kCost, live, seen), 2000), 4 * 2.5) << "one stall";
}

TEST(LatencyModelTest, LearnsHowManyTokensAShortPromptHas) {
  LiveCorrection live = kNeutral;
  EXPECT_EQ(EstimatePrunedTokens(live, 100, 1000, 250), 25u);
  EXPECT_EQ(EstimatePrunedTokens(live, 100, 1000, 1000), 100u);
  EXPECT_EQ(EstimatePrunedTokens(live, 100, 1000, 1), 1u);
  for (int i = 0; i < 60; ++i) {  // really 30: the template's tokens stay
    Observation seen;
    seen.estimated_tokens = EstimatePrunedTokens(live, 100, 1000, 250);
    seen.counted_tokens = 30;
    live = Learn(kCost, live, seen);
  }
  EXPECT_NEAR(EstimatePrunedTokens(live, 100, 1000, 250), 30, 1);
  live.pruned_tokens_ratio = 8;
  EXPECT_EQ(EstimatePrunedTokens(live, 100, 1000, 500), 100u) << "never more than the whole";
}

TEST(LatencyModelTest, WaitsForWhatTheRunningCallsCanBear) {
  Load load{.running = {{0, 50}}, .ahead = {}, .slots = 4, .piece_ms = 50};
  EXPECT_EQ(Predict(kCost, kNeutral, {100, 1, {}}, load).wait_ms, 0) << "it has no SLO";
  load.running[0].slack = {.ms = 90, .gain = 0.5, .left_ms = 1000, .left_tokens = 50};
  const Prediction held = Predict(kCost, kNeutral, {100, 1, {}}, load);
  EXPECT_DOUBLE_EQ(held.wait_ms, (100 + 2 * 16 - 90) / 0.5);
  EXPECT_GE(held.ttft_ms, held.wait_ms + 100);
  EXPECT_EQ(Predict(kCost, kNeutral, {50, 1, {}}, load).wait_ms, 0) << "half the prompt it bears";
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
