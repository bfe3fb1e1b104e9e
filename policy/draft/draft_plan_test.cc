#include "policy/draft/draft_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "policy/constants.h"

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr auto kLookup = DraftSourceKind::kLookup;
constexpr auto kPrefix = DraftSourceKind::kPrefix;
constexpr auto kDraft = DraftSourceKind::kDraft;

// Rows are nearly free, so that what is likely is verified.
const std::vector<RowCost> kCheapRows = {{.rows = 1, .ms = 10}, {.rows = 32, .ms = 10.5}};

class DraftPlanTest : public testing::Test {
 protected:
  // A call that both models may draft for.
  DraftedCall& AddCall() {
    states_.push_back(std::make_unique<SpeculationState>(kCredit));
    states_.push_back(std::make_unique<SpeculationState>(kCredit));
    calls_.push_back(std::make_unique<DraftedCall>(
        DraftedCall{.speculation = {*states_[states_.size() - 2], *states_.back()},
                    .room = {.depth = 20, .nodes = 40},
                    .plain_ms = 10,
                    .plain_so_far_ms = 1000}));
    for (const DraftSourceKind source : {kPrefix, kDraft}) Offer(source) = {.ready = true};
    Offer(kPrefix).pass_ms = 1;
    Offer(kDraft).pass_ms = 2;
    for (const auto& call : calls_) call->other_rows = static_cast<int32_t>(calls_.size()) - 1;
    return *calls_.back();
  }
  // Of the last call.
  DraftOffer& Offer(DraftSourceKind source) {
    return calls_.back()->offers[static_cast<size_t>(source)];
  }
  DraftPlan Plan(bool may_ask_models = true) {
    std::vector<DraftedCall*> calls;
    for (const auto& call : calls_) calls.push_back(call.get());
    return DraftPlan(options_, learning_, calls, may_ask_models);
  }
  // What a source adds to a call's tree: a chain that is surely right.
  static void Expect(DraftedCall& call, DraftSourceKind source, int32_t tokens) {
    int32_t at = -1;
    for (int32_t token = 1; token <= tokens; ++token) {
      at = call.tree.Add(at, token, 0.99, {source, DraftConfidence::kBins - 1});
    }
  }
  // Makes what the source has gained of late known to all calls.
  void Gains(DraftSourceKind source, double gain) {
    for (const auto& state : states_) {
      for (int i = 0; i < 60; ++i) state->GainOf(source).OnDrafted(gain, 10, 10);
    }
  }

  static constexpr double kCredit = 4;
  DraftOptions options_;
  DraftLearning learning_{kCheapRows, /*streams=*/false};
  std::vector<std::unique_ptr<SpeculationState>> states_;  // context, app of each call
  std::vector<std::unique_ptr<DraftedCall>> calls_;
};

TEST_F(DraftPlanTest, LooksUpFirstAndAsksNoModelWhereAMatchIsVerified) {
  DraftedCall& call = AddCall();
  DraftPlan plan = Plan();
  ASSERT_NE(plan.next(), nullptr);
  EXPECT_EQ(plan.next()->source, kLookup);
  EXPECT_THAT(plan.next()->calls, ElementsAre(&call));
  EXPECT_EQ(plan.next()->limits.front().max_depth, 20);
  Expect(call, kLookup, 5);
  plan.OnDrafted({});
  EXPECT_EQ(plan.next(), nullptr);
  EXPECT_THAT(call.chosen, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_FALSE(call.model.has_value());
  EXPECT_EQ(call.draft_ms, 0);
}

TEST_F(DraftPlanTest, AsksTheModelThatGainedMoreAndItAlone) {
  for (const auto& [better, worse] : {std::pair(kPrefix, kDraft), std::pair(kDraft, kPrefix)}) {
    calls_.clear();
    states_.clear();
    DraftedCall& call = AddCall();
    Gains(better, 2);
    Gains(worse, 1.5);
    DraftPlan plan = Plan();
    plan.OnDrafted({});
    ASSERT_NE(plan.next(), nullptr);
    EXPECT_EQ(plan.next()->source, better);
    const GrowthLimits& limits = plan.next()->limits.front();
    EXPECT_GE(limits.max_passes, 1);
    EXPECT_NEAR(limits.token_ms, 10.0 / 2, 0.1) << "what a token takes by now";
    EXPECT_EQ(limits.pass_ms, better == kPrefix ? 1 : 2);
    EXPECT_NEAR(plan.next()->patience_ms, kDraftPatience * limits.max_passes * limits.pass_ms,
                1e-9);
    Expect(call, better, 3);
    plan.OnDrafted({.ms = 4, .caught_up_ms = 1});
    EXPECT_EQ(plan.next(), nullptr);
    EXPECT_EQ(call.model, better);
    EXPECT_EQ(call.draft_ms, 4);
    EXPECT_EQ(call.catch_up_ms, 1);
    EXPECT_THAT(call.chosen, testing::Not(IsEmpty()));
  }
}

// Else a model that pays a little would be asked for ever, however much another one would gain.
TEST_F(DraftPlanTest, AModelThatNobodyTriedIsAskedBeforeOneThatPays) {
  DraftedCall& call = AddCall();
  call.offers[static_cast<size_t>(kPrefix)].grows_in_windows = true;
  call.offers[static_cast<size_t>(kDraft)].grows_in_windows = true;
  Gains(kPrefix, 3);
  const auto asked = [&] {
    DraftPlan plan = Plan();
    plan.OnDrafted({});
    return plan.next() == nullptr ? std::nullopt : std::optional(plan.next()->source);
  };
  EXPECT_EQ(asked(), kDraft);
  EXPECT_EQ(call.windows, kDraft);
  Gains(kDraft, 1.5);
  EXPECT_EQ(asked(), kPrefix);
  EXPECT_EQ(call.windows, kPrefix);
  for (const auto& state : states_) state->GainOf(kDraft).OnPaused(kTrialTokens);
  EXPECT_EQ(asked(), kDraft) << "it may have become better";
}

TEST_F(DraftPlanTest, AModelIsAskedBesideALookUpThatPromisesLess) {
  DraftedCall& call = AddCall();
  Gains(kPrefix, 1.2);
  const auto asked = [&](double gain) {
    Gains(kDraft, gain);
    call.tree = {};
    DraftPlan plan = Plan();
    Expect(call, kLookup, 3);
    plan.OnDrafted({});
    EXPECT_EQ(call.chosen.size(), 3u);
    return plan.next() != nullptr && plan.next()->source == kDraft;
  };
  EXPECT_FALSE(asked(2)) << "four tokens for the time of one are expected";
  EXPECT_TRUE(asked(6));
}

TEST_F(DraftPlanTest, WhatALookUpGaveIsNoGainOfTheModelBesideIt) {
  DraftedCall& call = AddCall();
  Gains(kPrefix, 1.2);
  Gains(kDraft, 6);
  const SourceGain& gain = call.speculation.GainOf(kDraft);
  const auto gain_behind_step = [&](int32_t matched) {
    call.tree = {};
    DraftPlan plan = Plan();
    Expect(call, kLookup, matched);
    plan.OnDrafted({});
    EXPECT_EQ(plan.next()->source, kDraft);
    Expect(call, kDraft, 8);
    plan.OnDrafted({.ms = 2});
    EXPECT_EQ(call.model, kDraft);
    const auto rows = static_cast<int32_t>(call.chosen.size()) + 1;
    learning_.OnStep(&call,
                     {.rows = rows, .batch_calls = 1, .batch_rows = rows, .ms = 10, .alone = true},
                     10, std::vector<int32_t>{1, 2, 3, 4});
    call.plain_ms = 10;
    return gain.gain();
  };
  const double before = gain.gain();
  EXPECT_EQ(gain_behind_step(3), before);
  EXPECT_LT(gain_behind_step(0), before) << "four tokens are fewer than six";
}

TEST_F(DraftPlanTest, AModelIsAskedOnlyWhereItIsAllowedReadyAndPays) {
  DraftedCall& call = AddCall();
  const auto asked = [&](bool may_ask_models = true) {
    DraftPlan plan = Plan(may_ask_models);
    if (plan.next() != nullptr && plan.next()->source == kLookup) plan.OnDrafted({});
    return plan.next() == nullptr ? std::nullopt : std::optional(plan.next()->source);
  };
  EXPECT_EQ(asked(), kPrefix);
  EXPECT_EQ(asked(/*may_ask_models=*/false), std::nullopt) << "others would wait";
  call.mode = SpeculationMode::kLookup;
  EXPECT_EQ(asked(), std::nullopt);
  call.mode = SpeculationMode::kDraft;
  EXPECT_EQ(asked(), kDraft);
  call.room.nodes = 0;
  EXPECT_EQ(asked(), std::nullopt) << "there is no room";
  call.room.nodes = 40;
  Offer(kDraft).ready = false;
  EXPECT_EQ(asked(), std::nullopt);
  Offer(kDraft).ready = true;
  Gains(kDraft, 0.5);
  EXPECT_EQ(asked(), std::nullopt) << "it does not pay";
  options_.always = true;
  EXPECT_EQ(asked(), kDraft);
}

TEST_F(DraftPlanTest, ALongPromptIsCaughtUpOnlyForALongAnswer) {
  DraftedCall& call = AddCall();
  call.mode = SpeculationMode::kDraft;
  const auto asked = [&](double catch_up_ms, double plain_so_far_ms) {
    Offer(kDraft).catch_up_ms = catch_up_ms;
    call.plain_so_far_ms = plain_so_far_ms;
    DraftPlan plan = Plan();
    return plan.next() == nullptr ? -1 : plan.next()->patience_ms;
  };
  EXPECT_GT(asked(10, 10 / kCatchUpShare + 1), 10) << "at once, and then it drafts";
  EXPECT_EQ(asked(10, 10 / kCatchUpShare - 1), -1);
  // It cannot be afforded at once: a slice of it, in the time of a pass.
  EXPECT_EQ(asked(500, 500 / kSlicedCatchUpShare - 1), -1);
  EXPECT_NEAR(asked(500, 500 / kSlicedCatchUpShare + 1), kDraftPatience * 2, 1e-9);
}

TEST_F(DraftPlanTest, CallsThatShareAStepWaitTogetherAndAffordItTogether) {
  DraftedCall& first = AddCall();
  DraftedCall& second = AddCall();
  DraftPlan plan = Plan();
  ASSERT_EQ(plan.next()->source, kLookup);
  Expect(first, kLookup, 4);
  plan.OnDrafted({});
  ASSERT_NE(plan.next(), nullptr);
  EXPECT_THAT(plan.next()->calls, ElementsAre(&second)) << "the other has a match";
  Expect(second, kPrefix, 4);
  plan.OnDrafted({.ms = 2});
  EXPECT_EQ(first.draft_ms, 2) << "it waited, too";
  EXPECT_FALSE(first.model.has_value());
  EXPECT_EQ(second.model, kPrefix);
  EXPECT_FALSE(first.chosen.empty());
  EXPECT_FALSE(second.chosen.empty());
  // One that can afford nothing keeps the pass narrow.
  for (int i = 0; i < 40; ++i) second.speculation.OnPass(1, 20, 10);
  DraftPlan poor = Plan();
  while (poor.next() != nullptr) poor.OnDrafted({});
  EXPECT_THAT(first.chosen, IsEmpty());
}

TEST_F(DraftPlanTest, ADraftThatDidNotComeSaysNothingOfItsModel) {
  DraftedCall& call = AddCall();
  DraftPlan plan = Plan();
  plan.OnDrafted({});
  ASSERT_NE(plan.next(), nullptr);
  plan.OnDrafted({.came = false, .ms = 3});
  EXPECT_FALSE(call.model.has_value());
  EXPECT_EQ(call.draft_ms, 3);
}

// Else one whose drafts are always late would be asked for ever, and the other one never.
TEST_F(DraftPlanTest, AModelThatNobodyTriedAndThatGivesNothingMakesWayForOneThatPays) {
  DraftedCall& call = AddCall();
  Gains(kPrefix, 3);
  const auto in_vain = [&](double catch_up_ms) {
    Offer(kDraft).catch_up_ms = catch_up_ms;
    call.plain_ms = 10;
    DraftPlan plan = Plan();
    plan.OnDrafted({});
    const DraftSourceKind source = plan.next()->source;
    plan.OnDrafted({.came = false, .ms = 3});
    const int32_t answer[] = {1};
    learning_.OnStep(&call, {.rows = 1, .batch_calls = 1, .batch_rows = 1, .ms = 10, .alone = true},
                     10, answer);
    return source;
  };
  EXPECT_EQ(in_vain(/*catch_up_ms=*/5), kDraft);
  EXPECT_EQ(in_vain(0), kDraft) << "it had to compute KV first";
  EXPECT_EQ(in_vain(0), kPrefix);
  for (const auto& state : states_) state->GainOf(kDraft).OnPaused(kTrialTokens);
  EXPECT_EQ(in_vain(0), kDraft);
}

TEST_F(DraftPlanTest, EverySourceIsAskedWhereNothingIsWeighed) {
  DraftedCall& call = AddCall();
  options_.always = true;
  options_.max_tree_rows = 4;
  DraftPlan plan = Plan(/*may_ask_models=*/false);
  std::vector<DraftSourceKind> asked;
  while (plan.next() != nullptr) {
    asked.push_back(plan.next()->source);
    EXPECT_EQ(plan.next()->patience_ms, 0);
    Expect(call, plan.next()->source, 9);
    plan.OnDrafted({.ms = 100});
  }
  EXPECT_THAT(asked, ElementsAre(kLookup, kPrefix, kDraft));
  EXPECT_EQ(call.chosen.size(), 3u) << "as many as there are rows";
}

// Now and then a pass of one call alone tells what those with drafts are compared with.
TEST_F(DraftPlanTest, AStepInManyIsPlain) {
  DraftedCall& call = AddCall();
  int32_t plain = 0;
  for (int32_t step = 0; step < 3 * (kPassesBetweenPlain + 1); ++step) {
    call.plain_ms = 10;
    call.tree = {};
    DraftPlan plan = Plan();
    Expect(call, kLookup, 2);
    while (plan.next() != nullptr) plan.OnDrafted({});
    const auto rows = static_cast<int32_t>(call.chosen.size()) + 1;
    plain += rows == 1 ? 1 : 0;
    const std::vector<int32_t> answer = {1, 2, 3};
    const VerifiedDrafts told = learning_.OnStep(
        &call, {.rows = rows, .batch_calls = 1, .batch_rows = rows, .ms = 10, .alone = true}, 10,
        std::span(answer).first(static_cast<size_t>(rows)));
    EXPECT_EQ(told.accepted[0], rows - 1);
    EXPECT_EQ(call.plain_ms, 0) << "the step is over";
  }
  EXPECT_EQ(plain, 3);
}

TEST_F(DraftPlanTest, AcceptedTokensGainAndTeachTheirModel) {
  DraftedCall& call = AddCall();
  call.mode = SpeculationMode::kPrefix;
  DraftPlan plan = Plan();
  ASSERT_EQ(plan.next()->source, kPrefix);
  Expect(call, kPrefix, 3);
  plan.OnDrafted({.ms = 3});
  ASSERT_EQ(call.chosen.size(), 3u);
  const double alpha = call.speculation.context.fallback.alpha();
  const std::vector<int32_t> answer = {1, 2, 3, 7};
  const VerifiedDrafts told = learning_.OnStep(
      &call, {.rows = 4, .batch_calls = 1, .batch_rows = 4, .ms = 11, .alone = true}, 10, answer);
  EXPECT_EQ(told.drafted[static_cast<size_t>(kPrefix)], 3);
  EXPECT_EQ(told.accepted[static_cast<size_t>(kPrefix)], 3);
  EXPECT_EQ(told.plain_ms, 40);
  EXPECT_EQ(told.took_ms, 14);
  EXPECT_GT(call.speculation.GainOf(kPrefix).gain(), 1.2);
  EXPECT_LT(call.speculation.context.fallback.alpha(), alpha) << "all were right";
}

TEST_F(DraftPlanTest, TheModelThatGainedMoreGrowsInWindows) {
  DraftedCall& call = AddCall();
  const auto windows = [&](bool may_ask_models = true) {
    DraftPlan plan = Plan(may_ask_models);
    while (plan.next() != nullptr) plan.OnDrafted({});
    DraftedCall* const calls[] = {&call};
    const auto ask = WindowAsk(options_, calls);
    EXPECT_EQ(ask.has_value(), call.windows.has_value());
    if (ask.has_value()) {
      EXPECT_EQ(ask->source, call.windows);
    }
    return call.windows;
  };
  EXPECT_EQ(windows(), std::nullopt);
  EXPECT_EQ(SlotsAhead(call), 0);
  Offer(kPrefix).grows_in_windows = true;
  EXPECT_EQ(windows(), kPrefix);
  EXPECT_EQ(SlotsAhead(call), kWindowSlotsAhead);
  Offer(kDraft).grows_in_windows = true;
  EXPECT_EQ(windows(), kPrefix) << "both have gained as much";
  Gains(kPrefix, 1.5);
  Gains(kDraft, 2);
  EXPECT_EQ(windows(), kDraft);
  Offer(kDraft).catch_up_ms = (call.plain_so_far_ms + 11) * kWindowCatchUpShare;
  EXPECT_EQ(windows(), kPrefix) << "more than half of what a pass gains, too: 10 ms";
  Offer(kDraft).catch_up_ms = (call.plain_so_far_ms + 9) * kWindowCatchUpShare;
  EXPECT_EQ(windows(), kDraft);
  Offer(kDraft).catch_up_ms = 1e6;
  EXPECT_EQ(windows(), kPrefix);
  Offer(kDraft).catch_up_ms = 0;
  EXPECT_EQ(windows(/*may_ask_models=*/false), kPrefix)
      << "what the draft model grows is not asked for";
  Offer(kPrefix).grows_in_windows = false;
  EXPECT_EQ(windows(/*may_ask_models=*/false), kDraft) << "it may be behind the next step";
  Offer(kPrefix).grows_in_windows = true;
  Offer(kDraft).catch_up_ms = 1e6;
  call.room.depth = 3;
  EXPECT_EQ(windows(), kPrefix);
  DraftedCall* const calls[] = {&call};
  EXPECT_EQ(WindowAsk(options_, calls)->limits.front().max_depth, 3)
      << "nothing follows the answer's bound";
  options_.windows = false;
  EXPECT_EQ(windows(), std::nullopt);
}

// A pass that waits for a disk computes rows meanwhile.
TEST(DraftLearningTest, RowsOfAStreamedTargetAreCheapUntilTheyAreMeasured) {
  const DraftLearning streamed({}, /*streams=*/true), resident({}, /*streams=*/false);
  EXPECT_NEAR(streamed.costs().Ratio(kStreamedRows), kStreamedRowsCost, 1e-9);
  EXPECT_GT(resident.costs().Ratio(kStreamedRows), 4);
  const DraftLearning measured(kCheapRows, /*streams=*/true);
  EXPECT_NEAR(measured.costs().Ratio(32), 1.05, 1e-9);
  EXPECT_NEAR(measured.PlainMs(10, 31), 10.5, 1e-9);
}

}  // namespace
}  // namespace withy::policy
