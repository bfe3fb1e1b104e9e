#include "bench/quality/rouge.h"

#include <gtest/gtest.h>

namespace withy::bench {
namespace {

TEST(RougeLTest, IsTheF1OfTheLongestCommonSubsequence) {
  EXPECT_DOUBLE_EQ(RougeL("the cat sat", "the  cat\nsat"), 1);
  EXPECT_DOUBLE_EQ(RougeL("police killed the gunman", "police kill the gunman"), 0.75);
  EXPECT_DOUBLE_EQ(RougeL("police killed the gunman", "the gunman kill police"), 0.5);
  EXPECT_DOUBLE_EQ(RougeL("a b c d", "a d"), 2 * 2 / 6.0);
  EXPECT_DOUBLE_EQ(RougeL("a", "b"), 0);
  EXPECT_DOUBLE_EQ(RougeL("", ""), 1);
  EXPECT_DOUBLE_EQ(RougeL("a", " "), 0);
}

}  // namespace
}  // namespace withy::bench
