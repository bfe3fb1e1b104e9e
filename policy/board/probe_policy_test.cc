#include "policy/board/probe_policy.h"

#include "gtest/gtest.h"

namespace withy::policy {
namespace {

TEST(ProbePolicyTest, MeasuresWhilePredictionsAreOff) {
  ProbePolicy policy;
  EXPECT_EQ(policy.Next(0), nullptr) << "nothing was refused";
  policy.Refused({.level_percent = 40});
  ASSERT_NE(policy.Next(0), nullptr);
  EXPECT_EQ(policy.Next(0)->level_percent, 40u);
  policy.Measured(1, 0.5);
  EXPECT_NE(policy.Next(1), nullptr);
  policy.Measured(2, 0.05);
  EXPECT_EQ(policy.Next(kNanosPerSecond), nullptr) << "predictions are right";
  EXPECT_FALSE(policy.wanted());
}

TEST(ProbePolicyTest, NoMoreThanSoManyForOneRefusal) {
  ProbePolicy policy;
  policy.Refused({});
  int measured = 0;
  for (; policy.Next(0) != nullptr; ++measured) policy.Measured(0, 3);
  EXPECT_EQ(measured, kProbesAtOnce);
  policy.Refused({});
  EXPECT_EQ(policy.Next(kLeastProbePauseNs - 1), nullptr);
  EXPECT_NE(policy.Next(kLeastProbePauseNs), nullptr);
}

// A board that stays slow is refused for hours: what that costs is bounded, and so is the time
// until it is noticed that the board has become fast.
TEST(ProbePolicyTest, ABoardThatStaysSlowIsMeasuredSeldomAndForEver) {
  ProbePolicy policy;
  int measured = 0;
  int64_t longest_ns = 0, last_ns = 0;
  for (int64_t now = 0; now < 600 * kNanosPerSecond; now += kNanosPerSecond / 100) {
    policy.Refused({});
    if (policy.Next(now) == nullptr) continue;
    longest_ns = std::max(longest_ns, now - last_ns);
    last_ns = now;
    policy.Measured(now, 0.02);
    ++measured;
  }
  EXPECT_LE(measured, 600 / 8 + 8);
  EXPECT_LE(longest_ns, kMostProbePauseNs + kNanosPerSecond / 100);
  // Off again: at once more, and the next pause is a short one.
  policy.Refused({});
  const int64_t now = policy.due_ns();
  policy.Measured(now, 0.5);
  EXPECT_NE(policy.Next(now), nullptr);
  policy.Measured(now, 0.01);
  EXPECT_EQ(policy.due_ns(), now + kLeastProbePauseNs);
}

TEST(ProbePolicyTest, WhatCannotBeMeasuredWaitsForTheNextRefusal) {
  ProbePolicy policy;
  policy.Refused({});
  policy.Failed(0);
  EXPECT_EQ(policy.Next(100 * kNanosPerSecond), nullptr);
  policy.Refused({});
  EXPECT_NE(policy.Next(100 * kNanosPerSecond), nullptr);
}

TEST(ProbeTokensTest, AsDeepAsTheCallButNotTooDear) {
  Doubt doubt;
  doubt.level.prefill_us_per_token = 1000;
  doubt.prompt_tokens = 200;
  EXPECT_EQ(ProbeTokens(doubt, {}), 200u);
  doubt.prompt_tokens = 1900;
  EXPECT_EQ(ProbeTokens(doubt, {}), 475u) << "half a second";
  doubt.window = 256;
  EXPECT_EQ(ProbeTokens(doubt, {}), 64u);
  doubt.prompt_tokens = 0;
  EXPECT_EQ(ProbeTokens(doubt, {}), 1u);
}

}  // namespace
}  // namespace withy::policy
