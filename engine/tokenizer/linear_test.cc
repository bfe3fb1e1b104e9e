// Encoding is linear for every kind of run, rule and tokenizer.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/tokenizer/testing.h"

namespace withy::engine {
namespace {

// Elements of runs: each class of characters, and sequences that rules match together.
std::vector<std::string> Units() {
  return {"7",
          "\xC2\xBD",
          "\xD9\xA3",
          "1a",
          "1 ",
          " 1",
          "a",
          "A",
          "aA",
          "\xC3\xA9",
          "\xC3\x89",
          "\xE4\xB8\xAD",
          "\xC2\xAA",
          "\xE4\xB8\xAD"
          "A",
          "\xCC\x81",
          "a\xCC\x81",
          "!",
          "$",
          "+",
          "`",
          "/",
          "!/",
          "!\n",
          " ",
          "\t",
          "\n",
          "\r\n",
          " \n",
          "\n ",
          "\xC2\xA0",
          " a",
          "  a",
          "'",
          "'s",
          "x's",
          "\x1D",
          std::string(1, '\0'),
          "\xFF",
          "\xE4\xB8",
          "\xF0\x9F\x98\x81",
          kMark,
          "<",
          "<|",
          "<|im_end|>",
          "<|im_en",
          "<u>",
          "</s>",
          "[",
          "[UNK]",
          "\xEF\xBF\xBD"};
}

struct Named {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
};

Named Bpe(const std::string& pre, bool all_bytes) {
  TestVocab vocab;
  vocab.AddByteAlphabet();
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{
           {"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}, {"7", "7"}, {"77", "77"}, {"!", "!"}}) {
    vocab.AddMerge(left, right);
  }
  if (!all_bytes) vocab.Change(0x1D, "absent");
  vocab.Add("<|im_end|>", TokenKind::kControl);
  vocab.Add("<|im_start|>", TokenKind::kControl);
  vocab.Add("<u>", TokenKind::kUserDefined);
  return {pre + (all_bytes ? "" : " without all bytes"), vocab.Make("gpt2", pre).value()};
}

Named Spm(bool bytes) {
  TestVocab vocab;
  vocab.Add("<unk>", TokenKind::kUnknown);
  vocab.Add("<s>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  if (bytes) vocab.AddByteFallback();
  float score = 0.0f;
  for (const char* text : {kMark, "a", "aa", "aaaa", "7", "77", "7777", "<", "|", "im", "\n"}) {
    vocab.Add(text, TokenKind::kNormal, score -= 1.0f);
  }
  vocab.Add("<u>", TokenKind::kUserDefined);
  return {bytes ? "llama" : "llama without bytes", vocab.Make("llama").value()};
}

Named Unigram(bool bytes) {
  TestVocab vocab;
  vocab.Add("<pad>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  vocab.Add("<unk>", TokenKind::kUnknown);
  if (bytes) vocab.AddByteFallback();
  float score = 0.0f;
  for (const char* text : {kMark, "a", "aa", "aaaa", "7", "77", "7777", "<", "|", "im"}) {
    vocab.Add(text, TokenKind::kNormal, score -= 1.0f);
  }
  vocab.Add(std::string(200, '7'));
  vocab.Add("<u>", TokenKind::kUserDefined);
  vocab.writer().SetArray<uint8_t>(
      "tokenizer.ggml.precompiled_charsmap",
      MakeCharsmap({{"\n", " "}, {std::string(60, ' ') + "x", " "}, {"\xCC\x81", ""}}));
  vocab.writer().Set<bool>("tokenizer.ggml.remove_extra_whitespaces", bytes);
  return {bytes ? "t5" : "t5 without bytes", vocab.Make("t5").value()};
}

Named WordPiece() {
  TestVocab vocab;
  vocab.Add("[UNK]", TokenKind::kUnknown);
  vocab.Add("[CLS]", TokenKind::kControl);
  vocab.Add("[SEP]", TokenKind::kControl);
  for (const std::string text : {"a", "7", "!"}) {
    vocab.Add(kMark + text);
    vocab.Add(text);
  }
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", 0);
  vocab.writer().Set<uint32_t>("tokenizer.ggml.bos_token_id", 1);
  vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", 2);
  return {"bert", vocab.Make("bert").value()};
}

std::vector<Named> Tokenizers() {
  std::vector<Named> all;
  for (const char* pre : {"gpt-2", "default", "falcon", "smollm", "llama-bpe", "qwen2",
                          "deepseek-coder", "deepseek-v3", "tekken", "gpt-4o"}) {
    all.push_back(Bpe(pre, true));
  }
  all.push_back(Bpe("llama-bpe", false));
  all.push_back(Spm(true));
  all.push_back(Spm(false));
  all.push_back(Unigram(true));
  all.push_back(Unigram(false));
  all.push_back(WordPiece());
  return all;
}

std::string RunOf(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += unit;
  return text;
}

// CPU time of this thread: the minimum of several runs.
double SecondsOf(const Tokenizer& tokenizer, const std::string& text, int times) {
  double least = 1e9;
  for (int i = 0; i < times; ++i) {
    const double started = ThreadCpuSeconds();
    (void)tokenizer.Encode(text, {.parse_special = true});
    least = std::min(least, ThreadCpuSeconds() - started);
  }
  return least;
}

TEST(LinearTest, EveryRunIsEncodedInLinearTimeByEveryTokenizer) {
  constexpr size_t kShort = size_t{1} << 12;
  constexpr size_t kLong = size_t{1} << 16;
  // A run of sixteen times the length takes sixteen times as long if linear, 21 times with a heap's
  // logarithm, and 256 times (seconds instead of milliseconds) if quadratic.
  constexpr double kMaxRatio = 80;
  constexpr double kDisturbedSeconds = 0.02;
  for (const auto& [name, tokenizer] : Tokenizers()) {
    for (const std::string& unit : Units()) {
      const double once = SecondsOf(*tokenizer, RunOf(unit, kShort), 3);
      const std::string run = RunOf(unit, kLong);
      const auto too_long = [&](double seconds) {
        return seconds > kMaxRatio * once + kDisturbedSeconds;
      };
      double seconds = SecondsOf(*tokenizer, run, 1);
      if (too_long(seconds)) seconds = std::min(seconds, SecondsOf(*tokenizer, run, 2));
      EXPECT_FALSE(too_long(seconds))
          << name << ", runs of \"" << absl::CHexEscape(unit) << "\": " << kShort << " bytes take "
          << once << " s, " << kLong << " bytes " << seconds << " s";
    }
  }
}

TEST(LinearTest, AMegabyteOfDigitsTakesNoSecond) {
  const std::string digits(size_t{1} << 20, '7');
  for (const auto& [name, tokenizer] : Tokenizers()) {
    // Well under a second; more with sanitizers. Quadratic work would take minutes.
    EXPECT_LT(SecondsOf(*tokenizer, digits, 1), 20.0) << name;
  }
}

TEST(LinearTest, ACancelledEncodingEndsSoonAndSaysSo) {
  for (const auto& [name, tokenizer] : Tokenizers()) {
    for (const std::string& unit : Units()) {
      const std::string text = RunOf(unit, 4 * CancelPoll::kStride);
      int asked = 0;
      const CancelCheck at_once = [&asked] { return ++asked > 0; };
      const TextPiece piece{text, true};
      const Encoding ended = tokenizer->EncodePieces({&piece, 1}, {.cancelled = &at_once});
      EXPECT_TRUE(ended.cancelled) << name << ", " << absl::CHexEscape(unit);
      EXPECT_EQ(asked, 1) << name << ", " << absl::CHexEscape(unit);
      const CancelCheck never = [] { return false; };
      const Encoding whole = tokenizer->EncodePieces({&piece, 1}, {.cancelled = &never});
      EXPECT_FALSE(whole.cancelled);
      EXPECT_EQ(whole.ids, tokenizer->EncodePieces({&piece, 1}, {}).ids) << name;
    }
  }
}

}  // namespace
}  // namespace withy::engine
