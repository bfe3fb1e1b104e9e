#include "engine/sampling/stop.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace withy::engine {
namespace {

TEST(StopTest, HoldsBackWhatMayBeAStop) {
  StopMatcher stop({"END", "\n\n"});
  EXPECT_EQ(stop.Push("hello E"), "hello ");
  EXPECT_EQ(stop.Push("N"), "");
  EXPECT_EQ(stop.Push("x E"), "ENx ");
  EXPECT_EQ(stop.Push("ND more"), "");
  EXPECT_TRUE(stop.stopped());
  EXPECT_EQ(stop.matched(), 0);
  EXPECT_EQ(stop.Push("more"), "");
  EXPECT_EQ(stop.Flush(), "");
}

TEST(StopTest, FlushGivesBackWhatWasHeld) {
  StopMatcher stop({"\n\n"});
  EXPECT_EQ(stop.Push("a\n"), "a");
  EXPECT_EQ(stop.Flush(), "\n");
  EXPECT_FALSE(stop.stopped());
}

TEST(StopTest, TheFirstCompleteStopWins) {
  StopMatcher stop({"cd", "bc"});
  EXPECT_EQ(stop.Push("abcd"), "a");
  EXPECT_EQ(stop.matched(), 1);
  StopMatcher longest({"ba", "abba"});
  EXPECT_EQ(longest.Push("cabba"), "c");
  EXPECT_EQ(longest.matched(), 1);
}

TEST(StopTest, WithoutStopsEverythingPasses) {
  StopMatcher stop({});
  EXPECT_EQ(stop.Push("abc"), "abc");
  EXPECT_EQ(stop.Flush(), "");
}

TEST(StopTest, AnyCuttingGivesTheSame) {
  const std::vector<std::string> stops = {"aab", "ba", "abba", "cbc", "b"};
  std::mt19937 random(7);
  for (int round = 0; round < 5000; ++round) {
    std::string text(random() % 20, 'a');
    for (char& c : text) c = "abc"[random() % 3];
    StopMatcher pieces(stops);
    std::string shown;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + random() % 4;
      shown += pieces.Push(std::string_view(text).substr(at, length));
      at += length;
    }
    shown += pieces.Flush();
    StopMatcher bytes(stops);
    std::string expected;
    for (const char c : text) expected += bytes.Push(std::string_view(&c, 1));
    expected += bytes.Flush();
    EXPECT_EQ(shown, expected) << text;
    EXPECT_EQ(pieces.matched(), bytes.matched()) << text;
    if (!pieces.stopped()) {
      EXPECT_EQ(shown, text);
    }
  }
}

TEST(StopTest, AbsurdStopsAreRefused) {
  EXPECT_TRUE(ValidateStopStrings({}).ok());
  EXPECT_TRUE(ValidateStopStrings(std::vector<std::string>(16, "x")).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(ValidateStopStrings(std::vector<std::string>(17, "x"))));
  const std::vector<std::string> empty = {"a", ""};
  const absl::Status status = ValidateStopStrings(empty);
  EXPECT_NE(status.message().find("stop[1]"), absl::string_view::npos) << status;
  EXPECT_TRUE(absl::IsInvalidArgument(ValidateStopStrings(std::vector{std::string(257, 'x')})));
}

}  // namespace
}  // namespace withy::engine
