#include "serving/speculation/tree_grower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "engine/model/testing.h"
#include "serving/speculation/scratch_tree_kv.h"

namespace withy::serving {
namespace {

constexpr policy::DraftOrigin kOrigin{policy::DraftSourceKind::kPrefix, 3};

// Slots 52 to 60 are free.
class FewSlots final : public TreeKv {
 public:
  std::vector<int32_t> answer;

  std::span<const int32_t> tokens() const override { return answer; }
  int32_t computed() const override { return static_cast<int32_t>(answer.size()) - 1; }
  void set_computed(int32_t /*tokens*/) override {}
  std::vector<int32_t> Place(std::span<const int32_t> nodes,
                             std::span<const int32_t> /*used*/) override {
    return {nodes.begin(), nodes.end()};
  }
  void Keep(std::span<const int32_t> path, std::span<int32_t> slots) override {
    followed.assign(path.begin(), path.end());
    for (int32_t& slot : slots) {
      if (slot < 52 || slot >= 60) slot = kNoSlot;
    }
  }
  engine::Row LastTokenRow() const override { return {}; }
  engine::ContextView View() override { return {}; }

  std::vector<int32_t> followed;
};

TEST(KvTreeTest, WhatIsBelowTheNewTokensStaysWithItsKv) {
  FewSlots kv;
  kv.answer = {7, 8, 9};
  KvTree drafted;
  drafted.Follow(kv);
  const int32_t a = drafted.tree.Add(-1, 1, 0.9, kOrigin);
  drafted.Settle();
  const int32_t b = drafted.tree.Add(a, 2, 0.9, kOrigin);
  drafted.tree.Add(-1, 3, 0.1, kOrigin);
  const int32_t c = drafted.tree.Add(b, 4, 0.9, kOrigin);
  const int32_t d = drafted.tree.Add(c, 5, 0.9, kOrigin);
  EXPECT_EQ(drafted.grown(), 4);
  for (const int32_t node : {-1, a, b, c}) drafted.SetSlot(node, 51 + node);
  drafted.Follow(kv);
  EXPECT_EQ(drafted.tree.size(), 5) << "nothing is new";
  kv.answer.insert(kv.answer.end(), {1, 2});
  drafted.Follow(kv);
  EXPECT_THAT(kv.followed, testing::ElementsAre(51 + a, 51 + b));
  ASSERT_EQ(drafted.tree.size(), 2);
  EXPECT_EQ(drafted.tree.PathTo(1), std::vector<int32_t>({4, 5}));
  EXPECT_EQ(drafted.grown(), 2);
  EXPECT_EQ(drafted.SlotOf(-1), 51 + b);
  EXPECT_EQ(drafted.SlotOf(0), 51 + c);
  EXPECT_EQ(drafted.SlotOf(1), TreeKv::kNoSlot) << d;
  kv.answer.insert(kv.answer.end(), {4, 6});
  drafted.Follow(kv);
  EXPECT_THAT(kv.followed, testing::ElementsAre(51 + c, TreeKv::kNoSlot));
  EXPECT_TRUE(drafted.tree.empty()) << "another token was drawn";
  EXPECT_EQ(drafted.grown(), 0);
}

class TreeGrowerTest : public testing::Test {
 protected:
  // One pass after the other, behind the tokens of `kv`, until the limits end it.
  absl::Status Grow(KvTree& tree, TreeKv& kv, const policy::GrowthLimits& limits) {
    auto grower = TreeGrower::Create(
        {.model = *model_, .passes = passes_, .clock = Clock::Real(), .logits = logits_},
        {{.tree = tree,
          .kv = kv,
          .sampling = sampling_,
          .limits = limits,
          .confidence = [](policy::DraftOrigin, double p) { return p; }}});
    return grower.ok() ? (*grower)->Run(nullptr).status() : grower.status();
  }

  engine::TestFolder folder_;
  engine::PassNumbers passes_;
  std::vector<float> logits_;
  const engine::SamplingParams sampling_ = {};
  std::unique_ptr<engine::Model> model_ = engine::OpenTiny(
      folder_, engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kQ8_0));
};

// What is left of a tree goes on as if it had grown where it is: also leaves whose KV and that of
// the nodes before them were not computed.
TEST_F(TreeGrowerTest, ATreeThatFitsGoesOnAsIfItHadGrownThere) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const int32_t vocab = model_->info().vocab_size;
  const auto any = [&] { return static_cast<int32_t>(random() % static_cast<uint32_t>(vocab)); };
  engine::ScratchKv scratch(model_->info(), 64);
  ScratchTreeKv kv(scratch);
  KvTree kept;
  std::vector<int32_t> tokens = engine::SomeTokens(20, vocab);
  int32_t stayed = 0;
  for (int step = 0; step < 80; ++step) {
    SCOPED_TRACE(step);
    ASSERT_TRUE(kv.SetTokens(0, tokens));
    kept.Follow(kv);
    stayed += kept.tree.size();
    // Nodes of another source, which nobody has computed.
    for (int32_t at = -1, more = static_cast<int32_t>(random() % 3); more > 0; --more) {
      at = kept.tree.Add(at, any(), 0.4, kOrigin);
    }
    const policy::DraftTree before = kept.tree;
    const policy::GrowthLimits limits{.max_nodes = before.size() + 12,
                                      .max_passes = 1 + static_cast<int32_t>(random() % 3),
                                      .leaves_per_pass = 3,
                                      .alpha = 0,
                                      .branch_threshold = 0.001};
    ASSERT_TRUE(Grow(kept, kv, limits).ok());
    // The same tree, all of whose KV has to be computed.
    engine::ScratchKv other(model_->info(), 64);
    ScratchTreeKv fresh_kv(other);
    fresh_kv.SetTokens(0, tokens);
    KvTree fresh;
    fresh.Follow(fresh_kv);
    fresh.tree = before;
    ASSERT_TRUE(Grow(fresh, fresh_kv, limits).ok());
    ASSERT_EQ(kept.tree.size(), fresh.tree.size());
    for (int32_t node = 0; node < kept.tree.size(); ++node) {
      const auto index = static_cast<size_t>(node);
      EXPECT_EQ(kept.tree.PathTo(node), fresh.tree.PathTo(node));
      EXPECT_EQ(kept.tree.nodes()[index].confidence, fresh.tree.nodes()[index].confidence);
    }
    // The answer goes along a branch, and often ends with another token.
    const auto end = static_cast<int32_t>(random() % static_cast<uint32_t>(kept.tree.size()));
    std::vector<int32_t> path = kept.tree.PathTo(end);
    path.resize(std::min<size_t>(path.size(), 1 + random() % 2));
    tokens.insert(tokens.end(), path.begin(), path.end());
    if (random() % 4 == 0) tokens.push_back(any());
  }
  EXPECT_GT(stayed, 30);
}

}  // namespace
}  // namespace withy::serving
