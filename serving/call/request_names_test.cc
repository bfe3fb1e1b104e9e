#include "serving/call/request_names.h"

#include <gtest/gtest.h>

namespace withy::serving {
namespace {

TEST(RequestNamesTest, ANameIsGivenOnceUntilItsCallIsOver) {
  RequestNames names;
  EXPECT_TRUE(names.Begin("a", "r", 1).ok());
  EXPECT_TRUE(absl::IsAborted(names.Begin("a", "r", RequestNames::kKeptNs * 2)));
  EXPECT_TRUE(names.Begin("b", "r", 1).ok()) << "another app's";
  EXPECT_TRUE(names.Begin("a", "", 1).ok());
  EXPECT_TRUE(names.Begin("a", "", 1).ok()) << "no name";
  names.End("a", "r", /*stored=*/false, 2);
  EXPECT_TRUE(names.Begin("a", "r", 3).ok()) << "it left no answer";
}

TEST(RequestNamesTest, AStoredAnswersNameIsKeptForAWhile) {
  RequestNames names;
  ASSERT_TRUE(names.Begin("a", "r", 1).ok());
  names.End("a", "r", /*stored=*/true, 10);
  EXPECT_TRUE(absl::IsAborted(names.Begin("a", "r", 9 + RequestNames::kKeptNs)));
  EXPECT_TRUE(names.Begin("a", "r", 10 + RequestNames::kKeptNs).ok());
  EXPECT_TRUE(absl::IsAborted(names.Begin("a", "r", 3 * RequestNames::kKeptNs)));
}

TEST(RequestNamesTest, TheNewestAreKept) {
  RequestNames names;
  const auto name = [](size_t i) { return std::to_string(i); };
  for (size_t i = 0; i <= RequestNames::kKept; ++i) {
    ASSERT_TRUE(names.Begin("a", name(i), 1).ok());
    names.End("a", name(i), /*stored=*/true, 1);
  }
  EXPECT_TRUE(names.Begin("a", name(0), 1).ok());
  EXPECT_TRUE(absl::IsAborted(names.Begin("a", name(1), 1)));
}

}  // namespace
}  // namespace withy::serving
