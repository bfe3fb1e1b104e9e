#include "offline/tlm/wordpiece_learner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/encoder/testing.h"

namespace withy::tlm {
namespace {

using testing::IsSupersetOf;

engine::WordPieceVocab LearnSample(const engine::TempFolder& folder, int32_t size) {
  auto learner = WordPieceLearner::Create(folder / "");
  EXPECT_TRUE(learner.ok()) << learner.status();
  for (int i = 0; i < 20; ++i)
    learner->Add(
        "The r\xC3\xA9"
        "d lamp, the RED lamps and the door.");
  auto vocab = learner->Learn(size, 10);
  EXPECT_TRUE(vocab.ok()) << vocab.status();
  return *std::move(vocab);
}

TEST(WordPieceLearner, LearnsWordsInNormalForm) {
  const engine::TempFolder folder("wordpiece_learner");
  const engine::WordPieceVocab vocab = LearnSample(folder, 220);
  const std::string mark = "\xE2\x96\x81";
  EXPECT_THAT(vocab.tokens, IsSupersetOf({mark + "the", mark + "red", mark + "lamp", mark + "door",
                                          mark + ",", std::string("[01]"), std::string("<10>")}));
  for (const std::string& token : vocab.tokens) {
    if (token.starts_with("[")) continue;
    EXPECT_EQ(token.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), std::string::npos);
  }
}

TEST(WordPieceLearner, StopsAtTheSizeAskedForAndGivesTheSameAgain) {
  const engine::TempFolder folder("wordpiece_learner");
  EXPECT_EQ(LearnSample(folder, 170).size(), 170);
  EXPECT_EQ(LearnSample(folder, 170), LearnSample(folder, 170));
}

TEST(PocketTlmShape, HasAtMostTwoMillionParameters) {
  int64_t parameters = 0;
  const engine::TlmShape shape = PocketTlmShape(2000, engine::DefaultLevels());
  ASSERT_TRUE(engine::CheckTlmShape(shape, "pocket TLM").ok());
  for (const engine::TensorSpec& tensor : engine::TlmTensors(shape)) {
    parameters += tensor.elements();
  }
  EXPECT_LE(parameters, 2000000);
}

TEST(PocketTlmShape, OtherSizesAreTlmsToo) {
  for (const int32_t width : {32, 64, 256}) {
    for (int32_t shared = 0; shared <= 4; ++shared) {
      const engine::TlmShape shape =
          PocketTlmShape(2000, engine::DefaultLevels(), {.width = width, .shared_layers = shared});
      EXPECT_TRUE(engine::CheckTlmShape(shape, "other TLM").ok()) << width << " " << shared;
      EXPECT_EQ(shape.shared_layers + shape.decision_layers, 4);
      EXPECT_EQ(shape.shared_layers + shape.score_layers, std::max(3, shared));
    }
  }
}

}  // namespace
}  // namespace withy::tlm
