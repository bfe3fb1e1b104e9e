#include "serving/speculation/prefix_growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace withy::serving {
namespace {

constexpr policy::DraftOrigin kOrigin{policy::DraftSourceKind::kPrefix, 3};

TEST(PrefixTreeTest, WhatIsBelowTheNewTokensStaysWithItsKv) {
  PrefixTree prefix;
  std::vector<int32_t> tokens = {7, 8, 9};
  prefix.Follow(tokens);
  const int32_t a = prefix.tree.Add(-1, 1, 0.9, kOrigin);
  const int32_t b = prefix.tree.Add(a, 2, 0.9, kOrigin);
  prefix.tree.Add(-1, 3, 0.1, kOrigin);
  const int32_t c = prefix.tree.Add(b, 4, 0.9, kOrigin);
  for (const int32_t node : {-1, a, b}) prefix.SetSlot(node, 50 + node);
  EXPECT_EQ(prefix.Follow(tokens), 0);
  EXPECT_EQ(prefix.tree.size(), 4) << "nothing is new";
  tokens.insert(tokens.end(), {1, 2});
  EXPECT_EQ(prefix.Follow(tokens), 1);
  ASSERT_EQ(prefix.tree.size(), 1);
  EXPECT_EQ(prefix.tree.nodes()[0].token, 4);
  EXPECT_EQ(prefix.SlotOf(-1), 50 + b);
  EXPECT_EQ(prefix.SlotOf(0), PrefixTree::kNoSlot) << c;
  prefix.SetSlot(0, 60);
  prefix.KeepSlots(52, 60);
  EXPECT_EQ(prefix.SlotOf(-1), PrefixTree::kNoSlot) << "a step writes there";
  EXPECT_EQ(prefix.SlotOf(0), PrefixTree::kNoSlot);
  tokens.push_back(5);
  prefix.Follow(tokens);
  EXPECT_TRUE(prefix.tree.empty()) << "another token was drawn";
}

TEST(PrefixTreeTest, WhatIsVerifiedIsAddedOnce) {
  policy::DraftTree verified;
  const int32_t a = verified.Add(-1, 1, 0.9, kOrigin);
  verified.Add(-1, 2, 0.5, kOrigin);
  const int32_t c = verified.Add(a, 3, 0.9, kOrigin);
  PrefixTree prefix;
  prefix.tree.Add(-1, 1, 0.8, kOrigin);
  const std::vector<int32_t> chosen = {a, c};
  prefix.Add(verified, chosen);
  prefix.Add(verified, chosen);
  ASSERT_EQ(prefix.tree.size(), 2);
  EXPECT_EQ(prefix.tree.PathTo(1), std::vector<int32_t>({1, 3}));
  // What grew since is counted once, where it is left.
  prefix.tree.Add(1, 4, 0.9, kOrigin);
  prefix.tree.Add(1, 5, 0.1, kOrigin);
  EXPECT_EQ(prefix.Follow(std::vector<int32_t>({1})), 2);
  EXPECT_EQ(prefix.tree.size(), 3);
  EXPECT_EQ(prefix.Follow(std::vector<int32_t>({1, 3})), 0);
  EXPECT_EQ(prefix.tree.size(), 2);
}

}  // namespace
}  // namespace withy::serving
