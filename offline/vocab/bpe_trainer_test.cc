#include "offline/vocab/bpe_trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "engine/chat/template.h"
#include "offline/vocab/vocabulary.h"

namespace withy::vocab {
namespace {

BpeVocabulary LearnSample(int32_t size) {
  BpeTrainer trainer;
  for (int i = 0; i < 20; ++i) trainer.Add("the red lamp and the red door, 12 lamps\n");
  return trainer.Learn({std::string(kEndOfText), std::string(kTurnStart), std::string(kTurnEnd)},
                       size, 2);
}

std::unique_ptr<engine::Tokenizer> SampleTokenizer(int32_t size) {
  const std::string path =
      testing::TempDir() + "/bpe_trainer_test_" + std::to_string(size) + ".gguf";
  absl::StatusOr<std::unique_ptr<engine::Tokenizer>> tokenizer =
      MakeTokenizer(LearnSample(size), path);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return std::move(tokenizer).value();
}

TEST(BpeTrainer, LearnsFrequentWordsAsWholeTokens) {
  const BpeVocabulary vocabulary = LearnSample(320);
  EXPECT_THAT(vocabulary.pieces, testing::IsSupersetOf({" the", " red", " lamp", " door"}));
}

TEST(BpeTrainer, StopsAtTheSizeAskedFor) { EXPECT_EQ(LearnSample(265).size(), 265); }

TEST(BpeTrainer, StopsWhenNoPairIsFrequentEnough) {
  BpeTrainer trainer;
  trainer.Add("ab");
  EXPECT_EQ(trainer.Learn({}, 1000, 2).size(), 256);
}

TEST(BpeTrainer, SameTextGivesSameVocabulary) {
  EXPECT_EQ(LearnSample(300).pieces, LearnSample(300).pieces);
  EXPECT_EQ(LearnSample(300).merges, LearnSample(300).merges);
}

TEST(BpeTrainer, NeverJoinsDigits) {
  for (const std::string& piece : LearnSample(400).pieces) EXPECT_NE(piece, "12");
}

TEST(Vocabulary, TheEnginesTokenizerUsesWhatWasLearned) {
  const auto tokenizer = SampleTokenizer(320);
  EXPECT_EQ(tokenizer->Encode(" the red lamp").size(), 3u);
  EXPECT_EQ(tokenizer->Encode("12").size(), 2u);
}

TEST(Vocabulary, AnyBytesComeBack) {
  const auto tokenizer = SampleTokenizer(320);
  std::string bytes = "the red lamp\n";
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  EXPECT_EQ(tokenizer->Decode(tokenizer->Encode(bytes)), bytes);
}

TEST(Vocabulary, TurnEndsEndTheAnswer) {
  const auto tokenizer = SampleTokenizer(320);
  EXPECT_EQ(tokenizer->FindToken(kTurnEnd), 2);
  EXPECT_TRUE(tokenizer->IsControl(2));
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(2));
  EXPECT_FALSE(tokenizer->wants_bos());
}

TEST(Vocabulary, TheChatTemplateIsRecognisedAsChatMl) {
  const std::string path = testing::TempDir() + "/bpe_trainer_test_chat.gguf";
  ASSERT_TRUE(MakeTokenizer(LearnSample(300), path).ok());
  const auto file = engine::GgufFile::Open(path);
  ASSERT_TRUE(file.ok());
  const auto chat = engine::ChatTemplate::FromFile(*file);
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_EQ(chat->name(), "chatml");
}

}  // namespace
}  // namespace withy::vocab
