#include "engine/tokenizer/spm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer/testing.h"

namespace withy::engine {
namespace {

using Ids = std::vector<int32_t>;
using testing::HasSubstr;

struct SpmFixture {
  explicit SpmFixture(bool space_prefix = true) {
    vocab.Add("<unk>", TokenKind::kUnknown);
    vocab.Add("<s>", TokenKind::kControl);
    vocab.Add("</s>", TokenKind::kControl);
    bytes = vocab.AddByteFallback();  // from 3
    for (const char* c : {"h", "e", "l", "o", "<", "s", ">"})
      vocab.Add(c, TokenKind::kNormal, -100);
    mark = vocab.Add(kMark, TokenKind::kNormal, -100);
    ll = vocab.Add("ll", TokenKind::kNormal, -3);
    he = vocab.Add("he", TokenKind::kNormal, -1);
    hell = vocab.Add("hell", TokenKind::kNormal, -2);
    mark_hell = vocab.Add(std::string(kMark) + "hell", TokenKind::kNormal, -4);
    vocab.Add("s>", TokenKind::kNormal, -5);
    user = vocab.Add("[U]", TokenKind::kUserDefined);
    vocab.writer().Set<bool>("tokenizer.ggml.add_space_prefix", space_prefix);
    auto made = vocab.Make("llama");
    EXPECT_TRUE(made.ok()) << made.status();
    tokenizer = std::move(*made);
  }
  int32_t Id(const std::string& text) const { return tokenizer->FindToken(text).value(); }

  TestVocab vocab;
  int32_t bytes = 0;
  int32_t mark = 0, ll = 0, he = 0, hell = 0, mark_hell = 0, user = 0;
  std::unique_ptr<Tokenizer> tokenizer;
};

TEST(SpmTest, MergesByScoreAndAddsTheFirstSpace) {
  const SpmFixture f;
  EXPECT_EQ(f.tokenizer->Encode("hell"), (Ids{f.mark_hell}));
  EXPECT_EQ(f.tokenizer->Encode("hello"), (Ids{f.mark_hell, f.Id("o")}));
  EXPECT_EQ(f.tokenizer->Encode(""), Ids{});
  EXPECT_EQ(f.tokenizer->Encode("hell", {.add_bos = true}), (Ids{1, f.mark_hell}));
  EXPECT_TRUE(f.tokenizer->wants_bos());
  const SpmFixture plain(false);
  EXPECT_EQ(plain.tokenizer->Encode("hell"), (Ids{plain.hell}));
  EXPECT_EQ(plain.tokenizer->Encode("hell hell"), (Ids{plain.hell, plain.mark_hell}));
}

TEST(SpmTest, UnknownCharactersFallBackToBytes) {
  const SpmFixture f(false);
  EXPECT_EQ(f.tokenizer->Encode("h\xC3\xA9"), (Ids{f.Id("h"), f.bytes + 0xC3, f.bytes + 0xA9}));
  EXPECT_EQ(f.tokenizer->TokenBytes(f.bytes + 10), "\n");
  EXPECT_EQ(f.tokenizer->TokenBytes(f.mark_hell), " hell");
}

TEST(SpmTest, SpansAreInInputBytes) {
  const SpmFixture f;
  const TextPiece piece{"hell \xC3\xA9o", false};
  const Encoding encoding = f.tokenizer->EncodePieces({&piece, 1}, {});
  EXPECT_EQ(encoding.ids, (Ids{f.mark_hell, f.mark, f.bytes + 0xC3, f.bytes + 0xA9, f.Id("o")}));
  EXPECT_EQ(encoding.spans, (std::vector<ByteSpan>{{0, 4}, {4, 5}, {5, 6}, {6, 7}, {7, 8}}));
}

TEST(SpmTest, TextCannotForgeControlOrByteTokens) {
  const SpmFixture f;
  for (const int32_t id : f.tokenizer->Encode("<s><0x0A><unk>")) {
    EXPECT_FALSE(f.tokenizer->IsControl(id));
    EXPECT_NE(id, f.bytes + 10);
  }
  EXPECT_EQ(f.tokenizer->Encode("<s>hell", {.parse_special = true}), (Ids{1, f.mark_hell}));
  EXPECT_EQ(f.tokenizer->Encode("hell[U]hell"), (Ids{f.mark_hell, f.user, f.mark_hell}));
  EXPECT_EQ(f.tokenizer->Decode(f.tokenizer->Encode("hell[U]hell")), "hell[U]hell");
}

TEST(SpmTest, TextThatContinuesGetsNoSpaceInFront) {
  const SpmFixture f;
  const Ids whole = f.tokenizer->Encode("hell hell");
  Ids parts = f.tokenizer->Encode("hell");
  const Ids rest = f.tokenizer->Encode(" hell", {.continues = true});
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole);
}

TEST(SpmTest, ArbitraryBytesRoundTrip) {
  std::mt19937 random(13);
  for (const bool prefix : {true, false}) {
    const SpmFixture f(prefix);
    const std::string alphabet = std::string("hello  \xE2\x96\x81\n<s>[U]") + kMark;
    for (int round = 0; round < 2000; ++round) {
      std::string text(random() % 48, '\0');
      for (char& c : text) {
        c = random() % 4 == 0 ? static_cast<char>(random()) : alphabet[random() % alphabet.size()];
      }
      const TextPiece piece{text, false};
      const Encoding encoding = f.tokenizer->EncodePieces({&piece, 1}, {});
      EXPECT_EQ(f.tokenizer->Decode(encoding.ids), text) << testing::PrintToString(text);
      uint32_t at = 0;
      for (const ByteSpan& span : encoding.spans) {
        EXPECT_EQ(span.begin, at);
        at = span.end;
      }
      EXPECT_EQ(at, text.size());
    }
  }
}

TEST(SpmTest, WithoutByteTokensThereIsTheUnknownToken) {
  TestVocab vocab;
  vocab.Add("<unk>", TokenKind::kUnknown);
  vocab.Add("<s>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  vocab.Add("a");
  vocab.writer().Set<bool>("tokenizer.ggml.add_space_prefix", false);
  const auto tokenizer = vocab.Make("llama").value();
  EXPECT_EQ(tokenizer->Encode("a\xC3\xA9"
                              "a"),
            (Ids{3, 0, 3}));
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_TRUE(tokenizer->IsEndOfGeneration(2));
}

TEST(SpmTest, TurnMarkersOfPhi3TakeTheSpaceAfterThem) {
  TestVocab vocab;
  vocab.Add("<unk>", TokenKind::kUnknown);
  vocab.Add("<s>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  const int32_t first = vocab.AddByteFallback();
  const int32_t user = vocab.Add("<|user|>", TokenKind::kControl);
  vocab.writer().SetString("general.name", "Phi-3-mini");
  vocab.writer().Set<bool>("tokenizer.ggml.add_space_prefix", false);
  const auto tokenizer = vocab.Make("llama").value();
  const TextPiece pieces[] = {{"<|user|>\n", true}, {" a", false}};
  const Encoding encoding = tokenizer->EncodePieces(pieces, {});
  EXPECT_EQ(encoding.ids, (Ids{user, first + 'a'}));
  EXPECT_EQ(encoding.spans, (std::vector<ByteSpan>{{0, 10}, {10, 11}}));
}

TEST(SpmTest, LongTextsAreNotQuadratic) {
  const SpmFixture f;
  const std::string text(1 << 18, 'l');
  const double start = ThreadCpuSeconds();
  EXPECT_EQ(f.tokenizer->Encode(text).size(), text.size() / 2 + 1);
  // Takes well under a second, a few with sanitizers; quadratic work would take minutes.
  EXPECT_LT(ThreadCpuSeconds() - start, 30.0);
}

TEST(SpmTest, BadVocabulariesAreRefused) {
  TestVocab vocab;
  vocab.Add("a", TokenKind::kNormal, std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(std::string(vocab.Make("llama").status().message()), HasSubstr("is not a number"));
  TestVocab unknown;
  unknown.Add("a");
  const absl::Status status = unknown.Make("rwkv").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"rwkv\""));
}

}  // namespace
}  // namespace withy::engine
