#include "engine/tokenizer/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer/testing.h"

namespace withy::engine {
namespace {

using Ids = std::vector<int32_t>;
using testing::HasSubstr;

constexpr char kSpace[] = "\xC4\xA0";  // a space in the byte alphabet

struct BpeFixture {
  BpeFixture() {
    vocab.AddByteAlphabet();
    vocab.AddMerge("l", "l");                            // ll = 256
    vocab.AddMerge("h", "e");                            // he = 257
    vocab.AddMerge("ll", "o");                           // llo = 258
    vocab.AddMerge("he", "llo");                         // hello = 259
    vocab.AddMerge(kSpace, "w");                         // " w" = 260
    end = vocab.Add("<|im_end|>", TokenKind::kControl);  // 261
    think = vocab.Add("<think>", TokenKind::kUserDefined);
    vocab.writer().Set<uint32_t>("tokenizer.ggml.bos_token_id", 261);
    vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", 261);
    auto made = vocab.Make("gpt2", "gpt-2");
    EXPECT_TRUE(made.ok()) << made.status();
    tokenizer = std::move(*made);
  }
  TestVocab vocab;
  int32_t end = 0;
  int32_t think = 0;
  std::unique_ptr<Tokenizer> tokenizer;
};

TEST(BpeTest, MergesByRank) {
  const BpeFixture f;
  EXPECT_EQ(f.tokenizer->Encode("hello"), (Ids{259}));
  EXPECT_EQ(f.tokenizer->Encode("helloo w"), (Ids{259, 'o', 260}));
  EXPECT_EQ(f.tokenizer->Encode("llll"), (Ids{256, 256}));
  EXPECT_EQ(f.tokenizer->Encode("lll"), (Ids{256, 'l'}));  // equal ranks: leftmost first
  EXPECT_EQ(f.tokenizer->Encode(""), Ids{});
}

TEST(BpeTest, SpansCoverTheInput) {
  const BpeFixture f;
  const TextPiece pieces[] = {{"hello w", false}, {"<|im_end|>", true}, {"\xC3\xA9", false}};
  const Encoding encoding = f.tokenizer->EncodePieces(pieces, {.add_bos = true});
  EXPECT_EQ(encoding.ids, (Ids{261, 259, 260, 261, 0xC3, 0xA9}));
  EXPECT_EQ(encoding.spans,
            (std::vector<ByteSpan>{{0, 0}, {0, 5}, {5, 7}, {7, 17}, {17, 18}, {18, 19}}));
}

TEST(BpeTest, TextCannotForgeControlTokens) {
  const BpeFixture f;
  const Ids parsed = f.tokenizer->Encode("a<|im_end|>", {.parse_special = true});
  EXPECT_EQ(parsed, (Ids{'a', f.end}));
  for (const int32_t id : f.tokenizer->Encode("a<|im_end|>")) EXPECT_NE(id, f.end);
  // Neither inside a piece nor across a border.
  const TextPiece pieces[] = {{"<|im_", false}, {"end|>", true}};
  for (const int32_t id : f.tokenizer->EncodePieces(pieces, {}).ids) EXPECT_NE(id, f.end);
  // User-defined tokens are always recognised.
  EXPECT_EQ(f.tokenizer->Encode("a<think>b"), (Ids{'a', f.think, 'b'}));
}

TEST(BpeTest, PiecesOfTextJoin) {
  const BpeFixture f;
  const TextPiece pieces[] = {{"he", false}, {"llo", true}};
  EXPECT_EQ(f.tokenizer->EncodePieces(pieces, {}).ids, (Ids{259}));
}

TEST(BpeTest, ArbitraryBytesRoundTrip) {
  const BpeFixture f;
  std::mt19937 random(11);
  for (int round = 0; round < 2000; ++round) {
    std::string text(random() % 64, '\0');
    for (char& c : text)
      c = static_cast<char>(random() % 4 == 0 ? random() : "hel o\n"[random() % 6]);
    const TextPiece piece{text, false};
    const Encoding encoding = f.tokenizer->EncodePieces({&piece, 1}, {});
    EXPECT_EQ(f.tokenizer->Decode(encoding.ids), text);
    uint32_t at = 0;
    for (size_t i = 0; i < encoding.ids.size(); ++i) {
      EXPECT_EQ(encoding.spans[i].begin, at);
      at = encoding.spans[i].end;
      EXPECT_EQ(f.tokenizer->TokenBytes(encoding.ids[i]).size(), at - encoding.spans[i].begin);
    }
    EXPECT_EQ(at, text.size());
  }
}

TEST(BpeTest, LongWordsAreNotQuadratic) {
  const BpeFixture f;
  const std::string text(1 << 18, 'l');
  const double start = ThreadCpuSeconds();
  EXPECT_EQ(f.tokenizer->Encode(text).size(), text.size() / 2);
  // Takes well under a second, a few seconds with sanitizers; quadratic work would take minutes.
  EXPECT_LT(ThreadCpuSeconds() - start, 30.0);
}

TEST(BpeTest, KnowsItsSpecialTokens) {
  const BpeFixture f;
  EXPECT_EQ(f.tokenizer->vocab_size(), 263);
  EXPECT_EQ(f.tokenizer->bos_id(), 261);
  EXPECT_EQ(f.tokenizer->eot_id(), 261);
  EXPECT_TRUE(f.tokenizer->IsEndOfGeneration(261));
  EXPECT_FALSE(f.tokenizer->IsEndOfGeneration(kNoToken));
  EXPECT_TRUE(f.tokenizer->IsControl(f.end));
  EXPECT_FALSE(f.tokenizer->IsControl(f.think));
  EXPECT_FALSE(f.tokenizer->wants_bos());
  EXPECT_EQ(f.tokenizer->TokenBytes(260), " w");
  EXPECT_EQ(f.tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(f.tokenizer->TokenText(1 << 20), "");
  EXPECT_EQ(f.tokenizer->FindToken("<think>"), f.think);
  EXPECT_EQ(f.tokenizer->FindToken("nothing"), std::nullopt);
  EXPECT_EQ(f.tokenizer->Decode(Ids{'a', f.end, 99999, -5, 'b'}), "ab");
  EXPECT_EQ(f.tokenizer->Decode(Ids{'a', f.end}, true), "a<|im_end|>");
}

TEST(BpeTest, FingerprintTellsVocabulariesApart) {
  BpeFixture a;
  BpeFixture b;
  EXPECT_EQ(a.tokenizer->fingerprint(), b.tokenizer->fingerprint());
  b.vocab.Add("x1");
  EXPECT_NE(a.tokenizer->fingerprint(), b.vocab.Make("gpt2", "gpt-2").value()->fingerprint());
}

TEST(BpeTest, WholeWordsSkipMergesWhereTheRuleSaysSo) {
  for (const bool ignore : {false, true}) {
    TestVocab vocab;
    vocab.AddByteAlphabet();
    const int32_t whole = vocab.Add("abc");  // no merges produce it
    const auto tokenizer = vocab.Make("gpt2", ignore ? "llama-bpe" : "qwen2").value();
    EXPECT_EQ(tokenizer->Encode("abc"), ignore ? (Ids{whole}) : (Ids{'a', 'b', 'c'}));
    EXPECT_EQ(tokenizer->wants_bos(), ignore);
  }
}

// "e" and an accent are the one token of the letter, and its span covers both.
TEST(BpeTest, Qwen2BringsTextToNormalForm) {
  for (const bool qwen2 : {false, true}) {
    TestVocab vocab;
    vocab.AddByteAlphabet();
    vocab.AddMerge("\xC3\x83", "\xC2\xA9");  // the bytes of U+00E9
    const auto tokenizer = vocab.Make("gpt2", qwen2 ? "qwen2" : "deepseek-r1-qwen").value();
    const std::string text = "ae\xCC\x81o \xFF\xCC\x81";
    const TextPiece piece{text, false};
    const Encoding encoding = tokenizer->EncodePieces({&piece, 1}, {});
    if (qwen2) {
      EXPECT_EQ(encoding.ids, (Ids{'a', 256, 'o', ' ', 0xFF, 0xCC, 0x81}));
      EXPECT_EQ(encoding.spans,
                (std::vector<ByteSpan>{{0, 1}, {1, 4}, {4, 5}, {5, 6}, {6, 7}, {7, 8}, {8, 9}}));
      EXPECT_EQ(tokenizer->Decode(encoding.ids), "a\xC3\xA9o \xFF\xCC\x81");
    } else {
      EXPECT_EQ(encoding.ids.size(), text.size());
      EXPECT_EQ(tokenizer->Decode(encoding.ids), text);
    }
  }
}

// A letter that becomes two, marks that change places, jamo that become a syllable; and marks
// without end, which are normalised in parts.
TEST(BpeTest, NormalFormIsUnicodes) {
  TestVocab vocab;
  vocab.AddByteAlphabet();
  const auto tokenizer = vocab.Make("gpt2", "qwen2").value();
  const auto normal = [&](const std::string& text) {
    return tokenizer->Decode(tokenizer->Encode(text));
  };
  EXPECT_EQ(normal("\u0958"), "\u0915\u093C");
  EXPECT_EQ(normal("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(normal("\u1112\u1161\u11AB!"), "\uD55C!");
  EXPECT_EQ(normal("\u212B\u2126"), "\u00C5\u03A9");
  EXPECT_EQ(normal("\u00E9\u4E2D\U0001F600"), "\u00E9\u4E2D\U0001F600");
  std::string marks = "a";
  for (int i = 0; i < 1 << 15; ++i) marks += i % 2 == 0 ? "\u0301" : "\u0323";
  const double start = ThreadCpuSeconds();
  EXPECT_EQ(normal(marks).size(), marks.size());
  // Takes milliseconds; sorting all marks together would take minutes.
  EXPECT_LT(ThreadCpuSeconds() - start, 20.0);
}

TEST(BpeTest, BadVocabulariesAreRefused) {
  const auto message = [](TestVocab& vocab, const char* pre) {
    const absl::Status status = vocab.Make("gpt2", pre).status();
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  TestVocab unknown_pre;
  unknown_pre.AddByteAlphabet();
  EXPECT_THAT(message(unknown_pre, "klingon"), HasSubstr("\"klingon\""));
  TestVocab merge;
  merge.AddByteAlphabet();
  merge.AddRawMerge("q x");
  EXPECT_THAT(message(merge, "gpt-2"), HasSubstr("merges entry 0 (\"q x\")"));
  TestVocab single;
  single.AddByteAlphabet();
  single.AddRawMerge("q");
  EXPECT_THAT(message(single, "gpt-2"), HasSubstr("is not two tokens"));
  TestVocab id;
  id.AddByteAlphabet();
  id.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", 256);
  EXPECT_THAT(message(id, "gpt-2"), HasSubstr("eos_token_id\" is 256"));
  TestVocab empty;
  EXPECT_THAT(message(empty, "gpt-2"), HasSubstr("has 0 tokens"));
}

}  // namespace
}  // namespace withy::engine
