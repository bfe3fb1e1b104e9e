#include "engine/tokenizer/split.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"

namespace withy::engine {
namespace {

using Words = std::vector<std::string>;

Words Split(PreTokenizer rule, std::string_view text) {
  std::vector<uint32_t> ends;
  SplitWords(rule, text, ends);
  Words words;
  uint32_t begin = 0;
  for (const uint32_t end : ends) {
    EXPECT_GT(end, begin);
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_EQ(begin, text.size());
  return words;
}

TEST(SplitTest, Gpt2) {
  const auto split = [](std::string_view text) { return Split(PreTokenizer::kGpt2, text); };
  EXPECT_EQ(split(""), Words{});
  EXPECT_EQ(split("Hello world"), (Words{"Hello", " world"}));
  EXPECT_EQ(split("we'll 'RE it's"), (Words{"we", "'ll", " '", "RE", " it", "'s"}));
  EXPECT_EQ(split("a  b"), (Words{"a", " ", " b"}));
  EXPECT_EQ(split("a \n\n"), (Words{"a", " \n\n"}));
  EXPECT_EQ(split("a\n\nb"), (Words{"a", "\n", "\n", "b"}));
  EXPECT_EQ(split("x12345 67!?"), (Words{"x", "12345", " 67", "!?"}));
  EXPECT_EQ(split("größe ①"), (Words{"größe", " ①"}));
  EXPECT_EQ(split("'"), (Words{"'"}));
}

TEST(SplitTest, Llama3) {
  const auto split = [](std::string_view text) { return Split(PreTokenizer::kLlama3, text); };
  EXPECT_EQ(split("Hello world"), (Words{"Hello", " world"}));
  EXPECT_EQ(split("We'LL (see)"), (Words{"We", "'LL", " (", "see", ")"}));
  EXPECT_EQ(split("(see"), (Words{"(see"}));
  EXPECT_EQ(split("1234567"), (Words{"123", "456", "7"}));
  EXPECT_EQ(split(" 12"), (Words{" ", "12"}));
  EXPECT_EQ(split("a \n \n b"), (Words{"a", " \n \n", " b"}));
  EXPECT_EQ(split("a   b"), (Words{"a", "  ", " b"}));
  EXPECT_EQ(split("!!\r\n\nx"), (Words{"!!\r\n\n", "x"}));
  EXPECT_EQ(split("\tfoo"), (Words{"\tfoo"}));
}

TEST(SplitTest, NumberRules) {
  EXPECT_EQ(Split(PreTokenizer::kQwen2, "a12 3"), (Words{"a", "1", "2", " ", "3"}));
  EXPECT_EQ(Split(PreTokenizer::kSingleDigits, "a12 3 b"), (Words{"a", "1", "2", " ", "3", " b"}));
  EXPECT_EQ(Split(PreTokenizer::kDefault, "a 12345"), (Words{"a", " ", "123", "45"}));
  EXPECT_EQ(Split(PreTokenizer::kFalcon, "a 12345"), (Words{"a", " ", "123", "45"}));
  EXPECT_EQ(Split(PreTokenizer::kDefault, "a.b $5"), (Words{"a", ".", "b", " ", "$", "5"}));
}

TEST(SplitTest, CasedWords) {
  const auto split = [](std::string_view text) { return Split(PreTokenizer::kTekken, text); };
  EXPECT_EQ(split("HelloWorld"), (Words{"Hello", "World"}));
  EXPECT_EQ(split("HTTPServer"), (Words{"HTTPServer"}));
  EXPECT_EQ(split("useHTTP now"), (Words{"use", "HTTP", " now"}));
  EXPECT_EQ(split("a/b// 12"), (Words{"a", "/b", "//", " ", "1", "2"}));
  EXPECT_EQ(Split(PreTokenizer::kGpt4o, "I'm 1234"), (Words{"I'm", " ", "123", "4"}));
}

TEST(SplitTest, DeepSeek) {
  EXPECT_EQ(Split(PreTokenizer::kDeepSeek3, "ab中文12345 .foo.bar !!\nx"),
            (Words{"ab", "中文", "123", "45", " .", "foo", ".bar", " !!\n", "x"}));
  EXPECT_EQ(Split(PreTokenizer::kDeepSeekCoder, "int x1;\n"), (Words{"int", " x", "1", ";", "\n"}));
}

// tests/golden/make_pre_tokenizer_vectors.py, which applies the published regular expressions.
TEST(SplitTest, WordsAreThoseOfThePublishedExpressions) {
  std::ifstream in("tests/golden/data/pre_tokenizers/vectors.txt");
  std::vector<std::string> texts;
  std::string rule;
  size_t next = 0;
  int rules = 0;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("text ")) {
      texts.push_back(absl::HexStringToBytes(line.substr(5)));
    } else if (line.starts_with("rule ")) {
      rule = line.substr(5);
      next = 0;
      ++rules;
    } else {
      ASSERT_LT(next, texts.size());
      const std::string& text = texts[next++];
      std::istringstream numbers(line);
      std::vector<uint32_t> expected;
      for (uint32_t end = 0; numbers >> end;) expected.push_back(end);
      const auto info = FindPreTokenizer(rule);
      ASSERT_TRUE(info.ok()) << info.status();
      std::vector<uint32_t> ends;
      SplitWords(info->rule, text, ends);
      EXPECT_EQ(ends, expected) << rule << ": " << testing::PrintToString(text);
    }
  }
  EXPECT_GE(rules, 17) << "run from the repository root";
}

TEST(SplitTest, AnyBytesAreCovered) {
  std::mt19937 random(5);
  const std::string alphabet = " \n\r\t'saLl1٣Zé中\xF0\x9F\x98\x81!$\x80\xFF\xC3";
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    const size_t length = random() % 24;
    while (text.size() < length) text += alphabet[random() % alphabet.size()];
    for (int rule = 0; rule <= static_cast<int>(PreTokenizer::kGpt4o); ++rule) {
      (void)Split(static_cast<PreTokenizer>(rule), text);
    }
  }
}

TEST(SplitTest, UnknownNamesAreNamed) {
  EXPECT_TRUE(FindPreTokenizer("llama-bpe")->ignore_merges);
  EXPECT_TRUE(FindPreTokenizer("minicpm5")->ignore_merges);
  EXPECT_EQ(FindPreTokenizer("smollm")->rule, PreTokenizer::kSingleDigits);
  const absl::Status status = FindPreTokenizer("klingon").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(status.message().find("\"klingon\""), absl::string_view::npos) << status;
}

}  // namespace
}  // namespace withy::engine
