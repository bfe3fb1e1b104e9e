#include "policy/call/reliability.h"

#include <cmath>
#include <limits>
#include <random>

#include "base/test_seed.h"
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

TEST(ReliabilityTest, LatenessIsWhatIsBeyondTheLimitInTheMean) {
  const Deviation exact(0, 0.001);
  EXPECT_NEAR(LatenessOf(exact, 60, 50), 0.2, 0.04) << "a bin is 5 % wide";
  EXPECT_NEAR(LatenessOf(exact, 40, 50), 0, 1e-9);
  EXPECT_DOUBLE_EQ(LatenessOf(exact, 500, 50), kMostLateness);
  EXPECT_DOUBLE_EQ(LatenessOf(exact, 50, 0), kMostLateness);
  EXPECT_EQ(LatenessOf(exact, 50, std::numeric_limits<double>::infinity()), 0);
  // Of a normal distribution: 0.4 standard deviations at its mean.
  EXPECT_NEAR(LatenessOf(Deviation(0, 0.1), 50, 50), 0.04, 0.005);
}

// The mean squared error of chances for limits of 1.05 to 1.65 times what was predicted, of `calls`
// calls that are `off`.
template <typename Off>
double ErrorOfChances(int calls, const Off& off, Deviation* deviation) {
  double sum = 0;
  int chances = 0;
  for (int i = 0; i < calls; ++i) {
    const double seen = off();
    for (const double limit : {0.05, 0.1, 0.2, 0.3, 0.5}) {
      sum += std::pow(deviation->ShareUpTo(limit) - (seen <= limit ? 1 : 0), 2);
      ++chances;
    }
    deviation->Observe(seen, kDeviationWeight);
  }
  return sum / chances;
}

// A quiet board becomes busy: half of the calls take half as long again.
TEST(ReliabilityTest, TheSpreadOfABoardThatBecameSlowIsKnownAfterAFewCalls) {
  std::mt19937_64 random(TestSeed());
  std::normal_distribution<double> quiet(0, 0.05), slow(0.45, 0.1);
  const auto busy = [&] { return random() % 2 == 0 ? slow(random) : quiet(random); };
  double quiet_error = 0, first_error = 0, later_error = 0, again_error = 0;
  constexpr int kBoards = 50;
  for (int board = 0; board < kBoards; ++board) {
    Deviation deviation;
    quiet_error += ErrorOfChances(
                       60, [&] { return quiet(random); }, &deviation) /
                   kBoards;
    first_error += ErrorOfChances(5, busy, &deviation) / kBoards;
    later_error += ErrorOfChances(15, busy, &deviation) / kBoards;
    ErrorOfChances(
        8, [&] { return quiet(random); }, &deviation);
    again_error += ErrorOfChances(
                       30, [&] { return quiet(random); }, &deviation) /
                   kBoards;
  }
  EXPECT_LT(quiet_error, 0.035);
  EXPECT_GT(first_error, 0.28);  // what nobody can know
  EXPECT_LT(later_error, 0.29);  // 0.315 by the long memory alone
  EXPECT_LT(again_error, 0.05);
}

TEST(ReliabilityTest, SharesRiseFromNothingToAll) {
  std::mt19937_64 random(TestSeed());
  std::uniform_real_distribution<double> off(-2, 3), weight(0.001, 0.9);
  Deviation deviation;
  for (int i = 0; i < 300; ++i) {
    deviation.Observe(off(random), weight(random));
    double before = 0;
    for (double limit = -0.7; limit < 1.2; limit += 0.03) {
      const double share = deviation.ShareUpTo(limit);
      ASSERT_GE(share, before - 1e-12);
      before = share;
    }
    ASSERT_EQ(deviation.ShareUpTo(-0.7), 0);
    ASSERT_NEAR(before, 1, 1e-9);
  }
}

}  // namespace
}  // namespace withy::policy
