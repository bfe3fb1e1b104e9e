#include "engine/encoder/prune.h"

#include <algorithm>
#include <random>

#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using engine::ByteSpan;
using Texts = std::vector<std::string>;

// The words of `text`, separated by spaces and line breaks, with the given scores.
PrunableText Make(const std::string& text, const std::vector<float>& scores,
                  std::vector<ByteSpan> fixed = {}) {
  PrunableText message{text, {}, std::move(fixed)};
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find_first_not_of(" \n", at);
    if (begin == std::string::npos) break;
    at = std::min(text.find_first_of(" \n", begin), text.size());
    const size_t index = message.words.size();
    message.words.push_back({{static_cast<uint32_t>(begin), static_cast<uint32_t>(at)},
                             index < scores.size() ? scores[index] : 0.0f});
  }
  return message;
}

std::string Visible(const PrunableText& message, const std::vector<ByteSpan>& kept) {
  if (kept.empty()) return std::string(message.text);
  std::string text;
  for (const ByteSpan& span : kept) {
    text += message.text.substr(span.begin, span.end - span.begin);
  }
  return text;
}

std::string PruneOne(const PrunableText& message, uint32_t percent) {
  return Visible(message, Prune({message}, percent).kept[0]);
}

TEST(PruneTest, TheBestWordsStayInTheirOrder) {
  const std::string text = "one two three four";
  const PrunableText message = Make(text, {0.1f, 0.9f, 0.2f, 0.8f});
  EXPECT_EQ(PruneOne(message, 50), "two four");
  EXPECT_EQ(PruneOne(message, 75), "two three four");
  EXPECT_EQ(PruneOne(message, 26), "two four") << "shares are rounded up";
  EXPECT_EQ(PruneOne(message, 25), "two");
  const PrunedPrompt half = Prune({message}, 50);
  EXPECT_EQ(half.words, 4u);
  EXPECT_EQ(half.pruned_words, 2u);
  EXPECT_EQ(half.text_bytes, text.size());
  EXPECT_EQ(half.kept_bytes, 8u);
}

TEST(PruneTest, TheWholePromptHasNoSpans) {
  const std::string text = " one two\n";
  const PrunedPrompt whole = Prune({Make(text, {0.1f, 0.2f})}, 100);
  EXPECT_TRUE(whole.kept[0].empty());
  EXPECT_EQ(whole.pruned_words, 0u);
  EXPECT_EQ(whole.kept_bytes, text.size());
}

TEST(PruneTest, EqualScoresKeepTheEarlierWord) {
  const std::string text = "a b c d";
  EXPECT_EQ(PruneOne(Make(text, {}), 50), "a b");
}

TEST(PruneTest, LineBreaksOutliveTheWordsBesideThem) {
  const std::string text = "question one\nanswer two";
  EXPECT_EQ(PruneOne(Make(text, {1, 0, 0, 1}), 50), "question\ntwo");
  const std::string blank = "a b\n\nc d";
  EXPECT_EQ(PruneOne(Make(blank, {1, 0, 0, 1}), 50), "a\n\nd");
}

// Ideographs are words without white space around them.
TEST(PruneTest, WordsThatWereApartStayApart) {
  const std::string text = "ab xcd";
  PrunableText message{text, {{{0, 2}, 1}, {{3, 4}, 0}, {{4, 6}, 1}}, {}};
  EXPECT_EQ(PruneOne(message, 60), "ab cd");
  const std::string joined = "abxcd";
  message = {joined, {{{0, 2}, 1}, {{2, 3}, 0}, {{3, 5}, 1}}, {}};
  EXPECT_EQ(PruneOne(message, 60), "abcd");
}

TEST(PruneTest, OuterWhiteSpaceGoesWithItsWord) {
  const std::string text = "  a b c\n";
  EXPECT_EQ(PruneOne(Make(text, {0, 1, 0}), 33), "b");
  EXPECT_EQ(PruneOne(Make(text, {1, 0, 0}), 33), "  a");
  EXPECT_EQ(PruneOne(Make(text, {0, 0, 1}), 33), "c\n");
}

TEST(PruneTest, FixedPartsStayAndCount) {
  const std::string text = "keep this please and drop that";
  // "this pl" cuts a word, which is kept as a whole.
  const PrunableText message = Make(text, {0, 0, 0, 0.5f, 0.4f, 0.9f}, {{5, 12}});
  EXPECT_EQ(PruneOne(message, 50), "this please that");
  EXPECT_EQ(PruneOne(message, 10), "this please") << "more than the share, and nothing else";
  const std::string spaced = "a b \n\n c";
  EXPECT_EQ(PruneOne(Make(spaced, {1, 0, 0}, {{4, 6}}), 33), "a\n\n") << "white space, too";
}

TEST(PruneTest, EveryMessageThatHasWordsKeepsOne) {
  const Texts texts = {"low words here", "high words there", "   "};
  const std::vector<PrunableText> messages = {
      Make(texts[0], {0.1f, 0.3f, 0.2f}), Make(texts[1], {0.7f, 0.8f, 0.9f}), Make(texts[2], {})};
  const PrunedPrompt pruned = Prune(messages, 50);
  EXPECT_EQ(Visible(messages[0], pruned.kept[0]), "words");
  EXPECT_EQ(Visible(messages[1], pruned.kept[1]), "words there");
  EXPECT_TRUE(pruned.kept[2].empty()) << "nothing to choose from: all of it";
  EXPECT_EQ(pruned.pruned_words, 3u);
  const PrunedPrompt least = Prune(messages, 1);
  EXPECT_EQ(Visible(messages[0], least.kept[0]), "words");
  EXPECT_EQ(Visible(messages[1], least.kept[1]), "there");
}

// An instruction, two worked examples of four words each, and a question.
struct FewShot {
  Texts texts = {"do it well", "one plus two", "three", "two plus two", "four", "now one plus one"};
  std::vector<PrunableText> messages;

  FewShot(float first, float second) {
    const std::vector<float> scores = {0.9f, first, first, second, second, 0.1f};
    const std::vector<std::string_view> roles = {"system", "user",      "assistant",
                                                 "user",   "assistant", "user"};
    for (size_t m = 0; m < texts.size(); ++m) {
      messages.push_back(Make(texts[m], std::vector<float>(4, scores[m])));
      messages.back().role = roles[m];
    }
  }
  FewShot(const FewShot&) = delete;

  std::string Left(uint32_t percent) const {
    const PrunedPrompt pruned = Prune(messages, percent);
    std::string left;
    for (size_t m = 0; m < messages.size(); ++m) {
      left += Visible(messages[m], pruned.kept[m]) + "|";
    }
    return left;
  }
};

TEST(PruneTest, TheShareWithoutExamplesIsAllButThem) {
  FewShot prompt(0.5f, 0.2f);
  EXPECT_EQ(ShareWithoutExamples(prompt.messages), 47u) << "7 of 15 words";
  EXPECT_EQ(prompt.Left(47), "do it well|||||now one plus one|");
  prompt.messages[3].fixed = {{0, 3}};
  EXPECT_EQ(ShareWithoutExamples(prompt.messages), 74u) << "4 of 15 may go";
  const std::string text = "one two";
  EXPECT_EQ(ShareWithoutExamples({Make(text, {})}), 100u);
  EXPECT_EQ(ShareWithoutExamples({prompt.messages[1], prompt.messages[2]}), 100u)
      << "nothing would be left";
  EXPECT_EQ(ShareWithoutExamples({}), 100u);
}

TEST(PruneTest, ExchangesGoWholeBeforeWords) {
  const FewShot prompt(0.5f, 0.2f);  // 15 words, 7 of them in no example
  EXPECT_EQ(prompt.Left(100), "do it well|one plus two|three|two plus two|four|now one plus one|");
  EXPECT_EQ(prompt.Left(74), "do it well|one plus two|three|||now one plus one|");
  EXPECT_EQ(prompt.Left(45), "do it well|||||now one plus one|");
  EXPECT_EQ(prompt.Left(20), "do it|||||now|") << "then words, the best first";
  const PrunedPrompt pruned = Prune(prompt.messages, 45);
  EXPECT_EQ(pruned.pruned_words, 8u);
  EXPECT_EQ(pruned.kept_bytes, 26u);
  EXPECT_EQ(FewShot(0.2f, 0.5f).Left(74), "do it well|||two plus two|four|now one plus one|");
  EXPECT_EQ(FewShot(0.2f, 0.2f).Left(74), "do it well|||two plus two|four|now one plus one|")
      << "of equals the later one stays";
}

TEST(PruneTest, AnExchangeIsShortenedWhenHalfOfItFits) {
  const FewShot prompt(0.5f, 0.2f);
  EXPECT_EQ(prompt.Left(86), "do it well|one plus two|three|two|four|now one plus one|");
  EXPECT_EQ(prompt.Left(80), "do it well|one plus two|three|||now one plus one|");
}

TEST(PruneTest, ExchangesWithAFixedPartStay) {
  FewShot prompt(0.5f, 0.2f);
  prompt.messages[1].fixed = {{0, 3}};
  EXPECT_EQ(prompt.Left(74), "do it well|one plus two|three|||now one plus one|");
  EXPECT_EQ(prompt.Left(20), "do|one|three|||now|");
}

TEST(PruneTest, AnswersInARowBelongToOneExchange) {
  const Texts texts = {"a b", "c", "d", "e"};
  std::vector<PrunableText> messages;
  for (size_t m = 0; m < texts.size(); ++m) {
    messages.push_back(Make(texts[m], {0.5f, 0.5f}));
    messages.back().role = m == 1 || m == 2 ? "assistant" : "user";
  }
  const PrunedPrompt pruned = Prune(messages, 20);
  for (size_t m = 0; m < 3; ++m) EXPECT_EQ(Visible(messages[m], pruned.kept[m]), "");
  EXPECT_EQ(Visible(messages[3], pruned.kept[3]), "e");
}

TEST(PruneTest, SaysWhatCannotBePruned) {
  const std::string blank = " \n ";
  EXPECT_EQ(WhyNotPrunable({Make(blank, {})}), "it has no words");
  const std::string text = "a b";
  PrunableText message = Make(text, {1, 1});
  EXPECT_EQ(WhyNotPrunable({message}), "");
  message.fixed = {{0, 3}};
  EXPECT_EQ(WhyNotPrunable({message}), "the caller fixed all of it");
  message.fixed.clear();
  for (ScoredWord& word : message.words) word.readable = false;
  EXPECT_EQ(WhyNotPrunable({message}), "the TLM can read none of its words");
}

TEST(PruneTest, HoldsItsPromisesOnAnyPrompt) {
  const unsigned seed = 4;
  std::mt19937 random(seed);
  for (int round = 0; round < 3000; ++round) {
    Texts texts(1 + random() % 4);
    std::vector<PrunableText> messages;
    for (std::string& text : texts) {
      for (uint32_t i = random() % 60; i > 0; --i) text += "ab \n"[random() % 4];
      std::vector<float> scores(40);
      for (float& score : scores) score = static_cast<float>(random() % 5) / 4;
      std::vector<ByteSpan> fixed;
      if (!text.empty() && random() % 3 == 0) {
        const auto begin = static_cast<uint32_t>(random() % text.size());
        fixed.push_back({begin, begin + 1});
      }
      messages.push_back(Make(text, scores, fixed));
      messages.back().role = std::vector{"user", "assistant", "system", ""}[random() % 4];
    }
    const uint32_t percent = 1 + random() % 100;
    const PrunedPrompt pruned = Prune(messages, percent);
    const std::vector<bool> left_out = LeftOut(messages, ChooseWords(messages, percent));
    size_t words = 0, staying = 0, bytes = 0, left_out_words = 0;
    for (size_t m = 0; m < messages.size(); ++m) {
      const PrunableText& message = messages[m];
      const std::vector<ByteSpan>& kept = pruned.kept[m];
      words += message.words.size();
      if (left_out[m]) {
        ASSERT_EQ(Visible(message, kept), "") << "seed " << seed << " round " << round;
        ASSERT_TRUE(message.fixed.empty() && !message.words.empty());
        ASSERT_TRUE(message.role == "user" || message.role == "assistant" || message.role.empty());
        left_out_words += message.words.size();
        continue;
      }
      uint32_t from = 0;
      for (const ByteSpan& span : kept) {
        ASSERT_LT(span.begin, span.end) << "seed " << seed << " round " << round;
        ASSERT_TRUE(span.begin > from || span.begin == 0) << "spans are apart";
        ASSERT_LE(span.end, message.text.size());
        from = span.end;
      }
      const std::string visible = Visible(message, kept);
      const size_t left = Make(visible, {}).words.size();
      staying += left;
      bytes += visible.size();
      ASSERT_EQ(left == 0, message.words.empty()) << "seed " << seed << " round " << round;
      for (const ByteSpan& fixed : message.fixed) {
        ASSERT_TRUE(kept.empty() || std::any_of(kept.begin(), kept.end(), [&](const auto& span) {
                      return span.begin <= fixed.begin && fixed.end <= span.end;
                    }));
      }
    }
    ASSERT_EQ(pruned.words, words);
    ASSERT_EQ(pruned.pruned_words, words - staying) << "seed " << seed << " round " << round;
    ASSERT_EQ(pruned.kept_bytes, bytes);
    if (std::find(left_out.begin(), left_out.end(), true) == left_out.end()) {
      ASSERT_GE(staying * 100, words * percent) << "at least the share";
    } else {
      ASSERT_GT((staying + left_out_words) * 100, words * percent);
    }
  }
}

}  // namespace
}  // namespace withy::engine
