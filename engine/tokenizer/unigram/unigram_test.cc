// Unigram on vocabularies of a few tokens. tests/golden/tokenizer_test.cc has those of packages.
#include "engine/tokenizer/unigram/unigram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/tokenizer/testing.h"
#include "engine/tokenizer/unigram/charsmap.h"

namespace withy::engine {
namespace {

using Ids = std::vector<int32_t>;
using testing::HasSubstr;

struct UnigramFixture {
  explicit UnigramFixture(bool spaces = true, bool bytes = false) {
    vocab.Add("<pad>", TokenKind::kControl);
    vocab.Add("</s>", TokenKind::kControl);
    vocab.Add("<unk>", TokenKind::kUnknown);
    if (bytes) first_byte = vocab.AddByteFallback();
    mark = vocab.Add(kMark, TokenKind::kNormal, -3);
    a = vocab.Add("a", TokenKind::kNormal, -2);
    b = vocab.Add("b", TokenKind::kNormal, -2);
    ab = vocab.Add("ab", TokenKind::kNormal, -5);
    bab = vocab.Add("bab", TokenKind::kNormal, -3.5f);
    mark_a = vocab.Add(std::string(kMark) + "a", TokenKind::kNormal, -2.5f);
    user = vocab.Add("[U]", TokenKind::kUserDefined);
    vocab.writer().Set<bool>("tokenizer.ggml.add_space_prefix", spaces);
    vocab.writer().Set<bool>("tokenizer.ggml.remove_extra_whitespaces", spaces);
    vocab.writer().SetArray<uint8_t>(
        "tokenizer.ggml.precompiled_charsmap",
        MakeCharsmap({{"A", "a"}, {"AA", "b"}, {"\n", " "}, {"\t", ""}, {"X", "abab"}}));
    auto made = vocab.Make("t5");
    EXPECT_TRUE(made.ok()) << made.status();
    tokenizer = std::move(*made);
  }

  Encoding Pieces(const std::string& text) const {
    const TextPiece piece{text, false};
    return tokenizer->EncodePieces({&piece, 1}, {});
  }

  TestVocab vocab;
  int32_t first_byte = 0;
  int32_t mark = 0, a = 0, b = 0, ab = 0, bab = 0, mark_a = 0, user = 0;
  std::unique_ptr<Tokenizer> tokenizer;
};

TEST(UnigramTest, TakesTheLargestSumOfScores) {
  const UnigramFixture f(false);
  EXPECT_EQ(f.tokenizer->Encode("ab"), (Ids{f.a, f.b})) << "-4 is more than -5";
  EXPECT_EQ(f.tokenizer->Encode("abab"), (Ids{f.a, f.bab}));
  // Of equal sums the one whose last token is longest.
  EXPECT_EQ(f.tokenizer->Encode("babab"), (Ids{f.b, f.a, f.bab}));
  EXPECT_EQ(f.tokenizer->Encode(""), Ids{});
  EXPECT_EQ(f.tokenizer->bos_id(), kNoToken);
  EXPECT_EQ(f.tokenizer->eos_id(), 1);
}

TEST(UnigramTest, RulesChangeTextAndTheLongestOneCounts) {
  const UnigramFixture f(false);
  EXPECT_EQ(f.tokenizer->Encode("AAA"), (Ids{f.b, f.a}));
  EXPECT_EQ(f.tokenizer->Encode("A\t\nA"), (Ids{f.a, f.mark_a}));
  EXPECT_EQ(f.tokenizer->Decode(f.tokenizer->Encode("AAA\nA")), "ba a");
  const Encoding encoding = f.Pieces("AAX\tb");
  EXPECT_EQ(encoding.ids, (Ids{f.b, f.a, f.bab, f.b}));
  // What several tokens came from belongs to the first of them, what was removed to the one before.
  EXPECT_EQ(encoding.spans, (std::vector<ByteSpan>{{0, 2}, {2, 3}, {3, 4}, {4, 5}}));
}

TEST(UnigramTest, WhiteSpaceThatMeansNothingIsRemoved) {
  const UnigramFixture f;
  EXPECT_EQ(f.tokenizer->Encode("a"), (Ids{f.mark_a}));
  EXPECT_EQ(f.tokenizer->Encode(" \n a \n\n b  "), (Ids{f.mark_a, f.mark, f.b}));
  EXPECT_EQ(f.Pieces("  a  b  ").spans, (std::vector<ByteSpan>{{0, 3}, {3, 5}, {5, 8}}));
  EXPECT_EQ(f.tokenizer->Encode("  \n "), Ids{});
  EXPECT_EQ(f.tokenizer->Decode(f.tokenizer->Encode("a  b")), "a b");
  EXPECT_EQ(f.tokenizer->Encode("a[U]a"), (Ids{f.mark_a, f.user, f.mark_a}));
  // Text that continues another keeps the space in front of it, and gets none.
  EXPECT_EQ(f.tokenizer->Encode("  a", {.continues = true}), (Ids{f.mark_a}));
  EXPECT_EQ(f.tokenizer->Encode("a", {.continues = true}), (Ids{f.a}));
  const UnigramFixture plain(false);
  EXPECT_EQ(plain.tokenizer->Encode(" a  b "),
            (Ids{plain.mark_a, plain.mark, plain.mark, plain.b, plain.mark}));
}

TEST(UnigramTest, ARunWithoutTokensIsOneUnknownTokenOrItsBytes) {
  const UnigramFixture f(false);
  EXPECT_EQ(f.tokenizer->Encode("a\xC3\xA9\xE4\xB8\xAD"
                                "b"),
            (Ids{f.a, 2, f.b}));
  const UnigramFixture bytes(false, true);
  EXPECT_EQ(bytes.tokenizer->Encode("a\xC3\xA9"),
            (Ids{bytes.a, bytes.first_byte + 0xC3, bytes.first_byte + 0xA9}));
  // A byte that is no character is the character for such bytes.
  EXPECT_EQ(bytes.tokenizer->Decode(bytes.tokenizer->Encode("a\xFF")), "a\xEF\xBF\xBD");
}

TEST(UnigramTest, TextCannotForgeControlTokens) {
  const UnigramFixture f(false);
  for (const int32_t id : f.tokenizer->Encode("a</s><pad>")) {
    EXPECT_TRUE(id == 2 || !f.tokenizer->IsControl(id));
  }
  EXPECT_EQ(f.tokenizer->Encode("a</s>", {.parse_special = true}), (Ids{f.a, 1}));
}

TEST(UnigramTest, WithoutRulesTextStaysAsItIs) {
  TestVocab vocab;
  vocab.Add("<pad>", TokenKind::kControl);
  vocab.Add("</s>", TokenKind::kControl);
  vocab.Add("<unk>", TokenKind::kUnknown);
  const int32_t a = vocab.Add("a", TokenKind::kNormal, -1);
  const auto tokenizer = vocab.Make("t5").value();
  EXPECT_EQ(tokenizer->Encode("aA"), (Ids{a, 2}));
  EXPECT_FALSE(tokenizer->adds_space_prefix());
}

TEST(CharsmapTest, FindsTheLongestRule) {
  const auto map = Charsmap::Parse(MakeCharsmap({{"ab", "x"}, {"abcd", "yz"}, {"q", ""}})).value();
  EXPECT_EQ(map.Find("a").bytes, 0u);
  EXPECT_EQ(map.Find("abc").bytes, 2u);
  EXPECT_EQ(map.Find("abcde").bytes, 4u);
  EXPECT_EQ(map.Find("abcde").replacement, "yz");
  EXPECT_EQ(map.Find("qq").bytes, 1u);
  EXPECT_EQ(map.Find("qq").replacement, "");
  EXPECT_EQ(map.Find("").bytes, 0u);
  EXPECT_EQ(Charsmap().Find("ab").bytes, 0u);
}

TEST(CharsmapTest, DamagedRulesAreRefused) {
  const auto message = [](std::vector<uint8_t> bytes) {
    return std::string(Charsmap::Parse(std::move(bytes)).status().message());
  };
  const std::vector<uint8_t> good = MakeCharsmap({{"a", "b"}});
  EXPECT_THAT(message({1, 2}), HasSubstr("it has 2 bytes"));
  EXPECT_THAT(message({good.begin(), good.end() - 1}),
              HasSubstr("its last replacement has no end"));
  EXPECT_THAT(message({good.begin(), good.begin() + 100}),
              HasSubstr("double array has 2048 bytes"));
  std::vector<uint8_t> value = good;  // of the rule: replacement 77
  value[4 * (1 + 256)] = 77;
  EXPECT_THAT(message(value), HasSubstr("names replacement 77 of 2 bytes"));
  std::vector<uint8_t> offset = good;  // of "a": far outside
  offset[4 * (1 + 'a') + 3] = 0x40;
  EXPECT_THAT(message(offset), HasSubstr("the children of unit 97"));
}

}  // namespace
}  // namespace withy::engine
