// Tests of the charts: that they are XML, and that what they draw lies inside the axes.
#include <cmath>
#include <limits>
#include <random>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "base/charts/bar_chart.h"
#include "base/charts/line_chart.h"
#include "base/charts/svg_page.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// Whether every element is closed in its order, attributes are quoted, and no entity is unknown.
bool IsXml(const std::string& text) {
  static const std::regex tag(R"(<(/?)([A-Za-z]+)((?: [A-Za-z:-]+="[^"<]*")*)(/?)>)");
  static const std::regex entity(R"(&(lt|gt|amp|quot);)");
  std::vector<std::string> open;
  std::string between;
  auto begin = text.cbegin();
  for (std::sregex_iterator it(text.begin(), text.end(), tag), end; it != end; ++it) {
    between.append(begin, text.cbegin() + it->position());
    begin = text.cbegin() + it->position() + it->length();
    if ((*it)[1].length() > 0) {
      if (open.empty() || open.back() != (*it)[2]) return false;
      open.pop_back();
    } else if ((*it)[4].length() == 0) {
      open.push_back((*it)[2]);
    }
  }
  between.append(begin, text.cend());
  const std::string rest = std::regex_replace(between, entity, "");
  return open.empty() && rest.find_first_of("<&") == std::string::npos;
}

// All pairs "x,y" of the attribute `points`.
std::vector<std::pair<double, double>> Drawn(const std::string& svg) {
  static const std::regex points("points=\"([^\"]*)\"");
  static const std::regex pair("(-?[0-9.]+),(-?[0-9.]+)");
  std::vector<std::pair<double, double>> found;
  for (std::sregex_iterator it(svg.begin(), svg.end(), points), end; it != end; ++it) {
    const std::string list = (*it)[1];
    for (std::sregex_iterator at(list.begin(), list.end(), pair); at != end; ++at) {
      found.emplace_back(std::stod((*at)[1]), std::stod((*at)[2]));
    }
  }
  return found;
}

TEST(RoundTicksTest, AreRoundAndInside) {
  EXPECT_THAT(RoundTicks(0, 10, 6), ElementsAre(0, 2, 4, 6, 8, 10));
  EXPECT_THAT(RoundTicks(0.13, 0.5, 3), ElementsAre(0.2, 0.4));
  EXPECT_THAT(RoundTicks(-3, 3, 7), ElementsAre(-3, -2, -1, 0, 1, 2, 3));
  EXPECT_THAT(RoundTicks(1, 1, 5), IsEmpty());
  EXPECT_THAT(RoundTicks(0, std::numeric_limits<double>::infinity(), 5), IsEmpty());
  std::mt19937 random(7);
  for (int i = 0; i < 1000; ++i) {
    const double low = std::uniform_real_distribution<>(-1e3, 1e3)(random);
    const double high = low + std::pow(10.0, std::uniform_real_distribution<>(-6, 6)(random));
    const std::vector<double> ticks = RoundTicks(low, high, 7);
    ASSERT_THAT(ticks, Not(IsEmpty())) << low << " " << high;
    ASSERT_LE(ticks.size(), 7u) << low << " " << high;
    const double slack = 1e-9 * (std::abs(low) + std::abs(high));
    ASSERT_GE(ticks.front(), low - slack);
    ASSERT_LE(ticks.back(), high + slack);
  }
}

TEST(LineChartTest, EverythingIsInsideTheAxes) {
  std::mt19937 random(11);
  for (int i = 0; i < 50; ++i) {
    LineChart chart{"a \"chart\" of <this> & that", "x", "y", {}};
    chart.x_log = i % 2 == 1;
    chart.y_log = i % 3 == 1;
    chart.y_from_zero = i % 5 != 0;
    for (int l = 0; l < 3; ++l) {
      LineChart::Line line{"line " + std::to_string(l), {}};
      for (int p = 1; p <= 20; ++p) {
        const double y = std::lognormal_distribution<>(0, 3)(random);
        line.points.emplace_back(p * 3.5, y);
        line.band.emplace_back(y * 0.8, y * 1.3);
      }
      chart.lines.push_back(line);
    }
    const std::string svg = chart.Svg();
    ASSERT_TRUE(IsXml(svg)) << svg;
    const auto drawn = Drawn(svg);
    ASSERT_EQ(drawn.size(), 3u * (20 + 40));
    for (const auto& [x, y] : drawn) {
      ASSERT_GE(x, 60);
      ASSERT_LE(x, 470);
      ASSERT_GE(y, 30);
      ASSERT_LE(y, 350);
    }
  }
}

TEST(LineChartTest, WhatCannotBeDrawnIsLeftOut) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  LineChart chart{"t", "x", "y", {{"line", {{0, 1}, {1, nan}, {10, 100}, {100, -1}}}}};
  chart.x_log = chart.y_log = true;
  const std::string svg = chart.Svg();
  EXPECT_TRUE(IsXml(svg));
  EXPECT_EQ(Drawn(svg).size(), 1u) << svg;
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
  EXPECT_THAT(svg, Not(HasSubstr("inf")));
}

TEST(LineChartTest, ThePageHasRoomForNames) {
  LineChart chart{"t", "x", "y", {{"short", {{0, 1}}}}};
  EXPECT_THAT(chart.Svg(), HasSubstr("width=\"640\""));
  chart.lines[0].name = std::string(60, 'n');
  EXPECT_THAT(chart.Svg(), HasSubstr("width=\"872\""));
}

TEST(LineChartTest, FollowsTheReadersScheme) {
  EXPECT_THAT(LineChart{}.Svg(), HasSubstr("prefers-color-scheme:dark"));
}

TEST(BarChartTest, PartsFollowEachOtherInsideTheAxis) {
  const BarChart chart{"shares", "share", {"a", "b<c"}, {{"one", {0.25, 0.75}}, {"two", {0, 0.5}}}};
  const std::string svg = chart.Svg();
  EXPECT_TRUE(IsXml(svg)) << svg;
  EXPECT_THAT(svg, HasSubstr("x=\"260.0\" y=\"36.0\" width=\"100.0\""));
  EXPECT_THAT(svg, HasSubstr("x=\"360.0\" y=\"36.0\" width=\"300.0\""));
  EXPECT_THAT(svg, HasSubstr("x=\"260.0\" y=\"66.0\" width=\"200.0\"")) << "no part of zero";
  EXPECT_THAT(svg, HasSubstr("b&lt;c"));
  EXPECT_TRUE(IsXml(BarChart{}.Svg()));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT((BarChart{"t", "x", {"a"}, {{"b", {nan}}}}.Svg()), Not(HasSubstr("nan")));
}

}  // namespace
}  // namespace withy
