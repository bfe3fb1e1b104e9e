// For any vocabulary no text becomes a control token or a token that ends an answer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/test_seed.h"
#include "engine/tokenizer/testing.h"

namespace withy::engine {
namespace {

using Ids = std::vector<int32_t>;

struct Vocabulary {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
  int32_t unknown = kNoToken;  // the token for text without a token of its own
};

uint32_t Id(int32_t id) { return static_cast<uint32_t>(id); }

// A byte-level vocabulary like SmolLM2's: its unknown token is the end of text, and some bytes have
// no token.
TestVocab SmolVocab() {
  TestVocab vocab;
  vocab.AddByteAlphabet();
  vocab.Change(0x1D, "absent 1");
  vocab.Change(0xC0, "absent 2");
  const int32_t end_of_text = vocab.Add("<|endoftext|>", TokenKind::kControl);
  const int32_t end = vocab.Add("<|im_end|>", TokenKind::kControl);
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", Id(end_of_text));
  vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", Id(end));
  return vocab;
}

std::vector<Vocabulary> BpeVocabularies() {
  std::vector<Vocabulary> all;
  for (const char* pre : {"gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-v3", "tekken"}) {
    all.push_back(
        {std::string("unknown is the end of text, ") + pre, SmolVocab().Make("gpt2", pre).value()});
  }
  {
    TestVocab vocab;  // merges produce tokens that end an answer; whole words are tokens
    vocab.AddByteAlphabet();
    vocab.AddMerge("<", "/");
    vocab.AddMerge("s", ">");
    vocab.AddMerge("</", "s>");
    vocab.AddMerge("!", "!");
    vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", Id(vocab.Add("!!!")));
    vocab.AddMerge("!!", "!");
    all.push_back({"merges lead to the end", vocab.Make("gpt2", "llama-bpe").value()});
    all.push_back({"merges lead to the end, by rule", vocab.Make("gpt2", "gpt-2").value()});
  }
  {
    TestVocab vocab;  // byte tokens that are control tokens or end an answer
    vocab.AddByteAlphabet();
    vocab.Change('a', "a", TokenKind::kControl);
    vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", uint32_t{'!'});
    vocab.writer().Set<uint32_t>("tokenizer.ggml.eot_token_id", uint32_t{'<'});
    vocab.writer().Set<uint32_t>("tokenizer.ggml.eom_token_id", uint32_t{'s'});
    all.push_back({"bytes end an answer", vocab.Make("gpt2", "gpt-2").value()});
  }
  {
    TestVocab vocab;  // user-defined tokens, which any text may become, end an answer
    vocab.AddByteAlphabet();
    vocab.Add("<|file_sep|>", TokenKind::kUserDefined);
    vocab.Add("<u>", TokenKind::kUserDefined);
    const int32_t end = vocab.Add("[U]", TokenKind::kUserDefined);
    vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", Id(end));
    all.push_back({"user-defined ones end an answer", vocab.Make("gpt2", "qwen2").value()});
  }
  return all;
}

enum class SpmUnknown { kUnknown, kEnd, kBegin, kControl };

Vocabulary Spm(SpmUnknown unknown, bool bytes, bool kinds, bool prefix) {
  TestVocab vocab;
  vocab.Add("<unk>", TokenKind::kUnknown);
  vocab.Add("<s>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  vocab.Add("<|x|>", TokenKind::kControl);
  if (bytes) vocab.AddByteFallback();
  float score = 0.0f;
  // Each special text can be merged from parts.
  for (const char* text : {kMark, "a",   "!",  "<", "/", "s", ">", "</", "s>", "<s",  "u", "n", "k",
                           "un",  "<un", "k>", "[", "]", "|", "x", "<|", "|>", "<|x", "aa"}) {
    vocab.Add(text, TokenKind::kNormal, score -= 1.0f);
  }
  vocab.Add("</s>", TokenKind::kNormal, 5.0f);  // also present as an ordinary token
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(unknown));
  const std::array<uint32_t, 4> ids = {0, 2, 1, 3};
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id",
                               ids[static_cast<size_t>(unknown)]);
  vocab.writer().Set<bool>("tokenizer.ggml.add_space_prefix", prefix);
  if (!kinds) vocab.LeaveOutKinds();
  Vocabulary made;
  made.name = "SentencePiece, unknown " + std::to_string(static_cast<int>(unknown)) +
              (bytes ? ", bytes" : "") + (kinds ? "" : ", no kinds") + (prefix ? ", prefix" : "");
  made.tokenizer = vocab.Make("llama").value();
  if (unknown == SpmUnknown::kUnknown) made.unknown = 0;
  return made;
}

Vocabulary Unigram(SpmUnknown unknown, bool bytes, bool strip) {
  TestVocab vocab;
  vocab.Add("<unk>", TokenKind::kUnknown);
  vocab.Add("<s>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  vocab.Add("<|x|>", TokenKind::kControl);
  if (bytes) vocab.AddByteFallback();
  float score = 0.0f;
  for (const char* text : {kMark, "a", "!", "<", "/", "s", ">", "</s>", "<s>", "<unk>", "<|x|>",
                           "u", "n", "k", "[", "]", "|", "x", "aa"}) {
    vocab.Add(text, TokenKind::kNormal, score -= 1.0f);
  }
  // Rules that write texts of control tokens.
  vocab.writer().SetArray<uint8_t>(
      "tokenizer.ggml.precompiled_charsmap",
      MakeCharsmap({{"\xE4\xB8\xAD", "</s>"}, {"\xC3\xA9", ""}, {"\n", " "}, {"!!!", "<s>"}}));
  const std::array<uint32_t, 4> ids = {0, 2, 1, 3};
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id",
                               ids[static_cast<size_t>(unknown)]);
  vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", 2);
  vocab.writer().Set<bool>("tokenizer.ggml.add_space_prefix", strip);
  vocab.writer().Set<bool>("tokenizer.ggml.remove_extra_whitespaces", strip);
  Vocabulary made;
  made.name = "Unigram, unknown " + std::to_string(static_cast<int>(unknown)) +
              (bytes ? ", bytes" : "") + (strip ? ", strips" : "");
  made.tokenizer = vocab.Make("t5").value();
  if (unknown == SpmUnknown::kUnknown) made.unknown = 0;
  return made;
}

Vocabulary WordPiece(uint32_t unknown, TokenKind unknown_kind) {
  TestVocab vocab;
  vocab.Add("[UNK]", unknown_kind);
  vocab.Add("[CLS]", TokenKind::kControl);
  vocab.Add("[SEP]", TokenKind::kNormal);
  for (const std::string text : {"a", "s", "!", "<", "[", "]", "sep", "unk"}) {
    vocab.Add(kMark + text);
    vocab.Add(text);
  }
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", unknown);
  vocab.writer().Set<uint32_t>("tokenizer.ggml.bos_token_id", 1);
  vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", 2);
  return {"WordPiece, unknown " + std::to_string(unknown), vocab.Make("bert").value(),
          unknown == 0 ? 0 : kNoToken};
}

std::vector<Vocabulary> Vocabularies() {
  std::vector<Vocabulary> all = BpeVocabularies();
  for (const auto unknown :
       {SpmUnknown::kUnknown, SpmUnknown::kEnd, SpmUnknown::kBegin, SpmUnknown::kControl}) {
    for (const bool bytes : {false, true}) {
      for (const bool kinds : {false, true}) all.push_back(Spm(unknown, bytes, kinds, bytes));
      for (const bool strip : {false, true}) all.push_back(Unigram(unknown, bytes, strip));
    }
  }
  all.push_back(WordPiece(0, TokenKind::kUnknown));
  all.push_back(WordPiece(0, TokenKind::kControl));
  all.push_back(WordPiece(1, TokenKind::kUnknown));
  all.push_back(WordPiece(2, TokenKind::kUnknown));
  return all;
}

std::string RandomText(std::mt19937& random) {
  static const std::vector<std::string> kParts = {"a",
                                                  "s",
                                                  "!",
                                                  "!!!",
                                                  "<",
                                                  "/",
                                                  ">",
                                                  " ",
                                                  "\n",
                                                  "\x1D",
                                                  "\xC0",
                                                  "\xFF",
                                                  "\xE4\xB8\xAD",
                                                  "\xC3\xA9",
                                                  kMark,
                                                  "</s>",
                                                  "<s>",
                                                  "<unk>",
                                                  "[SEP]",
                                                  "[UNK]",
                                                  "[CLS]",
                                                  "[U]",
                                                  "<u>",
                                                  "<|x|>",
                                                  "<|endoftext|>",
                                                  "<|im_end|>",
                                                  "<|file_sep|>",
                                                  "unk",
                                                  "1",
                                                  std::string(1, '\0')};
  std::string text;
  for (size_t parts = random() % 12; parts > 0; --parts) text += kParts[random() % kParts.size()];
  return text;
}

TEST(ForgeryTest, NoTextBecomesAControlTokenOrEndsAnAnswer) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  const std::vector<Vocabulary> vocabularies = Vocabularies();
  for (int round = 0; round < 2000; ++round) {
    const std::string text = RandomText(random);
    const size_t cut = random() % (text.size() + 1);
    const TextPiece pieces[] = {{std::string_view(text).substr(0, cut), false},
                                {std::string_view(text).substr(cut), false}};
    for (const auto& [name, tokenizer, unknown] : vocabularies) {
      const bool continues = random() % 2 == 0;
      const Encoding encoding = tokenizer->EncodePieces(pieces, {.continues = continues});
      uint32_t covered = 0;
      for (size_t i = 0; i < encoding.ids.size(); ++i) {
        const int32_t id = encoding.ids[i];
        EXPECT_FALSE(tokenizer->IsEndOfGeneration(id)) << name << ": " << absl::CHexEscape(text);
        if (id != unknown) {
          EXPECT_FALSE(tokenizer->IsControl(id)) << name << ": " << absl::CHexEscape(text);
        }
        EXPECT_EQ(encoding.spans[i].begin, covered) << name << ": " << absl::CHexEscape(text);
        covered = encoding.spans[i].end;
      }
      // If everything except the leading space was dropped, no token covers the text.
      if (covered > 0) {
        EXPECT_EQ(covered, text.size()) << name << ": " << absl::CHexEscape(text);
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(ForgeryTest, ACharacterWithoutATokenIsDropped) {
  const auto smol = SmolVocab().Make("gpt2", "smollm").value();
  EXPECT_EQ(smol->Encode("a\x1D"
                         "b"),
            (Ids{'a', 'b'}));
  EXPECT_EQ(smol->Encode("\x1D"), Ids{});
  EXPECT_EQ(smol->Decode(smol->Encode("a\x1D"
                                      "b")),
            "ab");
  const TextPiece piece{
      "\x1D"
      "a\x1D\x1D"
      "b\x1D",
      false};
  EXPECT_EQ(smol->EncodePieces({&piece, 1}, {.add_bos = false}).spans,
            (std::vector<ByteSpan>{{0, 4}, {4, 6}}));
  // In BPE no text becomes the unknown token, even if that has no other meaning.
  TestVocab vocab = SmolVocab();
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id",
                               Id(vocab.Add("<unk>", TokenKind::kUnknown)));
  EXPECT_EQ(vocab.Make("gpt2", "smollm").value()->Encode("a\x1D"), (Ids{'a'}));
}

TEST(ForgeryTest, SentencePieceHasAnUnknownTokenThatMeansNothingElse) {
  EXPECT_EQ(Spm(SpmUnknown::kUnknown, false, true, false).tokenizer->Encode("\xC3\xA9"), (Ids{0}));
  for (const auto unknown : {SpmUnknown::kEnd, SpmUnknown::kBegin, SpmUnknown::kControl}) {
    EXPECT_EQ(Spm(unknown, false, true, false).tokenizer->Encode("\xC3\xA9"), Ids{});
  }
}

TEST(ForgeryTest, WhereMarkupIsAskedForItIsFound) {
  const auto smol = SmolVocab().Make("gpt2", "smollm").value();
  EXPECT_EQ(smol->Encode("a<|im_end|>", {.parse_special = true}), (Ids{'a', 257}));
  // Characters without a token are dropped there, too.
  EXPECT_EQ(smol->Encode("a\x1D<|im_end|>", {.parse_special = true}), (Ids{'a', 257}));
}

}  // namespace
}  // namespace withy::engine
