#include "cli/study/figures.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using ::testing::ElementsAre;

TEST(SpreadTest, QuartilesAreInterpolated) {
  const Spread spread = SpreadOf({4, 1, 3, 2, 5});
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.low, 2);
  EXPECT_EQ(spread.high, 4);
  EXPECT_EQ(SpreadOf({1, 2}).median, 1.5);
  EXPECT_EQ(SpreadOf({}).median, 0);
  EXPECT_EQ(QuantileOf({10, 20}, 0.99), 19.9);
}

TEST(FitLineTest, ALineIsFoundAgain) {
  std::vector<std::pair<double, double>> points;
  for (int x = 0; x < 10; ++x) points.emplace_back(x, 3 - 0.5 * x);
  const LinearFit fit = FitLine(points);
  EXPECT_NEAR(fit.slope, -0.5, 1e-12);
  EXPECT_NEAR(fit.intercept, 3, 1e-12);
  EXPECT_NEAR(fit.r_squared, 1, 1e-12);
  EXPECT_NEAR(fit.At(20), -7, 1e-12);
}

TEST(FitLineTest, WhatIsNoLineSaysSo) {
  EXPECT_NEAR(
      FitLine(std::vector<std::pair<double, double>>{{0, 1}, {1, -1}, {2, -1}, {3, 1}}).r_squared,
      0, 1e-12);
  const LinearFit one = FitLine(std::vector<std::pair<double, double>>{{2, 5}});
  EXPECT_EQ(one.slope, 0);
  EXPECT_EQ(one.intercept, 5);
  EXPECT_EQ(FitLine({}).intercept, 0);
}

TEST(HarmonicQuantizationTest, IsEquationThree) {
  EXPECT_DOUBLE_EQ(HarmonicQuantization(1, 1, 1), 1);
  // ((1/0.8 + 1/1.5 + 1/2) / 3)^-1
  EXPECT_NEAR(HarmonicQuantization(0.8, 1.5, 2), 1.2413793, 1e-6);
  EXPECT_LT(HarmonicQuantization(0.01, 4, 4), 0.03) << "one collapse is not made up for";
  EXPECT_EQ(HarmonicQuantization(0, 2, 2), 0);
}

TEST(DivergenceTest, OfScaledWeights) {
  const std::vector<double> p = {1, 1}, q = {3, 1}, none = {0, 0};
  EXPECT_NEAR(Divergence(p, q), 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25), 1e-12);
  EXPECT_EQ(Divergence(q, q), 0);
  EXPECT_EQ(Divergence(p, std::vector<double>{1, 0}), std::numeric_limits<double>::infinity());
  EXPECT_GT(Divergence(std::vector<double>{1, 0}, p), 0) << "q may have more than p";
  EXPECT_EQ(Divergence(none, q), 0);
}

TEST(HistogramTest, CountsInBinsOfAllLengths) {
  const std::vector<int32_t> all = {10, 19, 20, 29, 30};
  EXPECT_THAT(Histogram(all, all, 3), ElementsAre(1, 2, 2)) << "bins of 7";
  EXPECT_THAT(Histogram(all, std::vector<int32_t>{30}, 3), ElementsAre(0, 0, 1));
  const std::vector<int32_t> equal = {7, 7};
  EXPECT_THAT(Histogram(equal, equal, 4), ElementsAre(2, 0, 0, 0));
}

std::vector<int32_t> RandomLengths(std::mt19937* random, int count) {
  std::vector<int32_t> lengths;
  std::lognormal_distribution<> draw(3, 0.8);
  for (int i = 0; i < count; ++i) lengths.push_back(1 + static_cast<int32_t>(draw(*random)));
  return lengths;
}

// The least divergence of any subset of `count`, by trying all.
double LeastDivergence(const std::vector<int32_t>& lengths, size_t count, int bins) {
  double least = std::numeric_limits<double>::infinity();
  for (uint32_t mask = 0; mask < (1u << lengths.size()); ++mask) {
    if (static_cast<size_t>(__builtin_popcount(mask)) != count) continue;
    std::vector<size_t> chosen;
    for (size_t i = 0; i < lengths.size(); ++i) {
      if (mask >> i & 1) chosen.push_back(i);
    }
    least = std::min(least, SubsetDivergence(lengths, chosen, bins));
  }
  return least;
}

TEST(MatchedSubsetTest, HasTheLeastDivergenceThereIs) {
  std::mt19937 random(3);
  for (int i = 0; i < 40; ++i) {
    const std::vector<int32_t> lengths = RandomLengths(&random, 12);
    const size_t count = 1 + random() % 11;
    const int bins = 1 + static_cast<int>(random() % 6);
    const std::vector<size_t> chosen = MatchedSubset(lengths, count, bins, random());
    ASSERT_EQ(chosen.size(), count);
    ASSERT_EQ(std::set<size_t>(chosen.begin(), chosen.end()).size(), count);
    ASSERT_NEAR(SubsetDivergence(lengths, chosen, bins), LeastDivergence(lengths, count, bins),
                1e-9)
        << "case " << i;
  }
}

TEST(MatchedSubsetTest, TheSeedChoosesWithinBins) {
  std::mt19937 random(5);
  const std::vector<int32_t> lengths = RandomLengths(&random, 400);
  const auto a = MatchedSubset(lengths, 40, 20, 1);
  EXPECT_EQ(a, MatchedSubset(lengths, 40, 20, 1));
  EXPECT_NE(a, MatchedSubset(lengths, 40, 20, 2));
  EXPECT_EQ(SubsetDivergence(lengths, a, 20),
            SubsetDivergence(lengths, MatchedSubset(lengths, 40, 20, 2), 20));
  EXPECT_LT(SubsetDivergence(lengths, a, 20),
            SubsetDivergence(lengths, RandomSubset(400, 40, 1), 20));
  EXPECT_EQ(MatchedSubset(lengths, 1000, 20, 1).size(), 400u);
  EXPECT_TRUE(MatchedSubset({}, 3, 20, 1).empty());
}

TEST(SolveTest, FindsWhereAFunctionCrosses) {
  const auto square = [](double x) { return x * x; };
  EXPECT_NEAR(Solve(0, 4, 2, square), std::sqrt(2), 4e-3);
  EXPECT_EQ(Solve(0, 1, 2, square), 1) << "never comes to it";
  EXPECT_EQ(Solve(1, 4, 0.5, square), 1) << "is past it at once";
}

}  // namespace
}  // namespace withy::cli
