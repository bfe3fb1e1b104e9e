#include "policy/board/latency_learning.h"

#include <cmath>
#include <random>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "policy/board/latency_model.h"
#include "policy/testing.h"

namespace withy::policy {
namespace {

// Mean relative error of predictions over calls on a board whose times are 15 % above calibrated
// ones, and beside a neighbour, who comes and goes, twice as long.
double ErrorBesideANeighbour(bool told, bool learns) {
  constexpr int kCalls = 120;
  constexpr int kStays = 30;  // calls
  LiveCorrection live = kNeutral;
  double error = 0;
  for (int i = 0; i < kCalls; ++i) {
    const double slowdown = i / kStays % 2 == 1 ? 2 : 1;
    if (told) live.slowdown = slowdown;
    Observation seen;
    seen.prefilled_tokens = 100;
    seen.prefill_ms = 1.15 * slowdown * 100;
    seen.decoded_tokens = 10;
    seen.decode_ms = 1.15 * slowdown * 200;
    const Prediction predicted = Predict(kCost, live, CallShape{100, 11, {}}, Load{});
    error += std::abs(predicted.ttft_ms / seen.prefill_ms - 1);
    error += std::abs(predicted.tpot_ms * 10 / seen.decode_ms - 1);
    if (learns) live = Learn(kCost, live, seen);
  }
  return error / (2 * kCalls);
}

TEST(LatencyLearningTest, TheToldSlowdownAndFinishedCallsTeachDifferentThings) {
  EXPECT_LT(ErrorBesideANeighbour(/*told=*/true, /*learns=*/true), 0.02);
  EXPECT_GT(ErrorBesideANeighbour(/*told=*/true, /*learns=*/false), 0.1);
  EXPECT_GT(ErrorBesideANeighbour(/*told=*/false, /*learns=*/true), 0.07);
}

// A board that is fast for a moment is planned by what it was; one that stays fast by what it is.
TEST(LatencyLearningTest, PlansExpectTheSlowestOfTheLastCalls) {
  Observation seen;
  seen.prefilled_tokens = 100;
  seen.prefill_ms = 100;
  LiveCorrection live = kNeutral;
  live.TellSlowdown(2.5);
  live.TellSlowdown(1.5);
  live = Learn(kCost, live, seen);
  live.TellSlowdown(1);
  EXPECT_EQ(live.slowdown, 1);
  for (size_t i = 0; i < kSlowCallsKept; ++i) {
    EXPECT_EQ(live.SlowdownToExpect(), i + 1 < kSlowCallsKept ? 2.5 : 1);
    live = Learn(kCost, live, seen);
  }
  live.TellSlowdown(100);
  EXPECT_EQ(live.SlowdownToExpect(), kMaxRatio);
}

// A ratio's base is the idle board, however slow calls are beside others.
TEST(LatencyLearningTest, OnlyTheFullModelAloneMovesTheIdleBoard) {
  Observation slow;
  slow.prefilled_tokens = 100;
  slow.prefill_ms = 200;
  slow.decoded_tokens = 10;
  slow.decode_ms = 400;
  slow.overhead_ms = 5;
  slow.full_alone = false;
  const CallShape call{100, 11, {}};
  const LiveCorrection beside = Learn(kCost, kNeutral, slow);
  EXPECT_EQ(PredictFullIdle(kCost, beside, call).end_to_end_ms,
            PredictFullIdle(kCost, kNeutral, call).end_to_end_ms);
  EXPECT_GT(Predict(kCost, beside, call, Load{}).ttft_ms,
            PredictFullIdle(kCost, beside, call).ttft_ms);
  slow.full_alone = true;
  LiveCorrection alone = Learn(kCost, kNeutral, slow);
  alone.biases.clear();
  EXPECT_EQ(PredictFullIdle(kCost, alone, call).ttft_ms,
            Predict(kCost, alone, call, Load{}).ttft_ms);
  EXPECT_GT(PredictFullIdle(kCost, alone, call).ttft_ms, 100);
}

// The last call's luck, a tenth to either side of 110 ms and 22 ms a token, is not what ratios are
// of.
TEST(LatencyLearningTest, TheIdleBoardIsAMeanOverManyCalls) {
  LiveCorrection live = kNeutral;
  const CallShape call{100, 11, {}};
  double lowest = 1e9, highest = 0;
  for (int i = 0; i < 300; ++i) {
    const double luck = i / 3 % 2 == 0 ? 1.1 : 0.9;
    Observation seen;
    seen.prefilled_tokens = 100;
    seen.prefill_ms = 110 * luck;
    seen.decoded_tokens = 10;
    seen.decode_ms = 220 * luck;
    live = Learn(kCost, live, seen);
    if (i < 100) continue;
    const Prediction full = PredictFullIdle(kCost, live, call);
    EXPECT_NEAR(full.ttft_ms, 110, 3);
    EXPECT_NEAR(full.tpot_ms, 22, 0.6);
    lowest = std::min(lowest, Predict(kCost, live, call, Load{}).ttft_ms);
    highest = std::max(highest, Predict(kCost, live, call, Load{}).ttft_ms);
  }
  EXPECT_GT(highest - lowest, 6) << "what predicts the next call follows";
}

TEST(LatencyLearningTest, ReadingsAndCountsAreNoCallsOfTheIdleBoard) {
  Observation call;
  call.prefilled_tokens = 100;
  call.prefill_ms = 120;
  const LiveCorrection first = Learn(kCost, kNeutral, call);
  EXPECT_GT(first.idle.prefill.ratio(), 1.03);
  LiveCorrection live = kNeutral;
  for (int i = 0; i < 30; ++i) {
    Observation reading;
    reading.tlm_bytes = 1000;
    reading.tlm_ms = 2;
    live = Learn(kCost, live, reading);
    Observation counted;
    counted.estimated_tokens = 50;
    counted.counted_tokens = 60;
    live = Learn(kCost, live, counted);
  }
  EXPECT_EQ(Learn(kCost, live, call).idle.prefill.ratio(), first.idle.prefill.ratio());
}

// A board on which every prefill takes 4 ms and every step 0.5 ms that no calibration saw, beside a
// tenth more for the rest: what low levels and short prompts teach must hold for the full model.
TEST(LatencyLearningTest, TellsWhatGrowsWithACallFromWhatDoesNot) {
  const CostParameters board{
      .prefill_us_per_token = 400, .decode_us_per_token = 4'000, .decode_us_per_extra_row = 200};
  LiveCorrection live = kNeutral;
  for (int i = 0; i < 300; ++i) {
    const double share = i % 5 == 0 ? 0.8 : 0.2;
    Observation seen;
    seen.level = Scaled(board, {.prefill = share, .decode = share});
    seen.prefilled_tokens = 20 + 13 * static_cast<uint32_t>(i % 7);
    seen.prefill_ms = 1.1 * 0.4 * share * seen.prefilled_tokens + 4;
    seen.decoded_tokens = 10;
    seen.decode_ms = 10 * (1.1 * 4 * share + 0.5);
    live = Learn(board, live, seen);
  }
  EXPECT_NEAR(live.prefill.ratio(), 1.1, 0.03);
  EXPECT_NEAR(live.prefill.constant_ms(), 4, 0.4);
  EXPECT_NEAR(live.step.ratio(), 1.1, 0.03);
  EXPECT_NEAR(live.step.constant_ms(), 0.5, 0.1);
  const Prediction full = PredictFullIdle(board, live, {100, 11, {}});
  EXPECT_NEAR(full.ttft_ms, 1.1 * 40 + 4, 1.5);
  EXPECT_NEAR(full.tpot_ms, 1.1 * 4 + 0.5, 0.15);
}

// A calibration of 50 % that is a quarter too low, of 20 % that is a fifth too high.
TEST(LatencyLearningTest, ALevelThatWasCalibratedWronglyIsFoundOut) {
  LiveCorrection live = kNeutral;
  const auto shape = [](uint32_t percent) {
    const double share = percent / 100.0;
    return CallShape{.prefill_tokens = 100,
                     .max_tokens = 11,
                     .level = Scaled(kCost, {.prefill = share, .decode = share}),
                     .level_percent = percent};
  };
  std::mt19937 random(3);
  double low_ttft = 0, low_tpot = 0, high_ttft = 0, high_tpot = 0;
  int lows = 0, highs = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool low = random() % 2 == 0;
    Observation seen;
    seen.level_percent = low ? 20 : 50;
    seen.level = shape(seen.level_percent).level;
    seen.prefilled_tokens = 100;
    seen.prefill_ms = low ? 16 : 62.5;
    seen.decoded_tokens = 10;
    seen.decode_ms = low ? 32 : 125;
    seen.full_alone = false;
    if (i >= 200) {
      const Prediction p = Predict(kCost, live, shape(seen.level_percent), Load{});
      (low ? low_ttft : high_ttft) += p.ttft_ms;
      (low ? low_tpot : high_tpot) += p.tpot_ms;
      ++(low ? lows : highs);
    }
    live = Learn(kCost, live, seen);
  }
  EXPECT_NEAR(low_tpot / lows, 3.2, 0.1);
  EXPECT_NEAR(high_tpot / highs, 12.5, 0.3);
  EXPECT_NEAR(low_ttft / lows, 16, 0.5);
  EXPECT_NEAR(high_ttft / highs, 62.5, 2);
  EXPECT_EQ(PredictFullIdle(kCost, live, shape(100)).tpot_ms, 20);
}

// What is learnt at a low level holds there, and but for a part that may have been a constant at
// the full one.
TEST(LatencyLearningTest, LearnsFromAnyLevel) {
  const CostParameters level = Scaled(kCost, {.prefill = 0.26, .decode = 0.30});
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
  EXPECT_NEAR(live.prefill.Ms({26}), 1.5 * 26, 0.1);
  EXPECT_NEAR(live.prefill.Ms({100}), 1.5 * 100, 6);
  EXPECT_NEAR(live.step.ratio(), 0.5, 0.01) << "a constant is not below zero";
}

// A board that is really slower than its parameters say is found out, and the prediction then fits.
TEST(LatencyLearningTest, LearnsTheBoard) {
  LiveCorrection live;
  for (int i = 0; i < 150; ++i) {
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
  EXPECT_NEAR(live.prefill.ratio(), 1.5, 0.01);
  EXPECT_NEAR(live.step.ratio(), 0.5, 0.01);
  EXPECT_NEAR(live.overhead_ms, 3, 0.01);
  EXPECT_NEAR(live.mean_completion_tokens, 11, 0.1);
  EXPECT_NEAR(PredictFullIdle(kCost, live, {200, 1, {}}).ttft_ms, 303, 1);
}

TEST(LatencyLearningTest, LearnsTheTlmsSpeed) {
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
  EXPECT_EQ(live.prefill.ratio(), 1) << "and nothing else";
  seen.tlm_ms = 1e9;
  EXPECT_LE(TlmMs(Learn(kCost, live, seen), 2000), 4 * 2.5) << "one stall";
}

// A burst made reading slow, so that it is thought not to pay: after some calls it is tried again.
TEST(LatencyLearningTest, ATlmThatIsNotAskedForItsSlownessIsNotThoughtSlowForEver) {
  LiveCorrection live = kNeutral;
  live.tlm_us_per_byte = 40;
  live.tlm_start_us_per_byte = 4;
  Observation seen;
  seen.tlm_too_slow = true;
  for (int i = 0; i < 40; ++i) live = Learn(kCost, live, seen);
  EXPECT_NEAR(live.tlm_us_per_byte, 4, 1);
  live.tlm_us_per_byte = 3;
  EXPECT_EQ(Learn(kCost, live, seen).tlm_us_per_byte, 3) << "it was not slow, it does not pay";
  EXPECT_EQ(live.prefill.ratio(), 1) << "and nothing else";
}

TEST(LatencyLearningTest, LearnsHowManyTokensAShortPromptHas) {
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

TEST(LatencyLearningTest, OneStallDoesNotPoisonTheModel) {
  Observation stall;
  stall.prefilled_tokens = 10;
  stall.prefill_ms = 1e9;
  stall.overhead_ms = 1e9;
  stall.decoded_tokens = 2;
  stall.decode_ms = 1e9;
  const LiveCorrection live = Learn(kCost, kNeutral, stall);
  EXPECT_LE(live.prefill.ratio(), 2.5);
  EXPECT_LE(live.step.ratio(), 2.5);
  EXPECT_LE(live.overhead_ms, 2);
  Observation nothing;
  nothing.prefill_ms = -1;
  const LiveCorrection same = Learn(kCost, kNeutral, nothing);
  EXPECT_EQ(same.prefill.ratio(), 1);
  EXPECT_EQ(same.step.ratio(), 1);
}

// Calls beside a burst are slow, those behind it are not.
TEST(LatencyLearningTest, WhatABurstTaughtIsForgottenBehindIt) {
  const CostParameters board{
      .prefill_us_per_token = 10, .decode_us_per_token = 50, .decode_us_per_extra_row = 10};
  LiveCorrection live = kNeutral;
  const auto call = [&](double slower, int times) {
    Observation seen;
    seen.prefilled_tokens = 50;
    seen.prefill_ms = 0.5 * slower;
    seen.decoded_tokens = 10;
    seen.decode_ms = 0.5 * slower;
    seen.overhead_ms = 2 * slower;
    for (int i = 0; i < times; ++i) live = Learn(board, live, seen);
    return Predict(board, live, {50, 11, {}}, Load{});
  };
  const Prediction before = call(1, 60);
  const Prediction burst = call(20, 60);
  EXPECT_GT(burst.tpot_ms, 10 * before.tpot_ms);
  EXPECT_GT(burst.ttft_ms, 10 * before.ttft_ms);
  const Prediction behind = call(1, 12);
  EXPECT_LT(behind.tpot_ms, 1.4 * before.tpot_ms);
  EXPECT_LT(behind.ttft_ms, 1.4 * before.ttft_ms);
}

// Nine calls of ten are a little off, one is held up for long: that one says nothing of the others.
TEST(LatencyLearningTest, WhatHoldsUpAFewDoesNotMakeTheOthersLate) {
  LiveCorrection live;
  std::mt19937 random(7);
  std::normal_distribution<double> off(0.1, 0.1);
  double half = 0, most = 0;
  constexpr int kCalls = 3000;
  for (int i = 0; i < kCalls; ++i) {
    Observation seen;
    seen.ttft_share = i % 10 == 0 ? 5 : std::exp(off(random));
    live = Learn({}, live, seen);
    half += ChanceWithin(live.reliability.ttft, 1, std::exp(0.1)) / kCalls;
    most += ChanceWithin(live.reliability.ttft, 1, std::exp(0.35)) / kCalls;
  }
  EXPECT_NEAR(half, 0.45, 0.02);
  EXPECT_NEAR(most, 0.9, 0.02);
  EXPECT_EQ(ChanceWithin(live.reliability.tpot, 1, 1.02), ChanceWithin(Deviation(), 1, 1.02))
      << "nothing was seen";
}

// Two apps, one of whose calls take 1.3 times what is predicted.
TEST(LatencyLearningTest, EachAppsCallsAreJudgedByItsOwn) {
  LiveCorrection live;
  for (int i = 0; i < 80; ++i) {
    for (const auto& [app, share] : {std::pair("short", 1.3), std::pair("long", 1.0)}) {
      Observation seen;
      seen.app = app;
      seen.ttft_share = seen.tpot_share = share;
      live = Learn({}, live, seen);
    }
  }
  const auto chance = [&](std::string_view app) {
    return ChanceWithin(live.ReliabilityOf(app).ttft, 1, 1.15);
  };
  EXPECT_LT(chance("short"), 0.1);
  EXPECT_GT(chance("long"), 0.9);
  EXPECT_NEAR(chance("another"), 0.5, 0.1) << "what holds for all";
  EXPECT_LT(ChanceWithin(live.ReliabilityOf("short").tpot, 1, 1.15), 0.1);
}

TEST(LatencyLearningTest, AnAppsFirstCallsCountForMoreAndTheOldestAppIsForgotten) {
  LiveCorrection live;
  Observation seen;
  for (int i = 0; i < 16; ++i) {
    seen.app = "first";
    seen.ttft_share = 1.3;
    live = Learn({}, live, seen);
    seen.app = "other";
    seen.ttft_share = 1;
    live = Learn({}, live, seen);
  }
  EXPECT_LT(ChanceWithin(live.ReliabilityOf("first").ttft, 1, 1.15), 0.6);
  EXPECT_LT(ChanceWithin(live.ReliabilityOf("first").ttft, 1, 1.15),
            ChanceWithin(live.ReliabilityOf("none").ttft, 1, 1.15));
  for (int i = 0; i < 40; ++i) {
    seen.app = absl::StrCat("app ", i);
    seen.ttft_share = 1;
    live = Learn({}, live, seen);
  }
  EXPECT_EQ(live.apps.size(), 32u);
  EXPECT_EQ(&live.ReliabilityOf("first"), &live.reliability);
  EXPECT_EQ(live.apps.back().app, "app 39");
}

// Of answers in turn of 4 and of 16 tokens, the `i`th: each step takes `step_ms`, and `ramp_ms`
// come on top.
Observation Answered(int i, double step_ms, double ramp_ms) {
  Observation seen;
  seen.decoded_tokens = i % 2 == 0 ? 3 : 15;
  seen.decode_ms = step_ms * seen.decoded_tokens + ramp_ms;
  return seen;
}

// The first steps take two more together.
TEST(LatencyLearningTest, LearnsWhatAnAnswersFirstStepsTakeLonger) {
  CostParameters cost;
  cost.decode_us_per_token = 10'000;
  LiveCorrection live;
  for (int i = 0; i < 200; ++i) {
    Observation seen = Answered(i, 12, 2 * 12);
    seen.app = i % 2 == 0 ? "short" : "long";
    seen.ttft_share = 1;
    seen.complete = true;
    live = Learn(cost, live, seen);
  }
  EXPECT_NEAR(live.ramp.Steps(), 2, 0.1);
  EXPECT_NEAR(live.step.Ms({10}), 12, 0.2);
  EXPECT_DOUBLE_EQ(live.AnswerTokensOf("short"), 4);
  EXPECT_DOUBLE_EQ(live.AnswerTokensOf("long"), 16);
  EXPECT_EQ(live.AnswerTokensOf("another"), live.mean_completion_tokens);
  CallShape call;
  call.max_tokens = 100;
  call.answer_tokens = live.AnswerTokensOf("short");
  const Prediction brief = Predict(cost, live, call, Load{});
  EXPECT_NEAR(brief.tpot_ms, 12 + 24 / 3.0, 0.3);
  EXPECT_NEAR(brief.TpotMs(16), 12 + 24 / 15.0, 0.3);
  call.answer_tokens = 16;
  EXPECT_NEAR(Predict(cost, live, call, Load{}).tpot_ms, 12 + 24 / 15.0, 0.3);
  EXPECT_NEAR(brief.end_to_end_ms - brief.ttft_ms, 99 * 12 + 24, 15);
  call.max_tokens = 2;
  EXPECT_EQ(Predict(cost, live, call, Load{}).answer_tokens, 2);
}

// Calibrated times that are half as long as real ones are: the first sixty answers tell.
TEST(LatencyLearningTest, LearnsTheRampWhereTheCalibrationIsFarOff) {
  CostParameters cost;
  cost.decode_us_per_token = 2'000;
  LiveCorrection live;
  for (int i = 0; i < 60; ++i) {
    Observation seen = Answered(i, 3.15, 3.4);
    seen.full_alone = true;
    live = Learn(cost, live, seen);
  }
  CallShape call;
  call.max_tokens = 64;
  for (const double tokens : {4, 8, 16}) {
    call.answer_tokens = tokens;
    EXPECT_NEAR(PredictFullIdle(cost, live, call).tpot_ms, 3.15 + 3.4 / (tokens - 1),
                0.03 * (3.15 + 3.4 / (tokens - 1)))
        << tokens;
  }
}

// A stall of a second in one of a hundred answers.
TEST(LatencyLearningTest, AStallIsNoRamp) {
  CostParameters cost;
  cost.decode_us_per_token = 10'000;
  LiveCorrection live;
  for (int i = 0; i < 101; ++i) {
    live = Learn(cost, live, Answered(i, 10, 10 + (i == 100 ? 1000 : 0)));
  }
  EXPECT_NEAR(live.ramp.Steps(), 1, 0.3);
}

// A calibrated board that has become slower since: what was learnt from one length, depth and level
// holds for the others, but for a part that may have been a constant, or the depth's alone.
TEST(LatencyLearningTest, LiveCorrectionStaysOnTop) {
  LiveCorrection live = kNeutral;
  for (int i = 0; i < 150; ++i) {
    Observation seen;
    seen.level = Scaled(kMeasured, {.prefill = 0.5, .decode = 0.5});
    seen.resident_tokens = 1000;
    seen.prefilled_tokens = 40;
    seen.prefill_ms = 1.5 * 24;
    seen.decoded_tokens = 20;
    seen.decode_ms = 20 * 2 * 0.5 * (20 + (1000 + 40 + 10) * 0.01);
    live = Learn(kMeasured, live, seen);
  }
  EXPECT_NEAR(live.prefill.Ms({24}), 1.5 * 24, 0.1);
  EXPECT_NEAR(live.step.Ms({10, 5.25}), 2 * 15.25, 0.1);
  const Prediction p = PredictFullIdle(kMeasured, live, {64, 1, {}});
  EXPECT_NEAR(p.ttft_ms, 1.5 * 64, 4);
  EXPECT_NEAR(p.tpot_ms, 2 * (20 + 64.5 * 0.01), 6);
}

}  // namespace
}  // namespace withy::policy
