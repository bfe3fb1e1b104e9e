#include "bench/speculation/speculation_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/model/testing.h"

namespace withy::bench {
namespace {

using testing::ElementsAreArray;

class PairDecoderTest : public testing::Test {
 protected:
  std::unique_ptr<engine::Model> Open(uint64_t seed) {
    const std::string path = folder_ / ("model" + std::to_string(seed) + ".gguf");
    EXPECT_TRUE(
        engine::WriteSynthModel(engine::TinyShape(), engine::GgmlType::kQ8_0, seed, path).ok());
    return engine::OpenTiny(folder_, path);
  }
  static bool Never(int32_t /*token*/) { return false; }

  engine::TestFolder folder_;
  const std::unique_ptr<engine::Model> target_ = Open(1), other_ = Open(2);
};

// With a draft that is always right and with one that hardly ever is.
TEST_F(PairDecoderTest, LosslessWaysGiveWhatTheTargetDecodes) {
  const std::vector<int32_t> prompt = engine::SomeTokens(30, target_->info().vocab_size);
  const auto expected = engine::GreedyDecode(*target_, prompt, 40);
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (engine::Model* draft : {target_.get(), other_.get()}) {
    for (const DecodeWay& way : std::vector<DecodeWay>{{},
                                                       {.chain = 1},
                                                       {.chain = 4},
                                                       {.chain = 16},
                                                       {.tree = true},
                                                       {.tree = true, .adaptive = true}}) {
      SCOPED_TRACE(testing::Message() << "chain " << way.chain << ", tree " << way.tree);
      PairDecoder decoder(*target_, draft, Never);
      const auto answer = decoder.Decode(prompt, 40, way);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_THAT(answer->tokens, ElementsAreArray(*expected));
      EXPECT_LE(answer->accepted, answer->drafted);
      if (draft == target_.get() && way.chain == 4) {
        EXPECT_EQ(answer->target_passes, 8) << "five tokens a pass";
      }
      if (way.chain == 0 && !way.tree) {
        EXPECT_EQ(answer->target_passes, 40);
      }
    }
  }
}

// Trees of every source and of several, cut to what their rows are worth.
TEST_F(PairDecoderTest, WeighedTreesGiveWhatTheTargetDecodes) {
  engine::SynthShape shape = engine::TinyShape();
  shape.levels = {20, 60};
  const std::string path = folder_ / "elastic.gguf";
  ASSERT_TRUE(engine::WriteSynthModel(shape, engine::GgmlType::kQ8_0, 3, path).ok());
  const std::unique_ptr<engine::Model> elastic = engine::OpenTiny(folder_, path);
  // Text that repeats itself, so that lookup finds something.
  std::vector<int32_t> prompt = engine::SomeTokens(20, elastic->info().vocab_size);
  prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 12);
  const auto expected = engine::GreedyDecode(*elastic, prompt, 32);
  ASSERT_TRUE(expected.ok()) << expected.status();
  PairDecoder decoder(*elastic, other_.get(), Never);
  const auto costs = decoder.Calibrate(std::vector<int32_t>{1, 4, 16});
  ASSERT_TRUE(costs.ok()) << costs.status();
  EXPECT_GT(costs->target_ms, 0);
  EXPECT_GT(costs->prefix_ms, 0);
  EXPECT_GT(costs->draft_ms, 0);
  ASSERT_TRUE(decoder.Begin(prompt, 32).ok());
  int64_t drafted = 0;
  for (const int sources : {1, 2, 4, 7}) {
    for (const bool weighed : {true, false}) {
      SCOPED_TRACE(testing::Message() << "sources " << sources << ", weighed " << weighed);
      const auto answer = decoder.Answer({.tree = true,
                                          .lookup = (sources & 1) != 0,
                                          .prefix = (sources & 2) != 0,
                                          .draft = (sources & 4) != 0,
                                          .weighed = weighed,
                                          .leaves_per_pass = 3,
                                          .branch_threshold = 0.001});
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_THAT(answer->tokens, ElementsAreArray(*expected));
      drafted += answer->drafted;
    }
  }
  EXPECT_GT(drafted, 0);
}

// A tree that grew while the target verified is behind the answer as if it had grown afterwards.
TEST_F(PairDecoderTest, ATreeThatFitsStaysWhenTheAnswerGoesOn) {
  const int32_t vocab = target_->info().vocab_size;
  std::vector<int32_t> tokens = engine::SomeTokens(20, vocab);
  const policy::GrowthLimits limits{
      .max_nodes = 100, .leaves_per_pass = 3, .alpha = 0, .branch_threshold = 0.001};
  const policy::ConfidenceFn confidence = [](policy::DraftOrigin, double p) { return p; };
  Sequence sequence(*target_, 200), fresh(*target_, 200);
  TreeDrafter drafter(sequence, policy::DraftSourceKind::kDraft, -1, Never);
  drafter.Follow(tokens);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(*drafter.Step(tokens, limits, confidence));
  // Along the branch that was extended furthest.
  int32_t end = -1;
  for (int32_t i = 0; i < drafter.tree().size(); ++i) {
    if (drafter.tree().nodes()[static_cast<size_t>(i)].extended) end = i;
  }
  std::vector<int32_t> path =
      drafter.tree().PathTo(drafter.tree().nodes()[static_cast<size_t>(end)].parent);
  ASSERT_FALSE(path.empty());
  tokens.insert(tokens.end(), path.begin(), path.end());
  drafter.Follow(tokens);
  ASSERT_FALSE(drafter.tree().empty());
  EXPECT_EQ(sequence.computed(), static_cast<int32_t>(tokens.size()));
  // What it has kept computes what a new sequence computes.
  const policy::DraftTree& tree = drafter.tree();
  ASSERT_TRUE(fresh.CatchUp(tokens).ok());
  std::vector<int32_t> all = {-1};
  std::vector<int32_t> open;  // computed by neither
  for (int32_t i = 0; i < tree.size(); ++i) {
    all.push_back(i);
    if (!tree.nodes()[static_cast<size_t>(i)].extended) open.push_back(i);
  }
  ASSERT_FALSE(open.empty());
  const auto expected = fresh.Compute(tokens, tree, all);
  const auto kept = sequence.Compute(tokens, tree, open);
  ASSERT_TRUE(expected.ok() && kept.ok());
  for (size_t i = 0; i < open.size(); ++i) {
    const auto size = static_cast<size_t>(vocab);
    const std::span<const float> row = kept->subspan(i * size, size);
    EXPECT_THAT(row,
                ElementsAreArray(expected->subspan(static_cast<size_t>(open[i] + 1) * size, size)))
        << "node " << open[i];
  }
  // And nothing is kept of a tree that the answer left.
  tokens.push_back((tree.nodes().front().token + 1) % vocab);
  if (tree.Find(-1, tokens.back()) < 0) {
    drafter.Follow(tokens);
    EXPECT_TRUE(drafter.tree().empty());
  }
}

// The draft is the target itself, resident: all that it drafts in windows is right.
TEST_F(PairDecoderTest, DraftsWhileTheTargetWaitsForItsWeights) {
  engine::ModelOptions options;
  options.weight_budget_bytes = static_cast<uint64_t>(target_->info().weight_bytes) * 9 / 10;
  const std::unique_ptr<engine::Model> streamed =
      engine::OpenTiny(folder_, folder_ / "model1.gguf", options);
  ASSERT_NE(streamed, nullptr);
  const std::vector<int32_t> prompt = engine::SomeTokens(30, target_->info().vocab_size);
  const auto expected = engine::GreedyDecode(*target_, prompt, 64);
  ASSERT_TRUE(expected.ok()) << expected.status();
  PairDecoder decoder(*streamed, target_.get(), Never);
  ASSERT_TRUE(decoder.Calibrate(std::vector<int32_t>{1, 4, 16}).ok());
  ASSERT_TRUE(decoder.Begin(prompt, 64).ok());
  for (int round = 0; round < 3; ++round) {
    const auto answer = decoder.Answer({.tree = true, .weighed = true, .ahead = true});
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_THAT(answer->tokens, ElementsAreArray(*expected));
    EXPECT_LE(answer->window_ms, answer->ms);
  }
}

TEST_F(PairDecoderTest, SaysWhatAWayLacks) {
  const std::vector<int32_t> prompt = engine::SomeTokens(8, target_->info().vocab_size);
  PairDecoder decoder(*target_, nullptr, Never);
  ASSERT_TRUE(decoder.Begin(prompt, 4).ok());
  EXPECT_EQ(decoder.Answer({.chain = 4}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(decoder.Answer({.tree = true, .prefix = true, .draft = false}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A target that judges nothing leaves the draft's answer; one that judges all strictly gives its
// own.
TEST_F(PairDecoderTest, TheBigLittleDecoderIsAsLossyAsItsThresholdsAllow) {
  const std::vector<int32_t> prompt = engine::SomeTokens(30, target_->info().vocab_size);
  const auto of_target = engine::GreedyDecode(*target_, prompt, 24);
  const auto of_draft = engine::GreedyDecode(*other_, prompt, 24);
  ASSERT_TRUE(of_target.ok() && of_draft.ok());
  PairDecoder decoder(*target_, other_.get(), Never);
  const auto trusting = decoder.Decode(prompt, 24, {.fallback = 1e-9, .rollback = 100});
  ASSERT_TRUE(trusting.ok()) << trusting.status();
  EXPECT_THAT(trusting->tokens, ElementsAreArray(*of_draft));
  EXPECT_EQ(trusting->target_passes, 0);
  const auto strict = decoder.Decode(prompt, 24, {.fallback = 2, .rollback = 1e-9});
  ASSERT_TRUE(strict.ok()) << strict.status();
  EXPECT_THAT(strict->tokens, ElementsAreArray(*of_target));
}

}  // namespace
}  // namespace withy::bench
