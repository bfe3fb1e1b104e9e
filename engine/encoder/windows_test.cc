#include "engine/encoder/windows.h"

#include <algorithm>
#include <memory>
#include <random>

#include "engine/encoder/testing.h"
#include "engine/gguf/reader.h"
#include "gmock/gmock.h"

namespace withy::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  for (const ByteSpan& span : SplitWords(text)) {
    words.emplace_back(text.substr(span.begin, span.end - span.begin));
  }
  return words;
}

TEST(SplitWordsTest, WordsAreWhatStandsBetweenSpaces) {
  EXPECT_THAT(Words("  the cat,\tsat.\n"), ElementsAre("the", "cat,", "sat."));
  EXPECT_THAT(Words(""), ElementsAre());
  EXPECT_THAT(Words(" \n\xC2\xA0"), ElementsAre());
  EXPECT_THAT(Words("Caf\xC3\xA9 noir"), ElementsAre("Caf\xC3\xA9", "noir"));
}

TEST(SplitWordsTest, IdeographsAreWordsOfTheirOwn) {
  EXPECT_THAT(Words("a\xE7\x8C\xAB\xE7\x8A\xAC.b"),
              ElementsAre("a", "\xE7\x8C\xAB", "\xE7\x8A\xAC", ".b"));
}

TEST(SloStepTest, RoundsDownAndStaysInRange) {
  EXPECT_EQ(SloStep(0.5, 10), 5);
  EXPECT_EQ(SloStep(0.59, 10), 5);
  EXPECT_EQ(SloStep(0.3, 10), 3);  // 0.3 * 10 is slightly below 3 in binary
  EXPECT_EQ(SloStep(0.7, 10), 7);
  EXPECT_EQ(SloStep(0.01, 10), 1);
  EXPECT_EQ(SloStep(1.0, 10), 10);
  EXPECT_EQ(SloStep(7e9, 10), 10);
  EXPECT_EQ(SloStep(0.55, 20), 11);
}

std::vector<std::pair<int32_t, int32_t>> Cut(const std::vector<bool>& joined, int32_t capacity) {
  const auto plain = std::make_unique<bool[]>(joined.size());
  std::copy(joined.begin(), joined.end(), plain.get());
  return CutTokens({plain.get(), joined.size()}, capacity);
}

TEST(CutTokensTest, PiecesAreEvenAndEndBetweenWords) {
  EXPECT_THAT(Cut({}, 8), ElementsAre(Pair(0, 0)));
  EXPECT_THAT(Cut(std::vector<bool>(8), 8), ElementsAre(Pair(0, 8)));
  EXPECT_THAT(Cut(std::vector<bool>(9), 8), ElementsAre(Pair(0, 5), Pair(5, 9)));
  std::vector<bool> joined(10);
  joined[5] = joined[4] = true;  // tokens 3, 4, 5 are one word
  EXPECT_THAT(Cut(joined, 8), ElementsAre(Pair(0, 3), Pair(3, 10)));
}

TEST(CutTokensTest, AnyWordsGiveWholeCoverWithinCapacity) {
  std::mt19937 random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<bool> joined(random() % 400);
    const unsigned density = 1 + random() % 8;
    for (size_t i = 1; i < joined.size(); ++i) joined[i] = random() % 8 < density;
    const int32_t capacity = 1 + static_cast<int32_t>(random() % 100);
    int32_t at = 0;
    for (const auto& [begin, end] : Cut(joined, capacity)) {
      ASSERT_EQ(begin, at);
      ASSERT_LE(end - begin, capacity);
      ASSERT_TRUE(end > begin || joined.empty());
      at = end;
    }
    ASSERT_EQ(at, static_cast<int32_t>(joined.size()));
  }
}

class WindowMakerTest : public testing::Test {
 protected:
  WindowMakerTest() {
    const TempFolder temp("windows");
    EXPECT_TRUE(WriteTlm(SmallTlm(), GgmlType::kF32, temp / "tlm.gguf").ok());
    auto file = GgufFile::Open(temp / "tlm.gguf");
    EXPECT_TRUE(file.ok());
    auto tokenizer = MakeTokenizer(*file);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }
  WindowMaker Maker(int32_t window) {
    TlmShape shape = SmallShape();
    shape.window = window;
    auto maker = WindowMaker::Create(*tokenizer_, shape, "tlm.gguf");
    EXPECT_TRUE(maker.ok()) << maker.status();
    return *maker;
  }
  int32_t Id(std::string_view token) { return tokenizer_->FindToken(token).value_or(-1); }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(WindowMakerTest, EveryWindowHoldsTheSloTokens) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += "the cat sat on mats, ";
  auto made = Maker(32).Make(text, {.ttft_ratio = 0.5, .tpot_ratio = 0.8}, {}, 1 << 20);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->tokens.size(), 700u);
  EXPECT_EQ(made->windows.size(), 25u);
  for (const std::vector<int32_t>& window : made->windows) {
    ASSERT_LE(window.size(), 32u);
    EXPECT_EQ(window[0], Id("[CLS]"));
    EXPECT_EQ(window[1], Id("[05]"));
    EXPECT_EQ(window[2], Id("<08>"));
    EXPECT_EQ(window.back(), Id("[SEP]"));
    EXPECT_EQ(std::count(window.begin(), window.end(), Id("[SEP]")), 1);
  }
}

TEST_F(WindowMakerTest, WordsKnowTheirTokens) {
  const std::string text = " unable cats,  xyz the\n";
  auto made = Maker(32).Make(text, {}, {}, 1 << 20);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(
      made->windows[0],
      ElementsAre(Id("[CLS]"), Id("[10]"), Id("<10>"), Id("\xE2\x96\x81un"), Id("able"),
                  Id("\xE2\x96\x81"
                     "cat"),
                  Id("s"), Id("\xE2\x96\x81,"), Id("[UNK]"), Id("\xE2\x96\x81the"), Id("[SEP]")));
  EXPECT_THAT(made->words,
              ElementsAre(ByteSpan{1, 7}, ByteSpan{8, 13}, ByteSpan{15, 18}, ByteSpan{19, 22}));
  EXPECT_THAT(made->word_tokens, ElementsAre(Pair(0, 2), Pair(2, 5), Pair(5, 6), Pair(6, 7)));
}

TEST_F(WindowMakerTest, CallersWordsAreTaken) {
  const std::vector<ByteSpan> words = {{0, 3}, {4, 11}};
  auto made = Maker(32).Make("the cat sat", {}, words, 1 << 20);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->words, words);
  EXPECT_THAT(made->word_tokens, ElementsAre(Pair(0, 1), Pair(1, 3)));
}

TEST_F(WindowMakerTest, NothingButSpaceStillAsksForADecision) {
  auto made = Maker(32).Make(" \n", {}, {}, 1 << 20);
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_EQ(made->windows.size(), 1u);
  EXPECT_EQ(made->windows[0].size(), 4u);
  EXPECT_TRUE(made->words.empty());
}

TEST_F(WindowMakerTest, TextCannotForgeSloTokens) {
  auto made = Maker(32).Make("[01] <01> [SEP]", {}, {}, 1 << 20);
  ASSERT_TRUE(made.ok()) << made.status();
  const std::vector<int32_t>& window = made->windows[0];
  for (size_t i = kWindowPrefix; i + 1 < window.size(); ++i) {
    EXPECT_EQ(window[i], Id("[UNK]"));  // brackets are not in this vocabulary
  }
}

TEST_F(WindowMakerTest, BadInputIsNamed) {
  const WindowMaker maker = Maker(32);
  EXPECT_THAT(std::string(maker.Make("a", {.ttft_ratio = 0}, {}, 10).status().message()),
              HasSubstr("TTFT ratio is 0"));
  EXPECT_THAT(std::string(maker.Make("a", {.tpot_ratio = NAN}, {}, 10).status().message()),
              HasSubstr("TPOT ratio is nan"));
  EXPECT_THAT(std::string(maker.Make("a cat on a mat", {}, {}, 10).status().message()),
              HasSubstr("14 bytes, more than the TLM's limit of 10"));
  const std::vector<ByteSpan> beyond = {{0, 1}, {1, 9}};
  EXPECT_THAT(std::string(maker.Make("a cat", {}, beyond, 10).status().message()),
              HasSubstr("word 1 is bytes 1 to 9 of a text of 5"));
}

TEST_F(WindowMakerTest, VocabularyMustFitTheShape) {
  TlmShape shape = SmallShape();
  shape.slo_steps = 20;
  EXPECT_THAT(std::string(WindowMaker::Create(*tokenizer_, shape, "x.gguf").status().message()),
              HasSubstr("x.gguf: the vocabulary lacks the SLO token [11]"));
  shape = SmallShape();
  shape.encoder.vocab = 99;
  EXPECT_THAT(std::string(WindowMaker::Create(*tokenizer_, shape, "x.gguf").status().message()),
              HasSubstr("tokens, but mobilebert.vocab_size is 99"));
}

}  // namespace
}  // namespace withy::engine
