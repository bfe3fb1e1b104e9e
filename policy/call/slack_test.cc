#include "policy/call/slack.h"

#include <cmath>

#include "base/contract_limits.h"
#include "gtest/gtest.h"

namespace withy::policy {
namespace {

constexpr int64_t kMillis = 1'000'000;
constexpr double kPieceMs = 50;

// 10 ms a token, promised 12.
CallDemand Talker() {
  CallDemand demand;
  demand.token_ms = 10;
  demand.targets.tpot_ms = 12;
  return demand;
}

TEST(SlackTest, ACallWithoutAnSloBearsEverything) {
  CallDemand demand;
  demand.prefill_ms = 100;
  demand.token_ms = 10;
  const Slack slack = SlackOf(demand, {.remaining = 100}, 0);
  EXPECT_TRUE(std::isinf(slack.ms));
  EXPECT_EQ(HoldMs({1e9, 1e9}, slack, 1e9, kPieceMs), 0);
}

TEST(SlackTest, OfTheTimePerTokenLooksAFewTokensAhead) {
  const CallProgress begun{.first_token_ns = 5 * kMillis, .generated = 1, .remaining = 100};
  const Slack fresh = SlackOf(Talker(), begun, 5 * kMillis);
  EXPECT_DOUBLE_EQ(fresh.ms, 4 * 2) << "2 ms in each of the next tokens";
  EXPECT_DOUBLE_EQ(fresh.gain, 0.2);
  EXPECT_DOUBLE_EQ(fresh.left_ms, 1000);
  const CallProgress later{.first_token_ns = 5 * kMillis, .generated = 51, .remaining = 50};
  EXPECT_DOUBLE_EQ(SlackOf(Talker(), later, 505 * kMillis).ms, 50 * 2 + 4 * 2) << "won meanwhile";
  const CallProgress last{.first_token_ns = 5 * kMillis, .generated = 100, .remaining = 1};
  EXPECT_DOUBLE_EQ(SlackOf(Talker(), last, 995 * kMillis).ms, 99 * 2 + 2);
}

TEST(SlackTest, AnAnswersFirstTokensMayTakeLonger) {
  CallDemand demand = Talker();
  demand.targets.ramp_ms = 7;
  demand.targets.tpot_ms += 7;  // of an answer of two tokens
  const CallProgress begun{.first_token_ns = 5 * kMillis, .generated = 1, .remaining = 100};
  EXPECT_DOUBLE_EQ(SlackOf(demand, begun, 5 * kMillis).ms, 4 * 2 + 7);
}

TEST(SlackTest, TokensThatAreYetToBeToldAreNoDelay) {
  CallProgress told{
      .first_token_ns = 5 * kMillis, .generated = 11, .told_ns = 105 * kMillis, .remaining = 90};
  const double fresh = SlackOf(Talker(), told, 105 * kMillis).ms;
  EXPECT_DOUBLE_EQ(SlackOf(Talker(), told, 105 * kMillis + kDeltaIntervalNs).ms, fresh);
  EXPECT_DOUBLE_EQ(SlackOf(Talker(), told, 108 * kMillis + kDeltaIntervalNs).ms, fresh - 3)
      << "late";
}

// Half of the time at the lowest level: what is left can be done faster, what is past cannot.
TEST(SlackTest, CountsOnTheLowestLevelThatACallMayFallTo) {
  CallDemand demand = Talker();
  demand.least_share = 0.5;
  const CallProgress begun{.first_token_ns = 5 * kMillis, .generated = 1, .remaining = 100};
  EXPECT_DOUBLE_EQ(SlackOf(demand, begun, 5 * kMillis).ms, 4 * 7);
  EXPECT_DOUBLE_EQ(SlackOf(demand, begun, 15 * kMillis).ms, 4 * 7 - 10);
  EXPECT_DOUBLE_EQ(SlackOf(demand, begun, 5 * kMillis).gain, 1.4);
  demand.prefill_ms = 40;
  demand.targets.ttft_ms = 100;
  const CallProgress prefilling{.granted_ns = 10 * kMillis, .remaining = 4};
  EXPECT_DOUBLE_EQ(SlackOf(demand, prefilling, 30 * kMillis).ms, 70 - 10);
}

TEST(SlackTest, OfTheFirstTokenAndOfTheEnd) {
  CallDemand demand = Talker();
  demand.prefill_ms = 40;
  demand.targets.ttft_ms = 100;
  const CallProgress prefilling{.granted_ns = 10 * kMillis, .remaining = 4};
  EXPECT_DOUBLE_EQ(LeftPrefillMs(demand, prefilling, 30 * kMillis), 20);
  EXPECT_DOUBLE_EQ(LeftPrefillMs(demand, prefilling, 90 * kMillis), 0);
  EXPECT_DOUBLE_EQ(SlackOf(demand, prefilling, 30 * kMillis).ms, 50);
  demand.targets.end_to_end_ms = 120;
  EXPECT_DOUBLE_EQ(SlackOf(demand, prefilling, 30 * kMillis).ms, 90 - 20 - 40) << "the tighter one";
}

TEST(SlackTest, HoldsUntilTheSlackIsWonOrTheCallHasEnded) {
  Slack slack{.ms = 32, .gain = 0.2, .left_ms = 1000, .left_tokens = 100};
  EXPECT_EQ(HoldMs({32, 0}, slack, 0, kPieceMs), 0) << "just bears it";
  EXPECT_DOUBLE_EQ(HoldMs({52, 0}, slack, 0, kPieceMs), 100) << "20 ms more, won at 0.2";
  EXPECT_DOUBLE_EQ(HoldMs({32, 0}, slack, 20, kPieceMs), 100) << "others' prefill counts, too";
  EXPECT_DOUBLE_EQ(HoldMs({44, 2}, slack, 0, kPieceMs), 100) << "and rows beside its own";
  EXPECT_DOUBLE_EQ(HoldMs({4000, 0}, slack, 0, kPieceMs), 1000) << "at most until it has ended";
  slack.gain = 0;
  EXPECT_DOUBLE_EQ(HoldMs({52, 0}, slack, 0, kPieceMs), 1000);
  slack.left_tokens = 1;
  EXPECT_DOUBLE_EQ(HoldMs({1e6, 0}, slack, 0, 30), 0) << "one more token waits for one piece only";
}

TEST(SlackTest, NobodyWaitsForACallThatMissesAnyway) {
  const Slack late{.ms = -1, .gain = 0.2, .left_ms = 1000, .left_tokens = 100};
  EXPECT_EQ(HoldMs({500, 0}, late, 0, kPieceMs), 0);
}

}  // namespace
}  // namespace withy::policy
