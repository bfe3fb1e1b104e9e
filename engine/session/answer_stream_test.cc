#include "engine/session/answer_stream.h"

#include <gtest/gtest.h>

#include "engine/session/testing.h"

namespace withy::engine {
namespace {

std::string PushAll(AnswerStream& answer, const std::vector<int32_t>& ids) {
  std::string shown;
  for (const int32_t id : ids) {
    if (answer.finished()) break;
    shown += answer.Push(id);
  }
  return shown;
}

TEST(AnswerStreamTest, EndOfTurnEndsItAndIsNoPartOfIt) {
  const ChatFixture f;
  AnswerStream answer(*f.tokenizer, 100, {});
  EXPECT_EQ(PushAll(answer, {'h', 'i', f.end, 'x'}), "hi");
  EXPECT_EQ(answer.reason(), FinishReason::kEndOfTurn);
  EXPECT_EQ(answer.ids(), (std::vector<int32_t>{'h', 'i'}));
  EXPECT_EQ(answer.text(), "hi");
}

TEST(AnswerStreamTest, StopStringIsCutAwayAlsoAcrossTokens) {
  const ChatFixture f;
  AnswerStream answer(*f.tokenizer, 100, {"END"});
  EXPECT_EQ(PushAll(answer, f.Ids("so ENough, END of it")), "so ENough, ");
  EXPECT_EQ(answer.reason(), FinishReason::kStopString);
  EXPECT_EQ(answer.text(), "so ENough, ");
}

TEST(AnswerStreamTest, TokenLimitShowsWhatWasHeldBack) {
  const ChatFixture f;
  AnswerStream answer(*f.tokenizer, 3, {"abcd"});
  EXPECT_EQ(PushAll(answer, f.Ids("abcd")), "abc");
  EXPECT_EQ(answer.reason(), FinishReason::kMaxTokens);
  EXPECT_EQ(answer.ids().size(), 3u);
}

TEST(AnswerStreamTest, TextComesInWholeCharacters) {
  const ChatFixture f;
  AnswerStream answer(*f.tokenizer, 100, {});
  EXPECT_EQ(answer.Push(0xC3), "");
  EXPECT_EQ(answer.Push(0xA9), "\xC3\xA9");
  EXPECT_EQ(answer.Push(0xE2), "");
  EXPECT_EQ(answer.Finish(FinishReason::kCancelled), "\xEF\xBF\xBD");
  EXPECT_EQ(answer.reason(), FinishReason::kCancelled);
  EXPECT_EQ(answer.text(), "\xC3\xA9\xEF\xBF\xBD");
}

}  // namespace
}  // namespace withy::engine
