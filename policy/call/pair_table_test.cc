#include "policy/call/pair_table.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::policy {
namespace {

using ::testing::ElementsAre;

const std::vector<uint32_t> kTableLevels = {20, 40, 60, 80, 100};

// What the test's levels truly do.
struct TrueChances {
  std::vector<double> chances;  // [levels but the full one]

  double Draw(size_t level, std::mt19937& random) const {
    return std::bernoulli_distribution(chances[level])(random) ? 1 : 0;
  }
};

void LearnDraws(const TrueChances& truth, const std::string& app, int times, std::mt19937& random,
                PairTable* table) {
  for (int i = 0; i < times; ++i) {
    for (size_t level = 0; level < truth.chances.size(); ++level) {
      table->Learn(app, {kFullPercent, kTableLevels[level]}, truth.Draw(level, random));
    }
  }
}

TEST(PairTableTest, AscendingPoolsWhatFalls) {
  EXPECT_THAT(Ascending({0.1, 0.5, 0.3, 0.9}, {1, 1, 1, 1}), ElementsAre(0.1, 0.4, 0.4, 0.9));
  EXPECT_THAT(Ascending({0.5, 0.2}, {3, 1}), ElementsAre(testing::DoubleEq(0.425), 0.425));
  EXPECT_TRUE(Ascending({}, {}).empty());
}

// Against the definition: no ascending list of a grid is closer.
TEST(PairTableTest, AscendingIsTheClosest) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto squares = [](const std::vector<double>& a, const std::vector<double>& b,
                          const std::vector<double>& weights) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += weights[i] * (a[i] - b[i]) * (a[i] - b[i]);
    return sum;
  };
  for (int round = 0; round < 20; ++round) {
    std::vector<double> values, weights;
    for (int i = 0; i < 3; ++i) {
      values.push_back(std::uniform_real_distribution<>(0, 1)(random));
      weights.push_back(std::uniform_real_distribution<>(0.1, 5)(random));
    }
    const std::vector<double> found = Ascending(values, weights);
    EXPECT_TRUE(std::is_sorted(found.begin(), found.end()));
    const double least = squares(found, values, weights);
    for (int a = 0; a <= 20; ++a) {
      for (int b = a; b <= 20; ++b) {
        for (int c = b; c <= 20; ++c) {
          EXPECT_LE(least, squares({a / 20.0, b / 20.0, c / 20.0}, values, weights) + 1e-12);
        }
      }
    }
  }
}

TEST(PairTableTest, LossesOrSharesSayWhatLevelsAreWorthBefore) {
  EXPECT_THAT(ChancesBefore({20, 50, 100}, {}), ElementsAre(0.2, 0.5, 1));
  EXPECT_THAT(ChancesBefore({20, 50, 100}, {0.1}), ElementsAre(0.2, 0.5, 1)) << "another length";
  const std::vector<double> by_loss = ChancesBefore({20, 50, 100}, {std::log(4), std::log(2), 0});
  EXPECT_NEAR(by_loss[0], 0.25, 1e-12);
  EXPECT_NEAR(by_loss[1], 0.5, 1e-12);
  EXPECT_EQ(by_loss[2], 1);
  const PairTable table(kTableLevels, {});
  EXPECT_DOUBLE_EQ(table.ChanceOf("app", {100, 40}).mean, 0.4);
  EXPECT_EQ(table.ChanceOf("app", {100, 100}).mean, 1);
  EXPECT_EQ(table.ChanceOf("app", {50, 100}).mean, 0) << "a shorter prompt has to prove itself";
  EXPECT_EQ(table.ChanceOf("app", {100, 50}).mean, 0) << "no such level";
  EXPECT_EQ(PairTable().ChanceOf("app", {100, 100}).mean, 0);
}

TEST(PairTableTest, AHigherLevelIsNeverWorthLess) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto any = [&](uint32_t below) {
    return std::uniform_int_distribution<uint32_t>(0, below - 1)(random);
  };
  PairTable table(kTableLevels, {});
  for (int i = 0; i < 2000; ++i) {
    const std::string app = "app" + std::to_string(any(4));
    const uint32_t prompt = any(2) == 0 ? 50 : 100;
    table.Learn(app, {prompt, kTableLevels[any(5)]}, any(101) / 100.0);
    for (const uint32_t checked : {50u, 100u}) {
      double before = 0, before_board = 0;
      for (const uint32_t level : kTableLevels) {
        const double chance = table.ChanceOf(app, {checked, level}).mean;
        const double board = table.BoardChanceOf({checked, level}).mean;
        EXPECT_GE(chance, before - 1e-12);
        EXPECT_GE(board, before_board - 1e-12);
        EXPECT_LE(chance, 1 + 1e-12);
        before = chance;
        before_board = board;
      }
    }
    ASSERT_EQ(table.ChanceOf(app, {100, 100}).mean, 1);
  }
}

TEST(PairTableTest, FindsTheTrueChances) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const TrueChances truth{{0.3, 0.35, 0.7, 0.95}};
  PairTable table(kTableLevels, {});
  const PairChance before = table.BoardChanceOf({100, 60});
  LearnDraws(truth, "app", 1000, random, &table);
  for (size_t level = 0; level < truth.chances.size(); ++level) {
    const LevelPair pair{100, kTableLevels[level]};
    const PairChance board = table.BoardChanceOf(pair);
    // Five deviations of a mean of as many audits as are remembered.
    EXPECT_NEAR(board.mean, truth.chances[level], 5 * 0.5 / std::sqrt(kBoardAgreementMemory));
    EXPECT_NEAR(board.audits, kBoardAgreementMemory, 1e-6);
    EXPECT_LT(board.spread, before.spread / 4);
    EXPECT_NEAR(table.ChanceOf("app", pair).mean, truth.chances[level],
                5 * 0.5 / std::sqrt(kAgreementMemory));
  }
}

TEST(PairTableTest, ForgetsWhatNoLongerHolds) {
  PairTable table(kTableLevels, {});
  for (int i = 0; i < 5000; ++i) table.Learn("app", {100, 20}, 1);
  for (int i = 0; i < 300; ++i) table.Learn("app", {100, 20}, 0);
  EXPECT_LT(table.ChanceOf("app", {100, 20}).mean, 0.1) << "the app's own";
  EXPECT_GT(table.BoardChanceOf({100, 20}).mean, 0.4) << "the board's takes longer";
  for (int i = 0; i < 1500; ++i) table.Learn("app", {100, 20}, 0);
  EXPECT_LT(table.BoardChanceOf({100, 20}).mean, 0.05);
}

TEST(PairTableTest, AnAppHasTheBoardsChanceUntilItHasItsOwn) {
  PairTable table(kTableLevels, {});
  const auto learn = [&](const std::string& app, double agreement) {
    for (const uint32_t level : kTableLevels) table.Learn(app, {100, level}, agreement);
  };
  for (int i = 0; i < 40; ++i) {
    learn("easy", 1);
    learn("hard", 0);
  }
  const double board = table.BoardChanceOf({100, 20}).mean;
  EXPECT_NEAR(board, 0.5, 0.03);
  EXPECT_EQ(table.ChanceOf("new", {100, 20}).mean, board);
  EXPECT_GT(table.ChanceOf("easy", {100, 20}).mean, 0.9);
  EXPECT_LT(table.ChanceOf("hard", {100, 20}).mean, 0.1);
  learn("new", 1);
  EXPECT_NEAR(table.ChanceOf("new", {100, 20}).mean, (kAppPrior * board + 1) / (kAppPrior + 1),
              0.02);
  EXPECT_NEAR(table.AgreementOf("hard").Expect(20, 0.9, 0.9), 4 * 0.9 / 44, 1e-9);
  EXPECT_EQ(table.AgreementOf("nobody").Expect(20, 0.7, 0.9), 0.7);
}

TEST(PairTableTest, WhatIsNotLearntAndWhatIsKept) {
  PairTable table(kTableLevels, {});
  table.Learn("app", {100, 100}, 0);
  table.Learn("app", {100, 30}, 0);
  table.Learn("app", {0, 20}, 0);
  table.Learn("app", {100, 20}, std::nan(""));
  EXPECT_TRUE(table.board().empty());
  EXPECT_TRUE(table.apps().empty());
  for (size_t i = 0; i <= PairTable::kApps; ++i) {
    table.Learn("app" + std::to_string(i), {100, 20}, 0.5);
  }
  table.Learn("app1", {50, 100}, 0.5);
  ASSERT_EQ(table.apps().size(), PairTable::kApps);
  EXPECT_EQ(table.apps().front().first, "app2") << "the one that learnt longest ago went";
  EXPECT_EQ(table.apps().back().first, "app1");
  EXPECT_THAT(table.Pairs(), ElementsAre(LevelPair{50, 100}, LevelPair{100, 20}, LevelPair{100, 40},
                                         LevelPair{100, 60}, LevelPair{100, 80}));
  PairTable again(kTableLevels, {});
  for (const auto& [pair, count] : table.board()) EXPECT_TRUE(again.RestoreBoard(pair, count));
  for (const auto& [app, counts] : table.apps()) {
    for (const auto& [pair, count] : *counts) EXPECT_TRUE(again.RestoreApp(app, pair, count));
  }
  EXPECT_EQ(again.ChanceOf("app1", {50, 100}).mean, table.ChanceOf("app1", {50, 100}).mean);
  EXPECT_EQ(again.apps().front().first, "app2");
  EXPECT_FALSE(again.RestoreBoard({100, 20}, {.audits = 1, .agreeing = 2}));
  EXPECT_FALSE(again.RestoreBoard({100, 20}, {.audits = std::nan(""), .agreeing = 0}));
  EXPECT_FALSE(again.RestoreApp("app", {100, 30}, {.audits = 1, .agreeing = 1}));
}

}  // namespace
}  // namespace withy::policy
