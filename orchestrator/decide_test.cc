#include "orchestrator/decide.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/digest.h"
#include "withy/v1/llm_service.pb.h"

namespace withy::orchestrator {
namespace {

using ::testing::HasSubstr;

Prediction Make(double ttft_ms, double tpot_ms) {
  return {0, ttft_ms, tpot_ms, ttft_ms + 10 * tpot_ms};
}

// Levels that scale with their per cent.
DecisionInput Levels(std::vector<uint32_t> percents) {
  DecisionInput input;
  input.full_idle = Make(100, 10);
  for (uint32_t percent : percents)
    input.candidates.push_back({percent, Make(percent, percent / 10.0)});
  return input;
}

TEST(DecideTest, NoSloRunsTheWholeModel) {
  const auto decision = Decide(Levels({20, 60, 100}));
  ASSERT_TRUE(decision.ok());
  EXPECT_EQ(decision->model_level_percent(), 100u);
  EXPECT_EQ(decision->prompt_level_percent(), 100u);
  EXPECT_TRUE(decision->predicted_to_meet_slo());
  EXPECT_EQ(decision->reason(), v1::DECISION_REASON_FULL_MEETS_SLO);
}

TEST(DecideTest, TakesTheLargestLevelThatMeets) {
  DecisionInput input = Levels({20, 60, 100});
  input.slo.set_ttft_ratio(0.7);
  EXPECT_EQ(Decide(input)->model_level_percent(), 60u);
  EXPECT_EQ(Decide(input)->reason(), v1::DECISION_REASON_LATENCY_MODEL);
  input.slo.Clear();
  input.slo.set_tpot_ms(2);
  EXPECT_EQ(Decide(input)->model_level_percent(), 20u);
  input.slo.Clear();
  input.slo.set_end_to_end_ms(200);
  EXPECT_EQ(Decide(input)->model_level_percent(), 100u);
  EXPECT_DOUBLE_EQ(Decide(input)->predicted().end_to_end_ms(), 200);
}

TEST(DecideTest, NothingMeets) {
  DecisionInput input = Levels({20, 100});
  input.slo.set_ttft_ms(5);
  const auto told = Decide(input);
  ASSERT_TRUE(told.ok());
  EXPECT_EQ(told->model_level_percent(), 20u);
  EXPECT_EQ(told->reason(), v1::DECISION_REASON_BEST_EFFORT);
  EXPECT_FALSE(told->predicted_to_meet_slo());
  EXPECT_THAT(told->explanation(), HasSubstr("TTFT 20 ms"));
  input.slo.set_strict(true);
  const auto refused = Decide(input);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("TTFT 20 ms, TPOT 2 ms"));
}

TEST(DecideTest, TheCallerMayFixTheLevel) {
  DecisionInput input = Levels({20, 60, 100});
  input.fixed_level_percent = 60;
  EXPECT_EQ(Decide(input)->model_level_percent(), 60u);
  EXPECT_EQ(Decide(input)->reason(), v1::DECISION_REASON_FIXED_BY_CALLER);
  input.slo.set_ttft_ms(30);
  EXPECT_FALSE(Decide(input)->predicted_to_meet_slo());
  input.slo.set_strict(true);
  EXPECT_FALSE(Decide(input).ok());
  input.fixed_level_percent = 50;
  EXPECT_EQ(Decide(input).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(DecideTest, ARatioOfOneIsMetByTheIdleFullModel) {
  DecisionInput input = Levels({100});
  input.full_idle = input.candidates[0].predicted;
  input.slo.set_ttft_ratio(1);
  input.slo.set_tpot_ratio(1);
  input.slo.set_strict(true);
  EXPECT_TRUE(Decide(input).ok());
}

// Against brute force: no allowed level above the chosen one meets, and "meets" is said truly.
TEST(DecideTest, BruteForce) {
  const unsigned seed = 20260;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(1, 100);
  for (int round = 0; round < 5000; ++round) {
    DecisionInput input;
    input.full_idle = Make(time(random), time(random));
    const uint32_t count = 1 + random() % 9;
    for (uint32_t i = 0; i < count; ++i) {
      input.candidates.push_back({100 - 10 * (count - 1 - i), Make(time(random), time(random))});
    }
    if (random() % 2 == 0) input.slo.set_ttft_ms(time(random));
    if (random() % 2 == 0) input.slo.set_tpot_ms(time(random));
    const SloTargets targets = ResolveSlo(input.slo, input.full_idle);
    uint32_t best = 0;
    double fastest = 1e300;
    for (const Candidate& c : input.candidates) {
      if (c.predicted.ttft_ms <= targets.ttft_ms && c.predicted.tpot_ms <= targets.tpot_ms)
        best = c.level_percent;
      fastest = std::min(fastest, c.predicted.end_to_end_ms);
    }
    const auto decision = Decide(input);
    ASSERT_TRUE(decision.ok()) << "seed " << seed;
    ASSERT_EQ(decision->predicted_to_meet_slo(), best != 0)
        << "seed " << seed << " round " << round;
    if (best != 0) {
      ASSERT_EQ(decision->model_level_percent(), best) << "seed " << seed << " round " << round;
    } else {
      ASSERT_EQ(decision->predicted().end_to_end_ms(), fastest)
          << "seed " << seed << " round " << round;
    }
    input.slo.set_strict(true);
    ASSERT_EQ(Decide(input).ok(), best != 0);
  }
}

TEST(DigestTest, DependsOnTheRequestButNotOnItsId) {
  v1::GenerateRequest a;
  a.mutable_prompt()->set_text("hello");
  a.set_request_id("one");
  v1::GenerateRequest b = a;
  b.set_request_id("two");
  EXPECT_EQ(RequestDigest(a), RequestDigest(b));
  EXPECT_EQ(RequestDigest(a).size(), 32u);
  b.mutable_prompt()->set_text("hello!");
  EXPECT_NE(RequestDigest(a), RequestDigest(b));
}

}  // namespace
}  // namespace withy::orchestrator
