// Repetitions of groups are rewritten, and nothing else is.
#include "grammar/pattern_text.h"

#include <gtest/gtest.h>

namespace withy::grammar {
namespace {

TEST(PatternTextTest, RepetitionsOfGroupsAreExact) {
  EXPECT_EQ(WithExactRepetitions("^a(bx+)?c?$"), "^a(bx+){0,1}c?$");
  EXPECT_EQ(WithExactRepetitions("((aa+)|b){2,}[)?]"), "((aa+)|b){2}((aa+)|b)*[)?]");
  EXPECT_EQ(WithExactRepetitions("(?:a(b)?)??"), "(?:a(b){0,1}){0,1}?");
  EXPECT_EQ(WithExactRepetitions(R"(\(a\)?(b\)){2,3}[(\]]?x{2,})"),
            R"(\(a\)?(b\)){2,3}[(\]]?x{2,})");
  EXPECT_EQ(WithExactRepetitions("(a){0,}"), "(a){0}(a)*");
  EXPECT_EQ(WithExactRepetitions("a)?"), "a)?");
}

TEST(PatternTextTest, GroupsWithinGroupsHaveABound) {
  std::string pattern = "abc";
  for (int i = 0; i < 30; ++i) pattern = "(" + pattern + "){2,}";
  EXPECT_EQ(WithExactRepetitions(pattern), std::nullopt);
}

}  // namespace
}  // namespace withy::grammar
