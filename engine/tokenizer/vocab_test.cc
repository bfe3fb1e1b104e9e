// Which tokens end an answer, by metadata and by text, as in llama.cpp.
#include "engine/tokenizer/vocab.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/tokenizer/testing.h"

namespace withy::engine {
namespace {

using testing::ElementsAre;

std::vector<int32_t> Ends(const Tokenizer& tokenizer) {
  const auto ends = tokenizer.end_of_generation_ids();
  return {ends.begin(), ends.end()};
}

// A byte-level vocabulary with these tokens from id 256 on.
std::unique_ptr<Tokenizer> With(const std::vector<std::string>& texts,
                                TokenKind kind = TokenKind::kControl,
                                const std::vector<std::pair<const char*, uint32_t>>& ids = {}) {
  TestVocab vocab;
  vocab.AddByteAlphabet();
  for (const std::string& text : texts) vocab.Add(text, kind);
  for (const auto& [key, id] : ids) vocab.writer().Set<uint32_t>(key, id);
  return vocab.Make("gpt2", "gpt-2").value();
}

TEST(VocabTest, TokensWhoseTextEndsAnAnswerDoWhateverTheirKind) {
  const std::vector<std::string> ends = {
      "<|eot_id|>",   "<|im_end|>",      "<|end|>",    "<end_of_turn>",
      "<|eom_id|>",   "<|endoftext|>",   "<EOT>",      "<|EOT|>",
      "_<EOT>",       "[EOT]",           "[EOS]",      "<|end_of_text|>",
      "</s>",         "<eos>",           "<turn|>",    "<end_of_utterance>",
      "<|return|>",   "<|call|>",        "<|calls|>",  "<|flush|>",
      "<|fim_pad|>",  "<fim-pad>",       "<fim_pad>",  "<PAD>",
      "[PAD]",        "<|fim_repo|>",    "<reponame>", "<|repo_name|>",
      "<|file_sep|>", "<fim-repo>",      "<REPO>",     "<｜end▁of▁sentence｜>",
      "[e~[",         "<|tool_response>"};
  for (const std::string& text : ends) {
    for (const TokenKind kind :
         {TokenKind::kNormal, TokenKind::kControl, TokenKind::kUserDefined}) {
      const auto tokenizer = With({text}, kind);
      EXPECT_THAT(Ends(*tokenizer), ElementsAre(256)) << text;
      EXPECT_TRUE(tokenizer->IsControl(256)) << text;
      for (const int32_t id : tokenizer->Encode(text)) EXPECT_LT(id, 256) << text;
    }
  }
}

TEST(VocabTest, OthersBesideTheNamedEndAnAnswerToo) {
  // Like Llama 3, and like files that name one of several tokens.
  const auto llama3 = With({"<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"},
                           TokenKind::kControl, {{"tokenizer.ggml.eos_token_id", 258}});
  EXPECT_THAT(Ends(*llama3), ElementsAre(257, 258));
  EXPECT_EQ(llama3->eos_id(), 258);
  EXPECT_EQ(llama3->eot_id(), 258);
  const auto spm =
      With({"<s>", "</s>", "<|end|>"}, TokenKind::kNormal, {{"tokenizer.ggml.eos_token_id", 258}});
  EXPECT_THAT(Ends(*spm), ElementsAre(257, 258));
}

TEST(VocabTest, TheMetadataNamesEndsOfAnyText) {
  const auto tokenizer = With({"one", "two", "three", "four"}, TokenKind::kNormal,
                              {{"tokenizer.ggml.eos_token_id", 256},
                               {"tokenizer.ggml.eot_token_id", 257},
                               {"tokenizer.ggml.eom_token_id", 259}});
  EXPECT_THAT(Ends(*tokenizer), ElementsAre(256, 257, 259));
  EXPECT_EQ(tokenizer->eot_id(), 257);
  EXPECT_TRUE(tokenizer->IsControl(259));
  EXPECT_FALSE(tokenizer->IsControl(258));
}

TEST(VocabTest, EveryTokenOfSuchATextCounts) {
  const auto tokenizer = With({"<|im_end|>", "x1", "<|im_end|>"}, TokenKind::kNormal);
  EXPECT_THAT(Ends(*tokenizer), ElementsAre(256, 258));
}

TEST(VocabTest, TwoFamiliesWriteSuchATextWithinAnswers) {
  const auto harmony = With({"<|end|>", "<|return|>", "<|call|>"});
  EXPECT_THAT(Ends(*harmony), ElementsAre(257, 258));
  EXPECT_TRUE(harmony->IsControl(256));
  EXPECT_THAT(Ends(*With({"<|end|>", "<|flush|>", "<|calls|>"})), ElementsAre(257, 258));
  EXPECT_THAT(Ends(*With({"<|end|>", "<|return|>"})), ElementsAre(256, 257));
  EXPECT_THAT(Ends(*With({"</s>", "<|tool_response>"})), ElementsAre(257));
}

TEST(VocabTest, MarkupOfAnyKindIsControl) {
  for (const char* text : {"<|im_start|>", "<|fim_prefix|>", "<start_of_turn>", "<|user|>"}) {
    const auto tokenizer = With({text}, TokenKind::kUserDefined);
    EXPECT_TRUE(tokenizer->IsControl(256)) << text;
    EXPECT_TRUE(Ends(*tokenizer).empty()) << text;
  }
  EXPECT_FALSE(With({"<tool_call>"}, TokenKind::kUserDefined)->IsControl(256));
}

}  // namespace
}  // namespace withy::engine
