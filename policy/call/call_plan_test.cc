#include "policy/call/call_plan.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policy/testing.h"

namespace withy::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Need = CallPlan::Need;

// A prompt of 100 tokens and 1,000 bytes, levels of 20, 50 and 100 % of the time. Prompt levels 50
// and 100. What the TLM finds: `right_`.
class CallPlanTest : public testing::Test {
 protected:
  CallPlanTest() {
    input_.app = "app";
    input_.whole = {.tokens = 100};
    input_.max_tokens = 11;
    input_.cost = kCost;
    input_.live = kNeutral;
    input_.live.tlm_us_per_byte = 1;  // 1 ms
    input_.turn = {.arrived_ns = 1000, .id = 1};
    for (const uint32_t percent : {20u, 50u, 100u}) {
      const double share = percent / 100.0;
      input_.levels.push_back({percent, Scaled(kCost, {.prefill = share, .decode = share})});
    }
    facts_ = {.prompt_levels = {50, 100}, .text_bytes = 1000, .least_percent = 10};
  }

  static ShortenedPrompt Shortened(uint32_t percent) {
    return {.percent = percent,
            .text_bytes = 1000,
            .kept_bytes = 10 * percent,
            .whole = percent == 100};
  }

  // Tells the plan whatever it asks for; what it asked for is in asked_.
  absl::StatusOr<PlannedCall> Run() {
    CallPlan plan(input_);
    turn_ = plan.turn();
    asked_.clear();
    counted_.clear();
    while (plan.need() != Need::kNothing) {
      asked_.push_back(plan.need());
      switch (plan.need()) {
        case Need::kLoad:
          plan.OnLoad(load_);
          break;
        case Need::kShortening:
          plan.OnShortening(facts_);
          break;
        case Need::kReading:
          Read(plan);
          break;
        case Need::kCount:
          counted_.push_back(plan.percent_to_count());
          estimates_[plan.percent_to_count()] = plan.estimated_tokens();
          plan.OnCounted({.tokens = tokens_.at(plan.percent_to_count())});
          break;
        case Need::kNothing:
          break;
      }
    }
    too_slow_ = plan.tlm_too_slow();
    return plan.Finish();
  }

  void Read(CallPlan& plan) {
    if (!unreadable_.ok()) return plan.OnUnreadable(unreadable_);
    TlmReading reading{.ms = read_ms_, .why_whole = why_whole_};
    for (const uint32_t percent : plan.PercentsToTry(facts_.prompt_levels, why_whole_.empty())) {
      reading.prompts.push_back(Shortened(percent));
      for (size_t level = 0; level < 3 && !right_.empty(); ++level) {
        reading.right.push_back(right_.at(percent)[level]);
      }
    }
    plan.OnReading(reading);
  }

  CallPlanInput input_;
  ShorteningFacts facts_;
  Load load_;
  double read_ms_ = 1;
  std::string why_whole_;
  absl::Status unreadable_;
  std::map<uint32_t, std::vector<double>> right_ = {{50, {0.1, 0.2, 0.3}}, {100, {0.2, 0.6, 0.9}}};
  std::map<uint32_t, uint32_t> tokens_ = {{50, 50}, {30, 30}};
  std::vector<Need> asked_;
  std::vector<uint32_t> counted_;
  std::map<uint32_t, uint32_t> estimates_;
  bool too_slow_ = false;
  Turn turn_;
};

TEST_F(CallPlanTest, WithoutAnSloTheFullModelAnswersTheWholePrompt) {
  const auto call = Run();
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_THAT(asked_, ElementsAre(Need::kLoad));
  EXPECT_EQ(call->decision.model_level_percent, 100u);
  EXPECT_EQ(call->shape.prefill_tokens, 100u);
  EXPECT_DOUBLE_EQ(call->predicted.ttft_ms, 100);
  EXPECT_FALSE(call->demand.targets.any());
  EXPECT_EQ(call->demand.least_share, 0.2);
  EXPECT_EQ(turn_.deadline_ns, 0);
}

TEST_F(CallPlanTest, NothingIsReadWhereTheFullModelIsInTime) {
  input_.slo.ttft_ratio = 1;
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_THAT(asked_, ElementsAre(Need::kLoad));
  EXPECT_EQ(call->decision.reason, DecisionReason::kFullMeetsSlo);
  EXPECT_DOUBLE_EQ(call->demand.targets.ttft_ms, 105) << "with the ratio's tolerance";
  EXPECT_EQ(call->demand.targets.FirstTokenByNs(), 1000 + 105 * kNanosPerMilli);
  EXPECT_EQ(turn_.deadline_ns, 1000 + 100 * kNanosPerMilli);
}

// Pruned candidates come after the full model, not beside it: where that is in time, a shorter
// prompt that promises as much is not taken.
TEST_F(CallPlanTest, PrunedPromptsAreLookedAtAfterTheFullModel) {
  input_.slo.ttft_ratio = 1;
  input_.pair_accuracy = [](bool, uint32_t, uint32_t) { return 0.9; };
  facts_.without_examples = Shortened(30);
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->decision.prompt_level_percent, 100u);
  EXPECT_THAT(asked_, ElementsAre(Need::kLoad));
}

TEST_F(CallPlanTest, TheTlmReadsWhereTheFullModelIsLate) {
  input_.slo.ttft_ratio = 0.6;
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_THAT(asked_, ElementsAre(Need::kLoad, Need::kShortening, Need::kReading, Need::kLoad));
  EXPECT_EQ(call->decision.reason, DecisionReason::kTlm);
  EXPECT_EQ(call->decision.prompt_level_percent, 100u);
  EXPECT_EQ(call->decision.model_level_percent, 50u);
  EXPECT_DOUBLE_EQ(call->predicted.ttft_ms, 51) << "reading takes a millisecond";
  EXPECT_FALSE(too_slow_);
}

TEST_F(CallPlanTest, AChosenPromptIsCountedUntilTheChoiceStands) {
  input_.slo.ttft_ratio = 0.3;
  input_.slo.tpot_ratio = 0.6;
  right_[50] = {0.1, 0.8, 0.9};
  tokens_[50] = 70;  // 36 ms with the level of 50 %: late after all
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_THAT(counted_, ElementsAre(50));
  EXPECT_EQ(estimates_[50], 50u);
  EXPECT_EQ(call->decision.prompt_level_percent, 100u);
  EXPECT_EQ(call->decision.model_level_percent, 20u);
  tokens_[50] = 40;
  EXPECT_EQ(Run()->shape.prefill_tokens, 40u);
}

TEST_F(CallPlanTest, ExamplesAreLeftOutWithoutReading) {
  input_.slo.ttft_ratio = 0.35;
  input_.live.tlm_us_per_byte = 1000;  // reading never pays
  input_.pair_accuracy = [](bool, uint32_t prompt, uint32_t level) {
    return prompt == 50 ? 0.8 : level / 200.0;
  };
  facts_.without_examples = Shortened(30);
  facts_.without_examples_worth = 50;
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_THAT(asked_, ElementsAre(Need::kLoad, Need::kShortening, Need::kCount));
  EXPECT_EQ(call->decision.prompt_level_percent, 30u);
  EXPECT_THAT(call->decision.explanation, HasSubstr("Only earlier exchanges are left out"));
  EXPECT_TRUE(too_slow_);
  EXPECT_THAT(call->decision.explanation, HasSubstr("reading the prompt with the TLM would take"));
}

TEST_F(CallPlanTest, SaysWhyThePromptCouldNotBeRead) {
  input_.slo.ttft_ratio = 0.6;
  facts_.why_not = "no TLM is loaded";
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_THAT(call->decision.explanation,
              HasSubstr("The latency model alone decided: no TLM is loaded"));
  facts_.why_not.clear();
  unreadable_ = absl::InvalidArgumentError("no words");
  EXPECT_THAT(Run()->decision.explanation, HasSubstr("the TLM cannot read this prompt"));
  unreadable_ = absl::OkStatus();
  why_whole_ = "all of it is fixed";
  EXPECT_THAT(Run()->decision.explanation, HasSubstr("The prompt stays whole: all of it is fixed"));
}

TEST_F(CallPlanTest, AFixedPromptLevelNeedsTheTlm) {
  input_.fixed_prompt_percent = 50;
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->decision.prompt_level_percent, 50u);
  EXPECT_EQ(call->decision.reason, DecisionReason::kFixedByCaller);
  facts_.why_not = "no TLM is loaded";
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(Run().status().message()),
              HasSubstr("prompt_level_percent is 50, but no TLM is loaded"));
  facts_.why_not.clear();
  unreadable_ = absl::InvalidArgumentError("no words");
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kInvalidArgument);
  input_.fixed_prompt_percent = 100;
  EXPECT_TRUE(Run().ok()) << "nothing to shorten";
}

TEST_F(CallPlanTest, AFixedModelLevelLeavesTheTlmOutAndDoesNotFall) {
  input_.slo.ttft_ratio = 0.3;
  input_.fixed_level_percent = 50;
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_THAT(asked_, ElementsAre(Need::kLoad));
  EXPECT_EQ(call->decision.model_level_percent, 50u);
  EXPECT_EQ(call->demand.least_share, 1);
  EXPECT_FALSE(call->decision.predicted_to_meet_slo);
}

TEST_F(CallPlanTest, AStrictCallThatMissesIsRefused) {
  input_.slo.ttft_ms = 5;
  input_.slo.strict = true;
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kFailedPrecondition);
  input_.slo.strict = false;
  EXPECT_EQ(Run()->decision.reason, DecisionReason::kBestEffort);
}

TEST_F(CallPlanTest, TheWindowHasToHoldPromptAndSystemPrompt) {
  input_.whole = {
      .tokens = 100, .context_tokens = 28, .resident_tokens = 20, .dropped_messages = 3};
  input_.window = 129;
  input_.has_context = true;
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->shape.prefill_tokens, 108u);
  EXPECT_EQ(call->decision.dropped_messages, 3u);
  EXPECT_EQ(call->decision.reused_tokens, 20u);
  EXPECT_THAT(call->decision.explanation, HasSubstr("no room for the oldest 3 messages"));
  input_.window = 128;
  EXPECT_EQ(Run().status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_THAT(std::string(Run().status().message()), HasSubstr("and the system prompt need 128"));
}

TEST_F(CallPlanTest, AnAnswerWithoutALimitIsAsLongAsTheApps) {
  input_.max_tokens = 0;
  EXPECT_EQ(Run()->shape.max_tokens, kUsualAnswerTokens);
  input_.live.apps = {{.app = "app", .reliability = {}, .calls = 9, .answer_tokens = 7.4}};
  EXPECT_EQ(Run()->shape.max_tokens, 8u);
  input_.default_max_tokens = 5;
  EXPECT_EQ(Run()->shape.max_tokens, 5u);
}

// Of an end-to-end time the first token gets what the full model leaves.
TEST_F(CallPlanTest, TheTurnFollowsTheFirstTokensDeadline) {
  input_.slo.end_to_end_ms = 350;
  Run().IgnoreError();
  EXPECT_EQ(turn_.deadline_ns, 1000 + 150 * kNanosPerMilli);
  input_.slo = {.ttft_ms = 60'000};
  Run().IgnoreError();
  EXPECT_EQ(turn_.deadline_ns, 0) << "patience ends before";
}

// Whoever drives a contestant may choose otherwise, among the same candidates.
TEST_F(CallPlanTest, AnotherRuleSeesTheSameCandidates) {
  input_.slo.ttft_ratio = 1;
  input_.shorten_always = true;
  std::set<std::pair<uint32_t, uint32_t>> seen;
  input_.decide = [&](const DecisionInput& given) -> absl::StatusOr<Decision> {
    for (const Candidate& candidate : given.candidates) {
      seen.emplace(candidate.prompt_percent, candidate.level_percent);
    }
    Decision decision;
    decision.prompt_level_percent = 50;
    decision.model_level_percent = 20;
    return decision;
  };
  const auto call = Run();
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(seen.size(), 6u);
  EXPECT_THAT(counted_, ElementsAre(50));
  EXPECT_DOUBLE_EQ(call->predicted.ttft_ms, 50 * 0.2 + 1);
}

// The lossless lever goes first: a TPOT that the full model meets only with drafted tokens is not
// bought with a lower level.
TEST_F(CallPlanTest, CountsOnWhatSpeculationGainedBeforeItFallsToALowerLevel) {
  input_.slo.tpot_ms = 15;  // the full model takes 20 ms a token
  input_.fixed_prompt_percent = 100;
  const auto plain = Run();
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_LT(plain->decision.model_level_percent, 100u);
  EXPECT_EQ(plain->decision.expected_speedup, 1);
  AppHistory& app = input_.live.apps.emplace_back();
  app.app = "app";
  for (int call = 0; call < 8; ++call) app.speculation.Observe(2);
  EXPECT_LT(Run()->decision.model_level_percent, 100u) << "this call may not speculate";
  input_.speculates = true;
  const auto drafted = Run();
  ASSERT_TRUE(drafted.ok()) << drafted.status();
  EXPECT_EQ(drafted->decision.model_level_percent, 100u);
  EXPECT_EQ(drafted->decision.expected_speedup, 2);
  EXPECT_TRUE(drafted->decision.speculation);
  EXPECT_LT(drafted->decision.predicted.tpot_ms, 15);
  EXPECT_DOUBLE_EQ(drafted->decision.full_model.tpot_ms, plain->decision.full_model.tpot_ms)
      << "ratios are of plain decoding";
  EXPECT_THAT(drafted->decision.explanation, HasSubstr("2 times as fast"));
}

}  // namespace
}  // namespace withy::policy
