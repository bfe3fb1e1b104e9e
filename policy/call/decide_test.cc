#include "policy/call/decide.h"

#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policy/board/live_correction.h"

namespace withy::policy {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Prediction Predicted(double ttft_ms, double tpot_ms) {
  Prediction made;
  made.ttft_ms = ttft_ms;
  made.tpot_ms = tpot_ms;
  made.end_to_end_ms = ttft_ms + 10 * tpot_ms;
  return made;
}

// Levels that scale with their per cent.
DecisionInput Levels(std::vector<uint32_t> percents) {
  DecisionInput input;
  input.full_idle = Predicted(100, 10);
  for (uint32_t percent : percents)
    input.candidates.push_back({percent, Predicted(percent, percent / 10.0)});
  return input;
}

TEST(DecideTest, NoSloRunsTheWholeModel) {
  const auto decision = Decide(Levels({20, 60, 100}));
  ASSERT_TRUE(decision.ok());
  EXPECT_EQ(decision->model_level_percent, 100u);
  EXPECT_EQ(decision->prompt_level_percent, 100u);
  EXPECT_TRUE(decision->predicted_to_meet_slo);
  EXPECT_EQ(decision->reason, DecisionReason::kFullMeetsSlo);
}

TEST(DecideTest, TakesTheLargestLevelThatMeets) {
  DecisionInput input = Levels({20, 60, 100});
  input.slo.ttft_ratio = 0.7;
  EXPECT_EQ(Decide(input)->model_level_percent, 60u);
  EXPECT_EQ(Decide(input)->reason, DecisionReason::kLatencyModel);
  input.slo = {};
  input.slo.tpot_ms = 2;
  EXPECT_EQ(Decide(input)->model_level_percent, 20u);
  input.slo = {};
  input.slo.end_to_end_ms = 200;
  EXPECT_EQ(Decide(input)->model_level_percent, 100u);
  EXPECT_DOUBLE_EQ(Decide(input)->predicted.end_to_end_ms, 200);
}

// Nothing is known of how often levels are right.
TEST(DecideTest, OnABoardThatHoldsUpMostCallsASureLevelGoesFirst) {
  DecisionInput input = Levels({20, 60, 80, 100});
  input.slo.tpot_ratio = 1.3;
  EXPECT_EQ(Decide(input)->model_level_percent, 100u);
  for (int i = 0; i < 100; ++i) input.reliability.tpot.Observe(i % 3 == 0 ? 0 : 0.45, 0.03);
  EXPECT_EQ(Decide(input)->model_level_percent, 80u) << "13 ms allow 1.6 times as much";
  input.slo.tpot_ratio = 1;
  EXPECT_EQ(Decide(input)->model_level_percent, 60u);
  input.slo.tpot_ratio = 0.21;
  EXPECT_EQ(Decide(input)->model_level_percent, 20u) << "none is sure: the likeliest";
}

// Calls with targets that the full model meets on a free board and the lowest level beside a
// neighbour, too. The neighbour lets one call of four be as quick as on the free board, after which
// the board is taken for free.
struct BusyBoard {
  explicit BusyBoard(uint64_t seed) : random(seed) { input.slo.tpot_ms = 13; }

  // Whether the call is in time, and the lowest level's would be.
  std::pair<bool, bool> Call(bool busy) {
    const double slowdown = busy && random() % 4 != 0 ? 2.5 : 1;
    for (Candidate& candidate : input.candidates) {
      candidate.predicted = Predicted(candidate.level_percent * live.SlowdownToExpect(),
                                      candidate.level_percent / 10.0 * live.SlowdownToExpect());
    }
    const double luck = std::exp(noise(random)) * slowdown;
    const auto decision = Decide(input);
    level = decision->model_level_percent;
    const double measured = level / 10.0 * luck;
    input.reliability.tpot.Observe(std::log(measured / decision->predicted.tpot_ms),
                                   kDeviationWeight);
    live.TellSlowdown(slowdown);
    live.EndCall();
    return {measured <= 13, 2 * luck <= 13};
  }

  DecisionInput input = Levels({20, 50, 80, 100});
  std::mt19937_64 random;
  std::normal_distribution<double> noise{0, 0.05};
  LiveCorrection live;
  uint32_t level = 100;
};

TEST(DecideTest, ABoardThatBecomesBusyGetsLevelsThatAreInTime) {
  constexpr int kCalls = 25;
  int in_time = 0, attainable = 0, full_again = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    BusyBoard board(TestSeed() + seed);
    for (int i = 0; i < kCalls; ++i) EXPECT_TRUE(board.Call(/*busy=*/false).first);
    EXPECT_EQ(board.level, 100u);
    for (int i = 0; i < kCalls; ++i) {
      const auto [met, lowest_met] = board.Call(/*busy=*/true);
      in_time += met ? 1 : 0;
      attainable += lowest_met ? 1 : 0;
    }
    for (int i = 0; i < kCalls; ++i) board.Call(/*busy=*/false);
    full_again += board.level == 100 ? 1 : 0;
  }
  EXPECT_GT(in_time, 0.9 * attainable);
  EXPECT_GT(full_again, 90);
}

// The full model misses a ratio of 1 by a little in a few calls; one call of fifty is held up.
TEST(DecideTest, ABoardThatBecomesBusyForOneCallKeepsTheFullModel) {
  std::mt19937_64 random(TestSeed());
  std::normal_distribution<double> noise(0, 0.07);
  DecisionInput input = Levels({20, 50, 80, 100});
  input.slo.tpot_ratio = 1;
  int full = 0;
  constexpr int kCalls = 1000;
  for (int i = 0; i < kCalls; ++i) {
    full += Decide(input)->model_level_percent == 100 ? 1 : 0;
    const double stall = random() % 50 == 0 ? 1 : 0;
    input.reliability.tpot.Observe(noise(random) + stall, kDeviationWeight);
  }
  EXPECT_GT(full, 0.95 * kCalls);
}

TEST(DecideTest, NothingMeets) {
  DecisionInput input = Levels({20, 100});
  input.slo.ttft_ms = 5;
  const auto told = Decide(input);
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(told->model_level_percent, 20u);
  EXPECT_EQ(told->reason, DecisionReason::kBestEffort);
  EXPECT_FALSE(told->predicted_to_meet_slo);
  EXPECT_THAT(told->explanation, HasSubstr("TTFT 20 ms"));
  input.slo.strict = true;
  const auto refused = Decide(input);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("TTFT 20 ms, TPOT 2 ms"));
}

TEST(DecideTest, TheCallerMayFixTheLevel) {
  DecisionInput input = Levels({20, 60, 100});
  input.fixed_level_percent = 60;
  EXPECT_EQ(Decide(input)->model_level_percent, 60u);
  EXPECT_EQ(Decide(input)->reason, DecisionReason::kFixedByCaller);
  input.slo.ttft_ms = 30;
  EXPECT_FALSE(Decide(input)->predicted_to_meet_slo);
  input.slo.strict = true;
  EXPECT_FALSE(Decide(input).ok());
  input.fixed_level_percent = 50;
  EXPECT_EQ(Decide(input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DecideTest, ARatioOfOneIsMetByTheIdleFullModel) {
  DecisionInput input = Levels({100});
  input.full_idle = input.candidates[0].predicted;
  input.slo.ttft_ratio = 1;
  input.slo.tpot_ratio = 1;
  input.slo.strict = true;
  EXPECT_TRUE(Decide(input).ok());
}

TEST(DecideTest, NoiseOfAPerCentNeitherShrinksNorRefusesTheFullModel) {
  DecisionInput input = Levels({20, 60, 100});
  input.full_idle =
      Predicted(99, 9.9);  // the full model is predicted to take a per cent more than this
  input.slo.ttft_ratio = 1;
  input.slo.tpot_ratio = 1;
  input.slo.strict = true;
  const auto decision = Decide(input);
  ASSERT_TRUE(decision.ok()) << decision.status();
  EXPECT_EQ(decision->model_level_percent, 100u);
  EXPECT_EQ(decision->reason, DecisionReason::kFullMeetsSlo);
  EXPECT_TRUE(decision->predicted_to_meet_slo);

  input.full_idle = Predicted(90, 9);  // a tenth is more than noise
  EXPECT_EQ(Decide(input)->model_level_percent, 60u);
  input.candidates = {input.candidates.back()};
  EXPECT_EQ(Decide(input).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(DecideTest, ALowerLevelMeetsTheRatioItself) {
  DecisionInput input = Levels({20, 52, 100});
  input.slo.ttft_ratio = 0.5;
  EXPECT_EQ(Decide(input)->model_level_percent, 20u) << "52 % is within the tolerance only";
  input.candidates.erase(input.candidates.begin());
  EXPECT_EQ(Decide(input)->model_level_percent, 52u) << "but better than nothing";
  EXPECT_TRUE(Decide(input)->predicted_to_meet_slo);
}

TEST(DecideTest, MillisecondsHaveNoTolerance) {
  DecisionInput input = Levels({60, 100});
  input.slo.ttft_ms = 99;
  EXPECT_EQ(Decide(input)->model_level_percent, 60u);
}

// Pairs whose first token takes prompt * model, whose pace the model alone.
DecisionInput Pairs(const std::vector<uint32_t>& prompts, const std::vector<uint32_t>& levels) {
  DecisionInput input;
  input.full_idle = Predicted(100, 10);
  for (const uint32_t prompt : prompts) {
    for (const uint32_t level : levels) {
      Candidate& candidate = input.candidates.emplace_back();
      candidate.prompt_percent = prompt;
      candidate.level_percent = level;
      candidate.predicted = Predicted(prompt * level / 100.0, level / 10.0);
      candidate.prefill_tokens = prompt;
    }
  }
  return input;
}

TEST(DecideTest, TheTlmChoosesAmongThePairsThatMeet) {
  DecisionInput input = Pairs({20, 60, 100}, {20, 60, 100});
  input.slo.ttft_ratio = 0.4;
  // Of those that meet none has more of both than 20+100, 60+60 and 100+20.
  const auto choose = [&](uint32_t prompt, uint32_t level) {
    input.tlm = true;
    for (Candidate& candidate : input.candidates) {
      const bool likeliest = candidate.prompt_percent == prompt && candidate.level_percent == level;
      candidate.probability = likeliest ? 0.5 : 0.1;
    }
    const auto decision = Decide(input);
    EXPECT_EQ(decision->reason, DecisionReason::kTlm);
    return std::pair(decision->prompt_level_percent, decision->model_level_percent);
  };
  EXPECT_EQ(choose(100, 20), std::pair(100u, 20u)) << "the likeliest";
  EXPECT_EQ(choose(20, 100), std::pair(20u, 100u));
  EXPECT_EQ(choose(20, 60), std::pair(60u, 60u)) << "never one with less of both";
  EXPECT_EQ(choose(100, 100), std::pair(60u, 60u)) << "one that misses: the most of both together";
  const auto decision = Decide(input);
  EXPECT_EQ(decision->prefill_tokens, 60u);
  EXPECT_DOUBLE_EQ(decision->predicted.ttft_ms, 36);
  EXPECT_THAT(
      decision->explanation,
      HasSubstr("The TLM chose 60 % of the prompt's words and the model at 60 % among all"));
  // Where nothing has to give, nothing does.
  input.slo.ttft_ratio = 1;
  EXPECT_EQ(Decide(input)->reason, DecisionReason::kFullMeetsSlo);
  EXPECT_EQ(Decide(input)->prompt_level_percent, 100u);
}

TEST(DecideTest, SaysWhyTheTlmHadNoSay) {
  DecisionInput input = Levels({20, 60, 100});
  input.without_tlm = "no TLM is loaded";
  input.note = "And a note.";
  EXPECT_THAT(Decide(input)->explanation, Not(HasSubstr("TLM"))) << "it was not needed";
  input.slo.ttft_ratio = 0.7;
  EXPECT_THAT(Decide(input)->explanation,
              HasSubstr("The latency model alone decided: no TLM is loaded. And a note."));
  input.slo.ttft_ratio = 0.01;
  EXPECT_THAT(Decide(input)->explanation, HasSubstr("no TLM is loaded"));
}

TEST(DecideTest, StrictNamesTheFastestPair) {
  DecisionInput input = Pairs({20, 100}, {20, 100});
  input.slo.ttft_ms = 3;
  EXPECT_EQ(Decide(input)->reason, DecisionReason::kBestEffort);
  EXPECT_EQ(Decide(input)->prompt_level_percent, 20u);
  input.slo.strict = true;
  EXPECT_THAT(std::string(Decide(input).status().message()),
              HasSubstr("TTFT 4 ms, TPOT 2 ms, end to end 24 ms with 20 % of the prompt's words"));
}

TEST(DecideTest, APromptThatTheCallerFixedIsNotDecided) {
  DecisionInput input = Pairs({60}, {20, 60, 100});
  input.fixed_prompt = true;
  EXPECT_EQ(Decide(input)->reason, DecisionReason::kFixedByCaller);
  EXPECT_EQ(Decide(input)->model_level_percent, 100u);
  EXPECT_THAT(Decide(input)->explanation, HasSubstr("fixed the prompt's level: 60 %"));
  input.slo.ttft_ms = 40;
  EXPECT_EQ(Decide(input)->model_level_percent, 60u);
}

TEST(DecideTest, ReadingHasToPay) {
  CallTargets targets = ResolveSlo({}, {});
  targets.ttft_ms = 50;
  const auto at = [](double ttft_ms) {
    Candidate candidate;
    candidate.predicted = Predicted(ttft_ms, 1);
    return std::vector<Candidate>{candidate};
  };
  EXPECT_TRUE(PaysToRead(targets, {}, at(40), at(45))) << "it may choose better";
  EXPECT_TRUE(PaysToRead(targets, {}, at(40), at(60)));
  EXPECT_FALSE(PaysToRead(targets, {}, at(60), at(45))) << "its own time would break the SLO";
  EXPECT_TRUE(PaysToRead(targets, {}, at(60), at(70))) << "both miss: the faster way";
  EXPECT_FALSE(PaysToRead(targets, {}, at(80), at(70)));
  // The whole prompt at a low level may promise more than what reading leaves time for.
  const auto expects = [&](double ttft_ms, double expected) {
    std::vector<Candidate> candidates = at(ttft_ms);
    candidates[0].expected = expected;
    return candidates;
  };
  EXPECT_FALSE(PaysToRead(targets, {}, expects(40, 0.5), expects(45, 0.6)));
  EXPECT_TRUE(PaysToRead(targets, {}, expects(40, 0.6), expects(45, 0.5)));
  EXPECT_TRUE(PaysToRead(targets, {}, expects(40, 0.5), expects(60, 0.6))) << "it would be late";
  EXPECT_TRUE(PaysToRead(targets, {}, expects(40, 0.5), at(45))) << "not known";
}

// Levels of which it is known how often each is right.
DecisionInput Known(double spread) {
  DecisionInput input = Levels({20, 60, 80, 100});
  for (size_t i = 0; i < 4; ++i) input.candidates[i].expected = std::array{0.5, 0.9, 0.92, 0.93}[i];
  input.reliability = {.ttft = Deviation(0, spread), .tpot = Deviation(0, spread)};
  return input;
}

TEST(DecideTest, WhatMayComeLateIsWorthLess) {
  const auto level = [](double spread, double ratio) {
    DecisionInput input = Known(spread);
    input.slo.ttft_ratio = ratio;
    return Decide(input)->model_level_percent;
  };
  EXPECT_EQ(level(0.01, 1), 100u) << "predictions are good";
  EXPECT_EQ(level(0.2, 1), 60u) << "a third of the full model's calls would be late";
  EXPECT_EQ(level(0.01, 0.8), 80u);
  EXPECT_EQ(level(0.1, 0.8), 60u);
  EXPECT_EQ(level(0.1, 0.7), 60u) << "late one time of fifty";
  EXPECT_EQ(level(0.1, 0.62), 20u) << "60 % would be right oftener, but late four times of ten";
  EXPECT_EQ(level(0.1, 0.3), 20u);
  DecisionInput none = Known(0.3);
  EXPECT_EQ(Decide(none)->model_level_percent, 100u) << "no SLO";
}

// What a call takes of the board counts only where others come for it.
TEST(DecideTest, WhatTakesTheBoardFromOthersIsWorthLess) {
  DecisionInput input = Known(0.01);
  input.slo.ttft_ratio = 1;
  const auto level = [&](double newcomers) {
    for (Candidate& candidate : input.candidates) {
      candidate.predicted.newcomers = newcomers * candidate.level_percent / 100;
    }
    return Decide(input)->model_level_percent;
  };
  EXPECT_EQ(level(0), 100u);
  EXPECT_EQ(level(0.01), 100u);
  EXPECT_EQ(level(0.5), 60u) << "the rest is right 0.03 times more often";
  EXPECT_EQ(level(5), 20u);
  const auto decision = Decide(input);
  EXPECT_EQ(decision->reason, DecisionReason::kLatencyModel);
  EXPECT_THAT(decision->explanation, HasSubstr("5.0 other calls are to be expected"));
}

// Predictions have been a fifth too high.
TEST(DecideTest, ABiasOfPredictionsCounts) {
  DecisionInput input = Known(0.05);
  input.slo.ttft_ratio = 0.8;
  EXPECT_EQ(Decide(input)->model_level_percent, 60u);
  input.reliability.ttft = Deviation(-0.2, 0.05);
  EXPECT_EQ(Decide(input)->model_level_percent, 80u);
  // Nothing is predicted to meet 15 %, but 20 % is likely to.
  input.slo.ttft_ratio = 0.16;
  const auto decision = Decide(input);
  EXPECT_EQ(decision->model_level_percent, 20u);
  EXPECT_EQ(decision->reason, DecisionReason::kBestEffort);
  EXPECT_FALSE(decision->predicted_to_meet_slo);
  EXPECT_THAT(decision->explanation, HasSubstr("the likeliest of all to be right in time"));
  input.slo.strict = true;
  EXPECT_EQ(Decide(input).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(DecideTest, WhatIsMostlyWrongIsNotTakenForItsSize) {
  DecisionInput input = Levels({25, 30, 100});
  input.candidates[0].expected = 0.71;
  input.candidates[1].expected = 0.68;
  input.candidates[2].expected = 0.93;
  input.slo.ttft_ratio = 0.5;
  EXPECT_EQ(Decide(input)->model_level_percent, 25u);
}

// What the TLM makes of this prompt takes the place of what holds over all.
TEST(DecideTest, TheTlmKnowsThePrompt) {
  DecisionInput input = Known(0.01);
  input.slo.ttft_ratio = 0.9;
  input.tlm = true;
  for (Candidate& candidate : input.candidates) candidate.probability = 0.2;
  input.candidates[1].probability = 0.7;
  EXPECT_EQ(Decide(input)->model_level_percent, 60u);
  EXPECT_EQ(Decide(input)->reason, DecisionReason::kTlm);
}

// Against brute force: no allowed level above the chosen one meets, and "meets" is said truly.
TEST(DecideTest, BruteForce) {
  const unsigned seed = 20260;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(1, 100);
  for (int round = 0; round < 5000; ++round) {
    DecisionInput input;
    input.full_idle = Predicted(time(random), time(random));
    const uint32_t count = 1 + random() % 9;
    for (uint32_t i = 0; i < count; ++i) {
      input.candidates.push_back(
          {100 - 10 * (count - 1 - i), Predicted(time(random), time(random))});
    }
    if (random() % 2 == 0) input.slo.ttft_ms = time(random);
    if (random() % 2 == 0) input.slo.tpot_ms = time(random);
    input.reliability = {.ttft = Deviation(0, 0.001), .tpot = Deviation(0, 0.001)};
    const CallTargets targets = ResolveSlo(input.slo, input.full_idle);
    uint32_t best = 0;
    double closest = 1e300;  // share of the target that is missed most
    bool even = false;       // whether one may be in time or late
    const auto share = [&](double ttft_ms, double tpot_ms) {
      return std::max(ttft_ms / targets.ttft_ms, tpot_ms / targets.tpot_ms);
    };
    for (const Candidate& c : input.candidates) {
      if (c.predicted.ttft_ms <= targets.ttft_ms && c.predicted.tpot_ms <= targets.tpot_ms)
        best = c.level_percent;
      closest = std::min(closest, share(c.predicted.ttft_ms, c.predicted.tpot_ms));
      even |= std::abs(std::log(c.predicted.ttft_ms / targets.ttft_ms)) < 0.03;
      even |= std::abs(std::log(c.predicted.tpot_ms / targets.tpot_ms)) < 0.03;
    }
    if (even) continue;
    const auto decision = Decide(input);
    ASSERT_TRUE(decision.ok()) << "seed " << seed;
    ASSERT_EQ(decision->predicted_to_meet_slo, best != 0) << "seed " << seed << " round " << round;
    if (best != 0) {
      ASSERT_EQ(decision->model_level_percent, best) << "seed " << seed << " round " << round;
    } else {
      ASSERT_EQ(share(decision->predicted.ttft_ms, decision->predicted.tpot_ms), closest)
          << "seed " << seed << " round " << round;
    }
    input.slo.strict = true;
    ASSERT_EQ(Decide(input).ok(), best != 0);
  }
}

}  // namespace
}  // namespace withy::policy
