#include "bench/speculation/speculation_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/model/scratch_kv.h"
#include "engine/model/testing.h"
#include "engine/session/testing.h"

namespace withy::bench {
namespace {

using policy::SpeculationMode;
using testing::ElementsAreArray;

constexpr int32_t kTokens = 40;

class PairDecoderTest : public testing::Test {
 protected:
  std::unique_ptr<engine::Model> Open(uint64_t seed, const engine::ModelOptions& options = {}) {
    engine::SynthShape shape = engine::TinyShape();
    shape.levels = {20, 60};
    const std::string path = folder_ / ("model" + std::to_string(seed) + ".gguf");
    EXPECT_TRUE(engine::WriteSynthModel(shape, engine::GgmlType::kQ8_0, seed, path).ok());
    return engine::OpenTiny(folder_, path, options);
  }
  std::unique_ptr<PairDecoder> Pair(engine::Model& target, engine::Model* draft) {
    auto pair = PairDecoder::Create(
        {.target = target, .tokenizer = *chat_.tokenizer, .chat = chat_.chat, .draft = draft}, 200);
    EXPECT_TRUE(pair.ok()) << pair.status();
    return *std::move(pair);
  }
  std::vector<int32_t> PromptIds() const {
    return chat_.encoder->EncodePrompt(messages_, engine::kWide)->ids;
  }

  engine::TestFolder folder_;
  const engine::ChatFixture chat_;
  const std::unique_ptr<engine::Model> target_ = Open(1), other_ = Open(2);
  // Text that repeats itself, so that look-ups find something.
  const std::vector<engine::Segment> messages_ = {engine::UserSays("hello hello hello hello")};
};

// With a draft that is always right and with one that hardly ever is.
TEST_F(PairDecoderTest, LosslessWaysGiveWhatTheTargetDecodes) {
  const auto expected = engine::GreedyDecode(*target_, PromptIds(), kTokens);
  ASSERT_TRUE(expected.ok()) << expected.status();
  int64_t drafted = 0;
  for (engine::Model* draft : {target_.get(), other_.get()}) {
    const std::unique_ptr<PairDecoder> pair = Pair(*target_, draft);
    for (const DecodeWay& way :
         std::vector<DecodeWay>{{},
                                {.chain = 1},
                                {.chain = 4},
                                {.chain = 16},
                                {.tree = true},
                                {.tree = true, .adaptive = true},
                                {.speculation = SpeculationMode::kLookup},
                                {.speculation = SpeculationMode::kPrefix, .windows = true},
                                {.speculation = SpeculationMode::kDraft},
                                {.speculation = SpeculationMode::kAuto, .windows = true}}) {
      SCOPED_TRACE(testing::Message() << "chain " << way.chain << ", tree " << way.tree
                                      << ", speculation " << static_cast<int>(way.speculation));
      const auto answer = pair->Answer(messages_, kTokens, way, /*open=*/true);
      ASSERT_TRUE(answer.ok()) << answer.status();
      EXPECT_THAT(answer->tokens, ElementsAreArray(*expected));
      EXPECT_EQ(answer->decoded, kTokens - 1);
      EXPECT_LE(answer->accepted, answer->drafted);
      drafted += answer->drafted;
      if (way == DecodeWay{.chain = 4} && draft == target_.get()) {
        EXPECT_EQ(answer->target_passes, 8) << "five tokens a pass";
      }
      if (way == DecodeWay{}) {
        EXPECT_EQ(answer->target_passes, kTokens - 1);
        EXPECT_EQ(answer->drafted, 0);
      }
    }
  }
  EXPECT_GT(drafted, 0);
}

// An answer ends where the model ends it, unless it is to be open.
TEST_F(PairDecoderTest, OpenAnswersGoOnBeyondTheirEnd) {
  const auto expected = engine::GreedyDecode(*target_, PromptIds(), kTokens);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const auto ends = chat_.tokenizer->end_of_generation_ids();
  const auto end = std::find_first_of(expected->begin(), expected->end(), ends.begin(), ends.end());
  const std::unique_ptr<PairDecoder> pair = Pair(*target_, nullptr);
  const auto answer = pair->Answer(messages_, kTokens, {});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_THAT(answer->tokens, ElementsAreArray(std::vector<int32_t>(expected->begin(), end)));
  const auto open = pair->Answer(messages_, kTokens, {}, /*open=*/true);
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_THAT(open->tokens, ElementsAreArray(*expected));
}

// The draft is the target itself, resident: all that it drafts in windows is right.
TEST_F(PairDecoderTest, DraftsWhileTheTargetWaitsForItsWeights) {
  engine::ModelOptions options;
  options.weight_budget_bytes = static_cast<uint64_t>(target_->info().weight_bytes) * 9 / 10;
  const std::unique_ptr<engine::Model> streamed = Open(1, options);
  ASSERT_NE(streamed, nullptr);
  const auto expected = engine::GreedyDecode(*target_, PromptIds(), kTokens);
  ASSERT_TRUE(expected.ok()) << expected.status();
  const std::unique_ptr<PairDecoder> pair = Pair(*streamed, target_.get());
  for (int round = 0; round < 3; ++round) {
    const auto answer = pair->Answer(
        messages_, kTokens, {.speculation = SpeculationMode::kDraft, .windows = true}, true);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_THAT(answer->tokens, ElementsAreArray(*expected));
  }
}

TEST_F(PairDecoderTest, SaysWhatAWayLacks) {
  const std::unique_ptr<engine::Model> plain = engine::OpenTiny(
      folder_, engine::WriteTiny(folder_, engine::TinyShape(), engine::GgmlType::kQ8_0));
  const std::unique_ptr<PairDecoder> pair = Pair(*plain, nullptr);
  for (const DecodeWay& way :
       {DecodeWay{.chain = 4}, DecodeWay{.speculation = SpeculationMode::kPrefix}}) {
    EXPECT_EQ(pair->Answer(messages_, 4, way).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

// A target that judges nothing leaves the draft's answer; one that judges all strictly gives its
// own.
TEST_F(PairDecoderTest, TheBigLittleDecoderIsAsLossyAsItsThresholdsAllow) {
  const auto of_target = engine::GreedyDecode(*target_, PromptIds(), kTokens);
  const auto of_draft = engine::GreedyDecode(*other_, PromptIds(), kTokens);
  ASSERT_TRUE(of_target.ok() && of_draft.ok());
  const std::unique_ptr<PairDecoder> pair = Pair(*target_, other_.get());
  const auto trusting = pair->Answer(
      messages_, kTokens, {.big_little = {.fallback = 1e-9, .rollback = 100}}, /*open=*/true);
  ASSERT_TRUE(trusting.ok()) << trusting.status();
  EXPECT_THAT(trusting->tokens, ElementsAreArray(*of_draft));
  EXPECT_EQ(trusting->target_passes, 0);
  const auto strict = pair->Answer(
      messages_, kTokens, {.big_little = {.fallback = 2, .rollback = 1e-9}}, /*open=*/true);
  ASSERT_TRUE(strict.ok()) << strict.status();
  EXPECT_THAT(strict->tokens, ElementsAreArray(*of_target));
}

}  // namespace
}  // namespace withy::bench
