#include "engine/session/adapt_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/test_seed.h"
#include "engine/session/testing.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

std::string Show(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& segment : segments) text += segment.role + ":" + segment.text + "|";
  return text;
}

std::string Adapted(const std::vector<Segment>& record, const char* chat) {
  const auto form = ChatTemplate::FromName(chat);
  const AdaptedRecord adapted = AdaptRecord(record, record.size(), *form);
  return adapted.adapted == 0 ? "as it is" : Show(adapted.segments);
}

TEST(AdaptRecordTest, MessagesOfOneRoleInARowBecomeOneWhereTurnsAreNeeded) {
  const std::vector<Segment> record = {SystemSays("s"), UserSays("a"), UserSays("b"),
                                       AssistantSays("c"), AssistantSays("d")};
  EXPECT_EQ(Adapted(record, "gemma"), "system:s|user:a\n\nb|assistant:c\n\nd|");
  EXPECT_EQ(Adapted(record, "chatml"), "as it is");
}

TEST(AdaptRecordTest, AnAnswerToNothingGetsAnEmptyMessageBefore) {
  EXPECT_EQ(Adapted({AssistantSays("hi"), UserSays("a"), AssistantSays("b")}, "mistral"),
            "user:|assistant:hi|user:a|assistant:b|");
  EXPECT_EQ(Adapted({SystemSays("s"), AssistantSays("hi")}, "llama2"),
            "system:s|user:|assistant:hi|");
}

TEST(AdaptRecordTest, ASystemMessageInTheMiddleIsTheUsers) {
  EXPECT_EQ(Adapted({UserSays("a"), AssistantSays("b"), SystemSays("s"), UserSays("c")}, "chatml"),
            "user:a|assistant:b|user:s|user:c|");
  EXPECT_EQ(Adapted({UserSays("a"), AssistantSays("b"), SystemSays("s"), UserSays("c")}, "gemma"),
            "user:a|assistant:b|user:s\n\nc|");
}

TEST(AdaptRecordTest, RawTextAndItsAnswersAreLeftAlone) {
  const std::vector<Segment> record = {RawText("x"),    AssistantSays("y"), AssistantSays("z"),
                                       UserSays("a"),   UserSays("b"),      AssistantSays("c"),
                                       RawText("more"), AssistantSays("d")};
  EXPECT_EQ(Adapted(record, "gemma"),
            ":x|assistant:y|assistant:z|user:a\n\nb|assistant:c|:more|assistant:d|");
}

TEST(AdaptRecordTest, WhatTheModelSawOfAMessageIsWhatIsMerged) {
  Segment pruned = UserSays("keep drop");
  pruned.kept = {{0, 4}};
  EXPECT_EQ(Adapted({pruned, UserSays("b"), AssistantSays("c")}, "gemma"),
            "user:keep\n\nb|assistant:c|");
}

// A context made under one template continues under a stricter one; an invalid new prompt is still
// refused.
TEST(AdaptRecordTest, AContextGoesOnUnderAStricterTemplate) {
  std::vector<Segment> talk = {SystemSays("Be kind."), UserSays("one"), UserSays("two"),
                               AssistantSays("three"), UserSays("four?")};
  for (const char* name : {"gemma", "mistral", "llama2"}) {
    const ChatFixture f(name);
    const auto encoded = f.encoder->EncodePrompt(talk, kWide, /*recorded=*/4);
    ASSERT_TRUE(encoded.ok()) << name << ": " << encoded.status();
    EXPECT_EQ(encoded->adapted_segments, 1) << name;
    EXPECT_THAT(f.Text(encoded->ids), HasSubstr("one\n\ntwo")) << name;
    EXPECT_GT(encoded->history_tokens, 0);
    std::vector<Segment> wrong = talk;
    wrong.push_back(UserSays("five?"));
    EXPECT_TRUE(absl::IsInvalidArgument(f.encoder->EncodePrompt(wrong, kWide, 4).status()));
    EXPECT_TRUE(absl::IsInvalidArgument(f.encoder->EncodePrompt(talk, kWide).status()))
        << "as a new prompt";
  }
}

// Every template accepts every adapted record, adapting is idempotent, and continuing does not
// change earlier tokens.
TEST(AdaptRecordTest, EveryTemplateTakesEveryRecord) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const char* name :
       {"plain", "chatml", "llama2", "llama3", "zephyr", "mistral", "gemma", "phi3"}) {
    const ChatFixture f(name);
    for (int round = 0; round < 60; ++round) {
      std::vector<Segment> record;
      for (int count = static_cast<int>(random() % 8); count > 0; --count) {
        constexpr const char* kRoles[] = {"system", "user", "assistant", ""};
        const std::string text(random() % 4, static_cast<char>('a' + random() % 26));
        record.push_back({.role = kRoles[random() % 4], .text = text});
      }
      record.push_back(UserSays("question"));
      record.push_back(AssistantSays("answer"));
      SCOPED_TRACE(absl::StrCat(name, " ", Show(record)));
      const auto before = f.encoder->EncodeRecord(record, kWide);
      ASSERT_TRUE(before.ok()) << before.status();
      const AdaptedRecord once = AdaptRecord(record, record.size(), f.chat);
      if (once.adapted > 0) {
        EXPECT_EQ(AdaptRecord(once.segments, once.recorded, f.chat).adapted, 0);
      }
      record.push_back(UserSays("and?"));
      const auto next = f.encoder->EncodePrompt(record, kWide, record.size() - 1);
      ASSERT_TRUE(next.ok()) << next.status();
      ASSERT_GE(next->ids.size(), before->ids.size());
      EXPECT_TRUE(std::equal(before->ids.begin(), before->ids.end(), next->ids.begin()));
    }
  }
}

}  // namespace
}  // namespace withy::engine
