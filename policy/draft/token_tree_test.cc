#include "policy/draft/token_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int32_t kVocab = 100;

TEST(TokenTreeTest, WithoutADraftItIsTheRootAlone) {
  EXPECT_EQ(TokenTree().rows(), 1);
  EXPECT_EQ(TokenTree().Child(0, 5, 1), -1);
}

// root - 5 - 6 - 7
//     |   \- 8
//      \- 9
TEST(TokenTreeTest, KnowsPathsAndChildren) {
  const std::vector<DraftedToken> drafted = {{5, -1}, {6, 0}, {9, -1}, {7, 1}, {8, 0}};
  const auto tree = TokenTree::Create(drafted, kVocab, 10, 40);
  ASSERT_TRUE(tree.ok()) << tree.status();
  ASSERT_EQ(tree->rows(), 6);
  EXPECT_EQ(tree->slot(4), 44);
  EXPECT_EQ(tree->token(4), 7);
  EXPECT_EQ(tree->depth(4), 3);
  EXPECT_THAT(tree->AncestorSlots(4), ElementsAre(41, 42));
  EXPECT_THAT(tree->AncestorSlots(5), ElementsAre(41));
  EXPECT_THAT(tree->AncestorSlots(3), IsEmpty());
  EXPECT_EQ(tree->Child(0, 5, 6), 1);
  EXPECT_EQ(tree->Child(0, 9, 6), 3);
  EXPECT_EQ(tree->Child(1, 8, 6), 5);
  EXPECT_EQ(tree->Child(1, 8, 5), -1) << "that row was not computed";
  EXPECT_EQ(tree->Child(1, 9, 6), -1);
}

TEST(TokenTreeTest, WhatIsTooDeepIsLeftOutWithItsChildren) {
  const std::vector<DraftedToken> drafted = {{5, -1}, {6, 0}, {7, 1}, {8, 2}, {9, 0}};
  const auto tree = TokenTree::Create(drafted, kVocab, 2, 0);
  ASSERT_EQ(tree->rows(), 4);
  EXPECT_EQ(tree->token(3), 9);
  EXPECT_EQ(TokenTree::Create(drafted, kVocab, 0, 0)->rows(), 1);
}

TEST(TokenTreeTest, ADraftThatIsNoTreeIsRefused) {
  const auto code = [](std::vector<DraftedToken> drafted) {
    return TokenTree::Create(drafted, kVocab, 10, 0).status().code();
  };
  EXPECT_EQ(code({{5, -1}, {6, 1}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{5, -2}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{kVocab, -1}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({{-1, -1}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(std::vector<DraftedToken>(256, {5, -1})), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(std::vector<DraftedToken>(255, {5, -1})), absl::StatusCode::kOk);
}

TEST(TokenTreeTest, EveryPathLeadsToTheRoot) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<DraftedToken> drafted;
    while (drafted.size() < random() % 40) {
      const auto parent = static_cast<int32_t>(random() % (drafted.size() + 1)) - 1;
      drafted.push_back({static_cast<int32_t>(random() % 5), parent});
    }
    const auto max_depth = static_cast<int32_t>(random() % 6);
    const auto tree = TokenTree::Create(drafted, kVocab, max_depth, 7);
    ASSERT_TRUE(tree.ok()) << tree.status();
    for (int32_t row = 1; row < tree->rows(); ++row) {
      ASSERT_LE(tree->depth(row), max_depth);
      const auto slots = tree->AncestorSlots(row);
      ASSERT_EQ(static_cast<int32_t>(slots.size()), tree->depth(row) - 1);
      int32_t at = 0;
      for (const int32_t slot : slots) {
        const int32_t next = slot - 7;
        EXPECT_NE(tree->Child(at, tree->token(next), tree->rows()), -1);
        ASSERT_LT(at, next);
        at = next;
      }
      ASSERT_LT(at, row);
    }
  }
}

}  // namespace
}  // namespace withy::policy
