#include "engine/session/answer_stream.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/session/answer_tools.h"
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

// Mistral's marker is a control token, which an answer else leaves out.
TEST(AnswerStreamTest, MarkersOfCallsAreShownWhereToolsAre) {
  ChatFixture f;
  const int32_t marker = f.vocab.Add("[TOOL_CALLS]", TokenKind::kControl);
  const auto tokenizer = f.vocab.Make("gpt2", "gpt-2").value();
  std::vector<int32_t> ids = {marker};
  for (const char c : std::string(R"([{"name": "look", "arguments": {"at": 1}}])"))
    ids.push_back(c);
  ids.push_back(f.end);
  const AnswerTools none("[]", *tokenizer);
  AnswerStream plain(*tokenizer, 100, {}, none.markers());
  EXPECT_EQ(PushAll(plain, ids)[0], '[');
  EXPECT_TRUE(none.Read("[TOOL_CALLS]" + plain.text(), plain.reason()).calls.empty());

  const AnswerTools tools(R"([{"type": "function", "function": {"name": "look"}}])", *tokenizer);
  AnswerStream answer(*tokenizer, 100, {}, tools.markers());
  EXPECT_EQ(PushAll(answer, ids), R"([TOOL_CALLS][{"name": "look", "arguments": {"at": 1}}])");
  const AnswerParts parts = tools.Read(answer.text(), answer.reason());
  ASSERT_EQ(parts.calls.size(), 1u);
  EXPECT_EQ(parts.calls[0].arguments_json, R"({"at": 1})");
  EXPECT_EQ(parts.text, "");
  EXPECT_TRUE(tools.Read(answer.text(), FinishReason::kMaxTokens).calls.empty())
      << "an answer that was cut calls nothing";
}

TEST(AnswerStreamTest, TokenLimitShowsWhatWasHeldBack) {
  const ChatFixture f;
  AnswerStream answer(*f.tokenizer, 3, {"abcd"});
  EXPECT_EQ(PushAll(answer, f.Ids("abcd")), "abc");
  EXPECT_EQ(answer.text(), "abc");
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

// A byte-level vocabulary whose tokens, characters and stop strings overlap.
struct Pieces {
  Pieces() {
    vocab.AddByteAlphabet();
    for (int32_t byte = 'a'; byte <= 'e'; ++byte) ids.push_back(byte);
    for (const int32_t byte : {0x80, 0xAC, 0xE2, 0xFF, int{' '}, int{'\n'}}) ids.push_back(byte);
    for (const char* text : {"abc", "ab", "bca", "END", "ND", "E", "Answer"}) {
      ids.push_back(vocab.Add(text));
    }
    answer = ids.back();
    ids.push_back(vocab.Add("<|im_start|>", TokenKind::kControl));
    ids.push_back(vocab.Add("<|im_end|>", TokenKind::kControl));
    vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(ids.back()));
    tokenizer = vocab.Make("gpt2", "gpt-2").value();
  }

  TestVocab vocab;
  std::vector<int32_t> ids;
  int32_t answer = 0;  // "Answer"
  std::unique_ptr<Tokenizer> tokenizer;
};

TEST(AnswerStreamTest, TokenLimitWithinATokenThatIsPartlyHeldBackKeepsTheOrder) {
  const Pieces pieces;
  AnswerStream answer(*pieces.tokenizer, 1, {"rQQ"});
  EXPECT_EQ(answer.Push(pieces.answer), "Answer");
  EXPECT_EQ(answer.text(), "Answer");
}

// For any tokens and any end: the text is the concatenation of what was shown, which is the decoded
// ids up to the first stop string.
TEST(AnswerStreamTest, TextIsWhatWasShownWhateverEndsIt) {
  const Pieces pieces;
  const std::vector<int32_t>& ids = pieces.ids;
  const std::unique_ptr<Tokenizer>& tokenizer = pieces.tokenizer;
  const std::vector<std::string> stops = {"abca", "END", "\xE2\x82\xAC", "cc",
                                          "\xEF\xBF\xBD"
                                          "b"};
  for (uint32_t seed = 0; seed < 4000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<std::string> chosen;
    for (const std::string& stop : stops) {
      if (random() % 3 == 0) chosen.push_back(stop);
    }
    AnswerStream answer(*tokenizer, 1 + static_cast<int32_t>(random() % 12), chosen);
    std::string shown;
    while (!answer.finished()) {
      if (random() % 16 == 0) {
        shown += answer.Finish(random() % 2 == 0 ? FinishReason::kCancelled
                                                 : FinishReason::kContextFull);
        break;
      }
      const int32_t id = ids[random() % ids.size()];
      shown += answer.Push(id);
      ASSERT_EQ(answer.text(), shown);
    }
    ASSERT_EQ(answer.text(), shown);
    // The same ids, decoded at once.
    StreamDecoder decoder(*tokenizer);
    std::string whole;
    for (const int32_t id : answer.ids()) whole += decoder.Push(id);
    whole += decoder.Flush();
    size_t end = std::string::npos, cut = whole.size();
    for (const std::string& stop : chosen) {
      const size_t at = whole.find(stop);
      if (at == std::string::npos) continue;
      if (at + stop.size() < end || (at + stop.size() == end && at < cut)) {
        end = at + stop.size();
        cut = at;
      }
    }
    EXPECT_EQ(shown, whole.substr(0, cut));
    EXPECT_EQ(answer.reason() == FinishReason::kStopString, end != std::string::npos);
  }
}

}  // namespace
}  // namespace withy::engine
