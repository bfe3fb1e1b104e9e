#include "policy/call/app_budget.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::policy {
namespace {

constexpr int64_t kHour = 3'600'000;
constexpr int64_t kNoonMs = 20'000 * 24 * kHour + 12 * kHour;  // of a day

BudgetLimits Limits(uint64_t tokens_hour, uint64_t tokens_day, uint64_t joules_hour = 0) {
  return {.limits = {tokens_hour, tokens_day, joules_hour, 0}};
}

TEST(AppBudget, WhatIsUsedIsMissingUntilTheHourEnds) {
  BudgetUse use;
  const BudgetLimits limits = Limits(100, 0);
  use.Spend(kNoonMs, 30, 0);
  use.Spend(kNoonMs + kHour - 1, 20, 0);
  auto states = StatesOf(limits, use, kNoonMs + kHour - 1);
  ASSERT_EQ(states.size(), 1u);
  EXPECT_EQ(states[0].left, 50u);
  EXPECT_EQ(states[0].limit, 100u);
  EXPECT_EQ(states[0].resets_in_ms, 1);
  states = StatesOf(limits, use, kNoonMs + kHour);
  EXPECT_EQ(states[0].left, 100u);
  EXPECT_EQ(states[0].resets_in_ms, kHour);
}

TEST(AppBudget, TheLastCallMayGoOverAndNothingIsLeftThen) {
  BudgetUse use;
  use.Spend(kNoonMs, 99, 0);
  EXPECT_FALSE(UsedUp(StatesOf(Limits(100, 0), use, kNoonMs)).has_value());
  use.Spend(kNoonMs, 500, 0);
  const auto used_up = UsedUp(StatesOf(Limits(100, 0), use, kNoonMs));
  ASSERT_TRUE(used_up.has_value());
  EXPECT_EQ(used_up->left, 0u);
}

TEST(AppBudget, TheOneThatResetsLastIsNamed) {
  BudgetUse use;
  use.Spend(kNoonMs, 200, 50);
  const auto used_up = UsedUp(StatesOf(Limits(100, 150, 40), use, kNoonMs));
  ASSERT_TRUE(used_up.has_value());
  EXPECT_EQ(NameOf(used_up->budget), "tokens_per_day");
  EXPECT_EQ(used_up->resets_in_ms, 12 * kHour);
  // The day goes on when the hour is over.
  EXPECT_TRUE(UsedUp(StatesOf(Limits(100, 150), use, kNoonMs + kHour)).has_value());
  EXPECT_FALSE(UsedUp(StatesOf(Limits(100, 0), use, kNoonMs + kHour)).has_value());
}

TEST(AppBudget, AClockThatIsSetBackBeginsAnew) {
  BudgetUse use;
  use.Spend(kNoonMs, 100, 0);
  const int64_t before = kNoonMs - 48 * kHour;
  EXPECT_FALSE(UsedUp(StatesOf(Limits(100, 100), use, before)).has_value());
  use.Spend(before, 100, 0);
  EXPECT_TRUE(UsedUp(StatesOf(Limits(100, 100), use, before)).has_value());
}

TEST(AppBudget, NamesAreThoseOfTheConfiguration) {
  for (size_t i = 0; i < kBudgets; ++i) {
    EXPECT_EQ(BudgetOf(NameOf(static_cast<Budget>(i))), static_cast<Budget>(i));
  }
  EXPECT_EQ(BudgetOf("tokens"), std::nullopt);
}

}  // namespace
}  // namespace withy::policy
