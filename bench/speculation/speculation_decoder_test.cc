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
      PairDecoder decoder(*target_, draft, {});
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
  PairDecoder decoder(*elastic, other_.get(), {});
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
  PairDecoder decoder(*streamed, target_.get(), {});
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
  PairDecoder decoder(*target_, nullptr, {});
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
  PairDecoder decoder(*target_, other_.get(), {});
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
