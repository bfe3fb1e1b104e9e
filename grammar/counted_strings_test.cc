// Strings of bounded length become rules that strings share, and the tokens that these accept are
// known.
#include "grammar/counted_strings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "grammar/grammar_text.h"

namespace withy::grammar {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int32_t kLongestToken = 100;

std::string Counted(const std::string& schema, int32_t longest_token = kLongestToken) {
  return WithCountedStrings(longest_token, *GrammarOfSchema(schema));
}

size_t Count(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

TEST(CountedStringsTest, StringsShareTheirRules) {
  const std::string grammar = Counted(R"({"type": "object", "properties": {
      "a": {"type": "string", "maxLength": 5}, "b": {"type": "string", "maxLength": 5},
      "c": {"type": "string", "minLength": 1, "maxLength": 4}}})");
  EXPECT_EQ(Count(grammar, R"("\"" counted_string_0_5)"), 2) << grammar;
  EXPECT_EQ(Count(grammar, "counted_string_0_5 ::= "), 1) << grammar;
  EXPECT_EQ(Count(grammar, "counted_string_0_3 ::= "), 1) << grammar;
  EXPECT_EQ(Count(grammar, "counted_string_1_4 ::= "), 1) << grammar;
  EXPECT_THAT(grammar, Not(HasSubstr("_characters{")));
}

TEST(CountedStringsTest, LongStringsHaveBlocksIfNoTokenIsLonger) {
  const std::string schema = R"({"type": "string", "maxLength": 1000})";
  EXPECT_THAT(Counted(schema), HasSubstr("counted_block_128"));
  EXPECT_LT(Count(Counted(schema), " ::= "), 850);
  EXPECT_THAT(Counted(schema, kUnrolledCharacters), Not(HasSubstr("counted_string")));
  EXPECT_THAT(Counted(R"({"type": "string", "maxLength": 256})", kUnrolledCharacters),
              HasSubstr("counted_string_0_256"));
}

TEST(CountedStringsTest, WhatDoesNotFitStaysRepeated) {
  const std::string grammar = Counted(R"({"type": "object", "properties": {
      "a": {"type": "string", "minLength": 500}, "b": {"type": "string", "minLength": 400,
      "maxLength": 450}}})");
  EXPECT_EQ(Count(grammar, "_characters{"), 1);
  EXPECT_LE(Count(grammar, "counted_"), 4 * kMostCountedRules);
}

TEST(CountedStringsTest, TextThatLooksLikeARepetitionStays) {
  const std::string schema =
      nlohmann::json({{"const", R"("\"" root_characters{0, 3} "\"" [^\"\\\r\n])"}}).dump();
  EXPECT_THAT(Counted(schema), Not(HasSubstr("counted_")));
}

TEST(CountedStringsTest, CharactersAreThoseOfUtf8WithoutSurrogates) {
  EXPECT_EQ(StringCharacters("a bc"), 4);
  EXPECT_EQ(StringCharacters("größe 中😀"), 8);
  EXPECT_EQ(StringCharacters("\x7f"), 1);
  for (const std::string_view token :
       {"", "a\"", "\\", "\n", "\x80", "\xc3", "a\xe4\xb8", "\xc0\xaf", "\xe0\x80\xaf",
        "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_EQ(StringCharacters(token), 0) << token;
  }
}

TEST(CountedStringsTest, TokensOfARuleAreThoseThatAreShortEnough) {
  const std::vector<std::pair<int32_t, std::string>> vocabulary = {
      {9, "\""}, {3, "\\"}, {4, "a"}, {1, "ab"}, {2, "n"}, {5, "nab"}, {0, "\xe4"}, {7, "ä中😀"}};
  const StringTokens tokens;
  EXPECT_THAT(tokens.Accepted("counted_string_0_2", vocabulary), ElementsAre(2, 3, 4));
  EXPECT_THAT(tokens.Accepted("counted_string_1_any", vocabulary), ElementsAre(2, 3, 4, 5, 7));
  EXPECT_THAT(tokens.Accepted("counted_block_1", vocabulary), ElementsAre(2, 4));
  EXPECT_THAT(tokens.Accepted("counted_escape_0_2", vocabulary), ElementsAre(0, 1, 4));
  EXPECT_THAT(tokens.Accepted("counted_escape_0_3", vocabulary), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(tokens.Accepted("counted_unicode", vocabulary), ElementsAre());
  EXPECT_THAT(tokens.Accepted("root", vocabulary), ElementsAre());
}

}  // namespace
}  // namespace withy::grammar
