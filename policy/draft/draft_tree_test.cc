#include "policy/draft/draft_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace withy::policy {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

constexpr DraftOrigin kSure{DraftSourceKind::kLookup, 7};
constexpr DraftOrigin kModel{DraftSourceKind::kDraft, 3};

TEST(DraftTreeTest, MergesBranchesOfSeveralSources) {
  DraftTree tree;
  const int32_t a = tree.Add(-1, 5, 0.5, kSure);
  const int32_t b = tree.Add(a, 6, 0.8, kSure);
  EXPECT_EQ(tree.Add(-1, 5, 0.9, kModel), a);
  EXPECT_EQ(tree.Add(a, 6, 0.1, kModel), b);
  const int32_t c = tree.Add(a, 7, 0.3, kModel);
  EXPECT_EQ(tree.size(), 3);
  EXPECT_DOUBLE_EQ(tree.nodes()[0].cumulative, 0.9) << "the surer source counts";
  EXPECT_DOUBLE_EQ(tree.nodes()[1].cumulative, 0.9 * 0.8) << "what follows it, too";
  EXPECT_EQ(tree.nodes()[0].origin.source, DraftSourceKind::kLookup) << "the first source has it";
  EXPECT_THAT(tree.PathTo(c), ElementsAre(5, 7));
  EXPECT_THAT(tree.PathTo(-1), IsEmpty());
  EXPECT_DOUBLE_EQ(tree.TreeConfidence(), 0.9 * 0.8);
  EXPECT_EQ(DraftTree().TreeConfidence(), 1);
}

TEST(DraftTreeTest, APartIsAddedOnce) {
  DraftTree tree;
  const int32_t a = tree.Add(-1, 1, 0.9, kModel);
  tree.Add(-1, 2, 0.5, kModel);
  const int32_t c = tree.Add(a, 3, 0.9, kModel);
  DraftTree part;
  part.Add(-1, 1, 0.8, kSure);
  const std::vector<int32_t> chosen = {a, c};
  part.AddPart(tree, chosen);
  part.AddPart(tree, chosen);
  ASSERT_EQ(part.size(), 2);
  EXPECT_THAT(part.PathTo(1), ElementsAre(1, 3));
  EXPECT_DOUBLE_EQ(part.nodes()[1].cumulative, 0.9 * 0.9);
}

TEST(DraftTreeTest, AncestorSlotsAreThoseBetweenTheRootAndANode) {
  DraftTree tree;
  const int32_t a = tree.Add(-1, 5, 0.9, kModel), b = tree.Add(-1, 6, 0.8, kModel);
  const int32_t c = tree.Add(b, 7, 0.7, kModel), d = tree.Add(a, 7, 0.6, kModel);
  const int32_t e = tree.Add(d, 8, 0.5, kModel), f = tree.Add(e, 9, 0.4, kModel);
  EXPECT_THAT(tree.AncestorSlots(f, 100), ElementsAre(100 + a, 100 + d, 100 + e));
  EXPECT_THAT(tree.AncestorSlots(c, 7), ElementsAre(7 + b));
  EXPECT_THAT(tree.AncestorSlots(a, 100), IsEmpty());
  EXPECT_THAT(tree.AncestorSlots(-1, 100), IsEmpty());
}

// The branch that is furthest below its share of the tree goes on: lengths end up in proportion to
// confidence (LLMCad eq. 1-2).
TEST(DraftTreeTest, BranchesGrowInProportionToTheirConfidence) {
  DraftTree tree;
  tree.Add(-1, 1, 0.6, kModel);
  tree.Add(-1, 2, 0.3, kModel);
  tree.Add(-1, 3, 0.1, kModel);
  for (int step = 0; step < 57; ++step) {
    const std::vector<int32_t> next = tree.LeavesToExtend(1, 1000);
    ASSERT_EQ(next.size(), 1u);
    tree.MarkExtended(next[0]);
    tree.Add(next[0], 9, 1, kModel);
  }
  std::vector<int32_t> depths;
  for (const int32_t leaf : tree.LeavesToExtend(3, 1000)) {
    depths.push_back(tree.nodes()[static_cast<size_t>(leaf)].depth);
  }
  std::sort(depths.begin(), depths.end());
  EXPECT_THAT(depths, ElementsAre(testing::Ge(5), testing::AllOf(testing::Ge(17), testing::Le(19)),
                                  testing::Ge(34)));
}

TEST(DraftTreeTest, LeavesAreExtendedOnceAndNotBeyondTheDepth) {
  DraftTree tree;
  const int32_t a = tree.Add(-1, 1, 0.6, kModel);
  tree.Add(-1, 2, 0.3, kModel);
  EXPECT_EQ(tree.LeavesToExtend(4, 2).size(), 2u);
  tree.MarkExtended(1);
  EXPECT_THAT(tree.LeavesToExtend(4, 2), ElementsAre(a));
  EXPECT_THAT(tree.LeavesToExtend(4, 1), IsEmpty());
}

// LLMCad eq. 3's numbers: of the branch that matches the answer longest.
TEST(DraftTreeTest, WhatIsBelowAnAcceptedTokenIsATreeBehindIt) {
  DraftTree tree;
  const DraftOrigin origin{DraftSourceKind::kPrefix, 2};
  const int32_t a = tree.Add(-1, 1, 0.5, origin);
  tree.Add(-1, 2, 0.4, origin);
  const int32_t b = tree.Add(a, 3, 0.5, origin);
  const int32_t c = tree.Add(a, 4, 0.25, origin);
  const int32_t d = tree.Add(b, 5, 0.5, origin);
  tree.MarkExtended(a);
  tree.MarkExtended(b);
  std::vector<int32_t> from;
  const DraftTree below = tree.Below(a, &from);
  EXPECT_THAT(from, ElementsAre(b, c, d));
  EXPECT_TRUE(below.root_extended());
  ASSERT_EQ(below.size(), 3);
  EXPECT_EQ(below.nodes()[0].parent, -1);
  EXPECT_EQ(below.nodes()[2].parent, 0);
  EXPECT_EQ(below.nodes()[2].depth, 2);
  EXPECT_DOUBLE_EQ(below.nodes()[1].cumulative, 0.25);
  EXPECT_DOUBLE_EQ(below.nodes()[2].cumulative, 0.25);
  EXPECT_THAT(below.PathTo(2), ElementsAre(3, 5));
  EXPECT_THAT(below.LeavesToExtend(4, 9), UnorderedElementsAre(1, 2));
  EXPECT_FALSE(tree.Below(d, &from).root_extended());
  EXPECT_THAT(from, IsEmpty());
}

TEST(MostMatchingBranchTest, IsTheOneThatFollowsTheAnswerLongest) {
  DraftTree tree;
  const int32_t a = tree.Add(-1, 1, 0.9, kModel), b = tree.Add(a, 2, 0.8, kModel);
  const int32_t c = tree.Add(b, 3, 0.5, kModel), d = tree.Add(-1, 5, 0.2, kModel);
  const int32_t e = tree.Add(d, 6, 0.9, kModel);
  const std::vector<int32_t> all = {a, b, c, d, e};
  const auto match = [&](std::vector<int32_t> answer, std::span<const int32_t> verified) {
    const MatchedBranch branch = MostMatchingBranch(tree, verified, answer);
    return std::vector<double>{static_cast<double>(branch.correct), static_cast<double>(branch.all),
                               branch.confidence};
  };
  const double sure = 0.9 * 0.8 * 0.5;
  EXPECT_THAT(match({1, 2, 3, 9}, all), ElementsAre(3, 3, sure));
  EXPECT_THAT(match({1, 2, 9}, all), ElementsAre(2, 3, sure));
  EXPECT_THAT(match({5, 6, 9}, all), ElementsAre(2, 2, sure)) << "not the likeliest branch";
  EXPECT_THAT(match({9}, all), ElementsAre(0, 3, sure)) << "the longest of those that are wrong";
  EXPECT_THAT(match({1, 2, 3}, std::span(all).first(2)), ElementsAre(2, 2, 0.9 * 0.8))
      << "what was not verified does not count";
  EXPECT_THAT(match({1}, {}), ElementsAre(0, 0, 1));
}

// Whatever grows, the most confident nodes are a tree of which every beginning is one, too.
TEST(DraftTreeTest, EveryBeginningOfTheOrderIsATree) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0.01, 1);
  for (int round = 0; round < 50; ++round) {
    DraftTree tree;
    const auto size = static_cast<int32_t>(1 + random() % 60);
    for (int32_t i = 0; i < size; ++i) {
      const auto parent = static_cast<int32_t>(random() % static_cast<uint32_t>(tree.size() + 1));
      tree.Add(parent - 1, static_cast<int32_t>(random() % 4), uniform(random), kModel);
    }
    const std::vector<int32_t> order = tree.ByConfidence();
    EXPECT_EQ(std::set<int32_t>(order.begin(), order.end()).size(), tree.nodes().size());
    for (size_t i = 1; i < order.size(); ++i) {
      EXPECT_GE(tree.nodes()[static_cast<size_t>(order[i - 1])].cumulative,
                tree.nodes()[static_cast<size_t>(order[i])].cumulative);
    }
    const auto drafted = ToDrafted(tree, order);
    ASSERT_TRUE(TokenTree::Create(drafted, 4, 1000, 0).ok());
    for (size_t i = 0; i < drafted.size(); ++i) {
      EXPECT_LT(drafted[i].parent, static_cast<int32_t>(i));
      const auto path = tree.PathTo(order[i]);
      EXPECT_EQ(drafted[i].token, path.back());
    }
  }
}

}  // namespace
}  // namespace withy::policy
