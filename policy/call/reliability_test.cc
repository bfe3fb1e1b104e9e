#include "policy/call/reliability.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace withy::policy {
namespace {

TEST(ReliabilityTest, TheChanceToBeInTimeFollowsWhatPredictionsWereWorth) {
  const Deviation exact(0, 0.1);
  EXPECT_NEAR(ChanceWithin(exact, 50, 50), 0.5, 1e-9);
  EXPECT_NEAR(ChanceWithin(exact, 50, 50 * std::exp(0.1)), 0.841, 0.01);
  EXPECT_NEAR(ChanceWithin(exact, 50, 50 * std::exp(-0.2)), 0.023, 0.01);
  EXPECT_DOUBLE_EQ(ChanceWithin(exact, 50, std::numeric_limits<double>::infinity()), 1);
  EXPECT_NEAR(ChanceWithin(exact, 50, 500), 1, 1e-9);
  EXPECT_NEAR(ChanceWithin(exact, 50, 0.001), 0, 1e-9);
  EXPECT_EQ(ChanceWithin(exact, 50, 0), 0);
  EXPECT_NEAR(ChanceWithin(Deviation(-0.1, 0.1), 50, 50), 0.841, 0.01);
}

}  // namespace
}  // namespace withy::policy
