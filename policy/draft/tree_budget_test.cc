#include "policy/draft/tree_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "policy/constants.h"

namespace withy::policy {
namespace {

const std::vector<RowCost> kBoard = {{1, 10}, {2, 12}, {4, 16}, {8, 30}, {16, 50}};

TEST(RowCostsTest, BeginsWithWhatWasCalibrated) {
  const RowCosts costs(kBoard);
  EXPECT_DOUBLE_EQ(costs.Ratio(1), 1);
  EXPECT_DOUBLE_EQ(costs.Ratio(2), 1.2);
  EXPECT_DOUBLE_EQ(costs.Ratio(3), 1.4);
  EXPECT_DOUBLE_EQ(costs.Ratio(8), 3);
  EXPECT_DOUBLE_EQ(costs.Ratio(16), 5);
  EXPECT_NEAR(costs.Ratio(200), 5 + 0.25 * 184, 1e-6) << "as from the last two on";
  EXPECT_DOUBLE_EQ(RowCosts().Ratio(5), 1 + 4 * kGuessedRowShare);
}

TEST(RowCostsTest, LearnsWhatPassesTakeAndDoesNotFall) {
  std::mt19937 random(5);
  const auto truth = [](int32_t rows) { return 1 + 0.05 * (rows - 1); };
  RowCosts costs;
  std::lognormal_distribution<double> noise(0, 0.1);
  for (int i = 0; i < 4000; ++i) {
    const auto rows = static_cast<int32_t>(1 + random() % 32);
    costs.Observe(rows, 7 * 1.5 * truth(rows) * noise(random), 7);
  }
  EXPECT_NEAR(costs.PlainMs(7), 10.5, 1.2);
  for (const int32_t rows : {2, 4, 8, 16, 32}) {
    EXPECT_NEAR(costs.Ratio(rows), truth(rows), 0.25) << rows;
  }
  for (int32_t rows = 1; rows < 256; ++rows) EXPECT_LE(costs.Ratio(rows), costs.Ratio(rows + 1));
}

TEST(RowCostsTest, AnUncalibratedBoardIsKnownSoon) {
  const auto truth = [](int32_t rows) { return 1 + 0.04 * (rows - 1); };
  RowCosts costs;
  costs.Observe(1, 60, 60);
  for (const int32_t rows : {2, 3, 4}) costs.Observe(rows, 60 * truth(rows), 60);
  for (const int32_t rows : {2, 4, 6, 8}) EXPECT_NEAR(costs.Ratio(rows), truth(rows), 0.2) << rows;
  for (int i = 0; i < 1000; ++i) costs.Observe(1, 60, 60);
  EXPECT_NEAR(costs.Ratio(4), truth(4), 0.2) << "plain passes do not bring the guess back";
  // One stall says little.
  costs.Observe(5, 60 * 30, 60);
  EXPECT_LT(costs.Ratio(8), 1 + 2 * kGuessedRowShare * 7);
}

TEST(RowCostsTest, ABusyMomentIsForgotten) {
  RowCosts costs(kBoard);
  costs.Observe(1, 10, 10);
  for (int i = 0; i < 50; ++i) costs.Observe(4, 100, 10);
  EXPECT_GT(costs.Ratio(4), 5);
  for (int i = 0; i < 500; ++i) costs.Observe(1, 10, 10);
  EXPECT_NEAR(costs.Ratio(4), 1.6, 0.1);
}

TEST(RowCostsTest, TimesThatCannotBeAreIgnored) {
  RowCosts costs(kBoard);
  costs.Observe(1, 0, 10);
  costs.Observe(1, 10, 0);
  costs.Observe(4, -3, 10);
  EXPECT_DOUBLE_EQ(costs.PlainMs(10), 10);
  EXPECT_DOUBLE_EQ(costs.Ratio(4), 1.6);
}

TEST(ChooseBudgetTest, IsTheBestNumberOfNodes) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  const RowCosts costs(kBoard);
  for (int round = 0; round < 500; ++round) {
    std::vector<double> cumulative(random() % 40);
    for (double& one : cumulative) one = uniform(random);
    std::sort(cumulative.begin(), cumulative.end(), std::greater<>());
    const auto others = static_cast<int32_t>(random() % 4);
    const TreeBudget chosen = ChooseBudget(costs, cumulative, others);
    const auto rate = [&](size_t nodes) {
      double tokens = 1 + others;
      for (size_t i = 0; i < nodes; ++i) tokens += cumulative[i];
      return tokens / costs.Ratio(others + 1 + static_cast<int32_t>(nodes));
    };
    double best = 0;
    for (size_t nodes = 0; nodes <= cumulative.size(); ++nodes) best = std::max(best, rate(nodes));
    const double plain = rate(0);
    if (best < kLeastGain * plain) {
      EXPECT_EQ(chosen.nodes, 0);
    } else {
      EXPECT_DOUBLE_EQ(rate(static_cast<size_t>(chosen.nodes)), best);
      EXPECT_NEAR(chosen.gain, best / plain, 1e-9);
    }
  }
}

TEST(ChooseBudgetTest, RowsThatAreFreeAreAllUsed) {
  const RowCosts costs(std::vector<RowCost>{{1, 100}, {256, 101}});
  EXPECT_EQ(ChooseBudget(costs, std::vector<double>(255, 0.05), 0).nodes, 255);
  const RowCosts dear(std::vector<RowCost>{{1, 100}, {2, 200}});
  EXPECT_EQ(ChooseBudget(dear, std::vector<double>(255, 0.9), 0).nodes, 0);
}

}  // namespace
}  // namespace withy::policy
