#include "engine/tokenizer/wordpiece.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "engine/tokenizer/testing.h"

namespace withy::engine {
namespace {

using Ids = std::vector<int32_t>;

struct WordPieceFixture {
  WordPieceFixture() {
    unknown = vocab.Add("[UNK]", TokenKind::kUnknown);
    cls = vocab.Add("[CLS]", TokenKind::kControl);
    hello = vocab.Add("\xE2\x96\x81hello");
    un = vocab.Add("\xE2\x96\x81un");
    aff = vocab.Add("aff");
    able = vocab.Add("able");
    cafe = vocab.Add(
        "\xE2\x96\x81"
        "cafe");
    comma = vocab.Add("\xE2\x96\x81,");
    vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", 0);
    vocab.writer().Set<uint32_t>("tokenizer.ggml.bos_token_id", 1);
    auto made = vocab.Make("bert");
    EXPECT_TRUE(made.ok()) << made.status();
    tokenizer = std::move(*made);
  }
  TestVocab vocab;
  int32_t unknown = 0, cls = 0, hello = 0, un = 0, aff = 0, able = 0, cafe = 0, comma = 0;
  std::unique_ptr<Tokenizer> tokenizer;
};

TEST(WordPieceTest, LongestPiecesFirst) {
  const WordPieceFixture f;
  EXPECT_EQ(f.tokenizer->Encode("unaffable"), (Ids{f.un, f.aff, f.able}));
  EXPECT_EQ(f.tokenizer->Encode("Hello,  HELLO"), (Ids{f.hello, f.comma, f.hello}));
  EXPECT_EQ(f.tokenizer->Encode("unaffably"), (Ids{f.unknown}));
  EXPECT_EQ(f.tokenizer->Encode(" \n"), Ids{});
  EXPECT_EQ(f.tokenizer->Encode(std::string(200, 'a')), (Ids{f.unknown}));
}

TEST(WordPieceTest, AccentsAndCaseFold) {
  const WordPieceFixture f;
  EXPECT_EQ(f.tokenizer->Encode("Caf\xC3\xA9"), (Ids{f.cafe}));
  EXPECT_EQ(f.tokenizer->Encode("CAFE\xCC\x81"), (Ids{f.cafe}));
}

TEST(WordPieceTest, SpansCoverTheInput) {
  const WordPieceFixture f;
  const TextPiece piece{"Caf\xC3\xA9 unable,\n", false};
  const Encoding encoding = f.tokenizer->EncodePieces({&piece, 1}, {.add_bos = true});
  EXPECT_EQ(encoding.ids, (Ids{f.cls, f.cafe, f.un, f.able, f.comma}));
  EXPECT_EQ(encoding.spans, (std::vector<ByteSpan>{{0, 0}, {0, 6}, {6, 8}, {8, 12}, {12, 14}}));
}

TEST(WordPieceTest, AnyBytesAreAccepted) {
  const WordPieceFixture f;
  std::mt19937 random(2);
  for (int round = 0; round < 1000; ++round) {
    std::string text(random() % 32, '\0');
    for (char& c : text) c = static_cast<char>(random());
    const TextPiece piece{text, false};
    const Encoding encoding = f.tokenizer->EncodePieces({&piece, 1}, {});
    for (size_t i = 1; i < encoding.spans.size(); ++i) {
      EXPECT_EQ(encoding.spans[i].begin, encoding.spans[i - 1].end);
    }
    if (!encoding.spans.empty()) {
      EXPECT_EQ(encoding.spans.back().end, text.size());
    }
  }
}

}  // namespace
}  // namespace withy::engine
