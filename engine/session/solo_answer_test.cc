#include "engine/session/solo_answer.h"

#include <gtest/gtest.h>

#include "engine/model/testing.h"
#include "engine/sampling/testing.h"
#include "engine/session/testing.h"

namespace withy::engine {
namespace {

AnswerRequest Ask(std::string text, int32_t max_tokens) {
  AnswerRequest request;
  request.prompt = {RawText(std::move(text))};
  request.max_tokens = max_tokens;
  return request;
}

TEST(SoloAnswerTest, AnswerDoesNotDependOnHowThePrefillIsCut) {
  const ChatFixture f;
  FakeModel model(f.tokenizer->vocab_size());
  FakeClock clock;
  std::vector<std::string> texts;
  for (const int32_t piece_rows : {1, 3, 64}) {
    std::string shown;
    const SoloHooks hooks{.on_delta = [&](const AnswerDelta& d) { shown += d.text; },
                          .cancelled = nullptr,
                          .on_step = nullptr};
    const auto result = AnswerAlone(model, *f.encoder, Ask("a prompt of some length", 20),
                                    {.window = 128, .piece_rows = piece_rows}, hooks, clock);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->reason, FinishReason::kMaxTokens);
    EXPECT_EQ(result->text.size(), 20u);
    EXPECT_EQ(result->text, shown);
    texts.push_back(result->text);
  }
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_EQ(texts[0], texts[2]);
}

TEST(SoloAnswerTest, EachPassHasTheNameThatItIsGiven) {
  const ChatFixture f;
  FakeModel model(f.tokenizer->vocab_size());
  FakeClock clock;
  std::vector<uint64_t> calls;
  std::vector<uint32_t> numbers;
  model.on_forward = [&](const Batch& batch) {
    calls.push_back(batch.tag.call_id);
    numbers.push_back(batch.tag.number);
  };
  PassNumbers passes;
  const SoloHooks hooks{
      .on_delta = nullptr, .cancelled = nullptr, .on_step = nullptr, .next_pass = [&] {
        return passes.Next(7);
      }};
  const auto result = AnswerAlone(model, *f.encoder, Ask("ten bytes.", 3),
                                  {.window = 128, .piece_rows = 5}, hooks, clock);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(calls, std::vector<uint64_t>(4, 7)) << "two pieces and two further tokens";
  EXPECT_EQ(numbers, std::vector<uint32_t>({1, 2, 3, 4}));
}

TEST(SoloAnswerTest, EndsWhenTheWindowIsFull) {
  const ChatFixture f;
  FakeModel model(f.tokenizer->vocab_size());
  FakeClock clock;
  const auto result = AnswerAlone(model, *f.encoder, Ask("0123456789", 100),
                                  {.window = 16, .piece_rows = 64}, {}, clock);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->reason, FinishReason::kContextFull);
  EXPECT_EQ(result->prompt_tokens + static_cast<int32_t>(result->tokens.size()), 16);
}

// The model would say anything else; the answer ends where nothing may follow.
TEST(SoloAnswerTest, KeepsToAGrammar) {
  const ChatFixture f;
  FakeModel model(f.tokenizer->vocab_size());
  FakeClock clock;
  AnswerRequest request = Ask("Yes or no?", 100);
  request.grammar = std::make_shared<TextsGrammar>(std::vector<std::string>{"yes", "no"}, f.end,
                                                   f.tokenizer->vocab_size());
  const auto result =
      AnswerAlone(model, *f.encoder, request, {.window = 128, .piece_rows = 64}, {}, clock);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->text == "yes" || result->text == "no") << result->text;
  EXPECT_EQ(result->reason, FinishReason::kEndOfTurn);
}

TEST(SoloAnswerTest, CancellationEndsAPromptThatIsBeingEncoded) {
  const ChatFixture f;
  const StuckTokenizer stuck(*f.tokenizer);
  const ConversationEncoder encoder(stuck, f.chat);
  FakeModel model(f.tokenizer->vocab_size());
  FakeClock clock;
  int asked = 0;
  const SoloHooks hooks{
      .on_delta = nullptr, .cancelled = [&] { return ++asked > 3; }, .on_step = nullptr};
  const auto result = AnswerAlone(model, encoder, Ask("never encoded", 10),
                                  {.window = 128, .piece_rows = 16}, hooks, clock);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->reason, FinishReason::kCancelled);
  EXPECT_EQ(result->text, "");
  EXPECT_EQ(stuck.begun(), 1);
}

TEST(SoloAnswerTest, CancellationStopsAtTheNextPiece) {
  const ChatFixture f;
  FakeModel model(f.tokenizer->vocab_size());
  FakeClock clock;
  int steps = 0;
  const SoloHooks hooks{.on_delta = nullptr,
                        .cancelled = [&] { return steps >= 2; },
                        .on_step = [&](int32_t, int64_t, int64_t) { ++steps; }};
  const auto result = AnswerAlone(model, *f.encoder, Ask(std::string(100, 'x'), 10),
                                  {.window = 128, .piece_rows = 8}, hooks, clock);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->reason, FinishReason::kCancelled);
  EXPECT_EQ(steps, 2);
}

}  // namespace
}  // namespace withy::engine
