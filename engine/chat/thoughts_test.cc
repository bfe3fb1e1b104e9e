#include "engine/chat/thoughts.h"

#include <random>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

std::string ThoughtOf(std::string_view answer, bool begun) {
  const ThoughtSpan span = FindThought(answer, begun, /*whole=*/true);
  return span.thinks ? std::string(answer.substr(span.begin, span.end - span.begin)) : "NONE";
}

TEST(ThoughtsTest, AThoughtIsWhatStandsBeforeTheAnswer) {
  EXPECT_EQ(ThoughtOf("<think>\nHm.\n</think>\n\nYes.", false), "Hm.");
  EXPECT_EQ(WithoutThought("<think>\nHm.\n</think>\n\nYes.", false), "Yes.");
  EXPECT_EQ(ThoughtOf("Hm.</think>Yes.", true), "Hm.");
  EXPECT_EQ(WithoutThought("Hm.</think>Yes.", true), "Yes.");
  EXPECT_EQ(ThoughtOf("<think>Hm.</think>Yes.", true), "Hm.") << "begun twice";
  EXPECT_EQ(ThoughtOf(" \n<think></think>Yes.", false), "");
  EXPECT_EQ(ThoughtOf("Cut off", true), "Cut off");
  EXPECT_EQ(WithoutThought("Cut off", true), "");
  EXPECT_EQ(ThoughtOf("Yes <think> no", false), "NONE");
  EXPECT_EQ(WithoutThought(" Yes <think> no", false), " Yes <think> no");
  EXPECT_EQ(ThoughtOf("<thin", false), "NONE");
  EXPECT_EQ(ThoughtOf("", true), "");
}

// Token by token, what was told stays, and at the end it is what the whole answer has.
TEST(ThoughtsTest, AsTheAnswerGrowsWhatIsKnownStays) {
  std::mt19937_64 random(TestSeed());
  const std::string_view parts[] = {"<think>", "</think>", "<", "/", "th", "ink>", " ", "\n", "ab"};
  for (int round = 0; round < 3000; ++round) {
    std::string answer;
    for (size_t i = random() % 8; i > 0; --i) answer += parts[random() % std::size(parts)];
    const bool begun = random() % 2 == 0;
    const ThoughtSpan whole = FindThought(answer, begun, true);
    for (size_t length = 0; length <= answer.size(); ++length) {
      const auto span = FindThought(std::string_view(answer).substr(0, length), begun, false);
      SCOPED_TRACE(answer.substr(0, length) + "|" + answer.substr(length));
      if (span.thinks) {
        EXPECT_TRUE(whole.thinks);
        if (span.end > span.begin) {
          EXPECT_EQ(span.begin, whole.begin);
        }
        EXPECT_LE(span.end, std::max(whole.end, span.begin));
      }
      if (span.answer != ThoughtSpan::kNotYet) {
        EXPECT_EQ(span.answer, whole.answer);
      }
    }
    EXPECT_LE(whole.begin, whole.end);
    EXPECT_LE(whole.end, whole.thinks ? whole.answer : answer.size());
  }
}

}  // namespace
}  // namespace withy::engine
