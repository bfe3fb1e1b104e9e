#include "policy/draft/tree_growth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

double AsItSays(DraftOrigin /*origin*/, double probability) { return probability; }

// A model that always expects `candidates`. Returns its passes.
int Grow(const GrowthLimits& limits, const std::vector<LikelyToken>& candidates, DraftTree* tree) {
  TreeGrowth growth(limits, DraftSourceKind::kDraft, AsItSays, tree);
  int passes = 0;
  for (std::vector<int32_t> leaves = growth.Next(); !leaves.empty(); leaves = growth.Next()) {
    ++passes;
    for (const int32_t leaf : leaves) growth.Extend(leaf, candidates);
  }
  return passes;
}

TEST(TreeGrowthTest, LikelyTokensBranchAndTheFirstAlwaysDoes) {
  DraftTree tree;
  GrowthLimits limits{.max_depth = 1};
  EXPECT_EQ(Grow(limits, {{1, 0.5}, {2, 0.35}, {3, 0.1}}, &tree), 1);
  EXPECT_EQ(tree.size(), 2);
  tree = {};
  Grow(limits, {{1, 0.05}, {2, 0.04}}, &tree);
  EXPECT_EQ(tree.size(), 1);
}

TEST(TreeGrowthTest, NothingFollowsATokenThatEndsTheAnswer) {
  DraftTree tree;
  TreeGrowth growth({.max_nodes = 9, .leaves_per_pass = 8, .alpha = 0}, DraftSourceKind::kDraft,
                    AsItSays, &tree);
  constexpr int32_t kEnd = 7;
  ASSERT_THAT(growth.Next(), ElementsAre(TreeGrowth::kRoot));
  growth.Extend(TreeGrowth::kRoot, std::vector<LikelyToken>{{kEnd, 0.5}, {1, 0.4}},
                std::vector<int32_t>{3, kEnd});
  EXPECT_THAT(growth.Next(), ElementsAre(tree.Find(-1, 1)));
}

TEST(TreeGrowthTest, StopsBelowTheThreshold) {
  DraftTree tree;
  EXPECT_EQ(Grow({.max_nodes = 100, .max_depth = 100, .leaves_per_pass = 1, .alpha = 0.1},
                 {{1, 0.5}}, &tree),
            4)
      << "0.5, 0.25, 0.125, 0.0625";
}

TEST(TreeGrowthTest, StopsAtItsLimits) {
  DraftTree tree;
  Grow({.max_nodes = 7, .max_depth = 100, .alpha = 0}, {{1, 0.5}, {2, 0.4}}, &tree);
  EXPECT_EQ(tree.size(), 7);
  tree = {};
  Grow({.max_nodes = 100, .max_depth = 3, .leaves_per_pass = 8, .alpha = 0}, {{1, 0.5}, {2, 0.4}},
       &tree);
  EXPECT_EQ(tree.size(), 2 + 4 + 8);
  tree = {};
  EXPECT_EQ(Grow({.max_nodes = 0}, {{1, 0.5}}, &tree), 0);
  for (const int32_t passes : {1, 3}) {
    tree = {};
    EXPECT_EQ(Grow({.max_passes = passes, .alpha = 0}, {{1, 0.9}}, &tree), passes);
    EXPECT_EQ(tree.size(), passes);
  }
}

// A tree that a former growth left does not begin at its root again.
TEST(TreeGrowthTest, GoesOnWhereAnotherOneStopped) {
  DraftTree tree;
  EXPECT_EQ(Grow({.max_nodes = 2, .leaves_per_pass = 1, .alpha = 0}, {{1, 0.5}}, &tree), 2);
  EXPECT_EQ(Grow({.max_nodes = 5, .leaves_per_pass = 1, .alpha = 0}, {{1, 0.5}}, &tree), 3);
  EXPECT_EQ(tree.nodes().back().depth, 5);
}

TEST(TreeGrowthTest, APassThatIsWorthLessThanItTakesIsNotMade) {
  DraftTree tree;
  GrowthLimits limits{.max_nodes = 100, .max_depth = 100, .alpha = 0, .pass_ms = 3, .token_ms = 10};
  Grow(limits, {{1, 0.9}}, &tree);
  EXPECT_EQ(tree.size(), 11) << "0.9^12, of the next token, is worth less than 0.3";
  tree = {};
  limits.pass_ms = 20;
  EXPECT_EQ(Grow(limits, {{1, 0.9}}, &tree), 1);
}

// What grows of a draft that is nearly sure is bounded by its size alone.
TEST(TreeGrowthTest, ASureDraftGrowsALongBranch) {
  DraftTree tree;
  Grow({.max_nodes = 60, .max_depth = 60, .alpha = 0, .pass_ms = 3, .token_ms = 10}, {{1, 0.99}},
       &tree);
  EXPECT_EQ(tree.size(), 60);
}

}  // namespace
}  // namespace withy::policy
