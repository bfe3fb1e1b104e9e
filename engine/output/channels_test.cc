#include "engine/output/channels.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/chat/thoughts.h"
#include "engine/chat/tool_calls.h"
#include "engine/output/output_constraint.h"
#include "engine/sampling/testing.h"
#include "engine/session/answer_stream.h"
#include "engine/tokenizer/testing.h"

namespace withy::engine {
namespace {

class ChannelsTest : public ::testing::Test {
 protected:
  ChannelsTest() {
    vocab_.AddByteAlphabet();
    for (const char* text : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>",
                             "<|return|>", "<|call|>"}) {
      vocab_.Add(text, TokenKind::kControl);
    }
    tokenizer_ = vocab_.Make("gpt2", "gpt-4o").value();
  }

  std::vector<int32_t> Ids(std::string_view text) const {
    const TextPiece piece{text, true};
    return tokenizer_->EncodePieces({&piece, 1}, {}).ids;
  }
  // What is shown of an answer to "<|start|>assistant", piece by piece; all of it must be shown as
  // it comes.
  std::string Shown(std::string_view answer) const {
    AnswerStream stream(*tokenizer_, 10'000, {});
    stream.BeginBehind(Ids("<|start|>user<|message|>Why?<|end|><|start|>assistant"));
    std::string shown;
    for (const int32_t id : Ids(answer)) {
      if (!stream.finished()) shown += stream.Push(id);
    }
    if (!stream.finished()) shown += stream.Finish(FinishReason::kMaxTokens);
    EXPECT_EQ(shown, stream.text());
    return shown;
  }

  TestVocab vocab_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(ChannelsTest, AThoughtAndAnAnswerAreToldAsOthersTellThem) {
  const std::string shown = Shown(
      "<|channel|>analysis<|message|>Hm, é.<|end|><|start|>assistant"
      "<|channel|>final<|message|>Yes.<|return|>");
  EXPECT_EQ(shown, "<think>Hm, é.</think>Yes.");
  const ThoughtSpan span = FindThought(shown, false, true);
  EXPECT_EQ(shown.substr(span.begin, span.end - span.begin), "Hm, é.");
  EXPECT_EQ(WithoutThought(shown, false), "Yes.");
  EXPECT_EQ(Shown("<|channel|>final<|message|>Yes.<|return|>"), "Yes.");
}

TEST_F(ChannelsTest, MessagesOfOneKindFollowEachOther) {
  EXPECT_EQ(Shown("<|channel|>analysis<|message|>One<|end|><|start|>assistant<|channel|>analysis"
                  "<|message|>Two<|end|><|start|>assistant<|channel|>commentary<|message|>First"
                  "<|end|><|start|>assistant<|channel|>final<|message|>Last<|return|>"),
            "<think>One\n\nTwo</think>First\nLast");
  EXPECT_EQ(Shown("<|channel|>final<|message|>Yes<|end|><|start|>assistant<|channel|>analysis"
                  "<|message|>Was that right?<|end|>"),
            "Yes")
      << "a thought behind the answer";
}

TEST_F(ChannelsTest, ACallIsToldAsOthersTellIt) {
  const ToolCallParser parser(R"([{"type": "function", "function": {"name": "look.at-it"}}])");
  for (const char* header :
       {"<|channel|>commentary to=functions.look.at-it <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.look.at-it<|message|>",
        " to=functions.look.at-it<|channel|>commentary json<|message|>"}) {
    const std::string shown = Shown(std::string("<|channel|>analysis<|message|>Hm.<|end|><|start|>"
                                                "assistant") +
                                    header + R"({"at": 1}<|call|>)");
    const AnswerParts parts = parser.Parse(shown);
    ASSERT_EQ(parts.calls.size(), 1u) << shown;
    EXPECT_EQ(parts.calls[0].name, "look.at-it");
    EXPECT_EQ(parts.calls[0].arguments_json, R"({"at": 1})");
    EXPECT_EQ(parts.text, "<think>Hm.</think>");
  }
  EXPECT_EQ(Shown("<|channel|>commentary to=functions.a\"b<|message|>{}<|call|>"), "{}")
      << "no name of a function";
}

TEST_F(ChannelsTest, AnAnswerThatIsCutKeepsWhatIsKnown) {
  EXPECT_EQ(Shown("<|channel|>analysis<|message|>Hm"), "<think>Hm");
  EXPECT_EQ(Shown("<|channel|>analysis<|message|>Hm<|end|><|start|>assist"), "<think>Hm");
  EXPECT_EQ(Shown("<|channel|>anal"), "");
  EXPECT_EQ(Shown("Plainly said."), "Plainly said.");
  const std::string lengthy(1000, 'a');
  EXPECT_EQ(Shown(lengthy), lengthy);
}

TEST_F(ChannelsTest, AnAnswerThatGoesOnIsInItsMessage) {
  AnswerStream stream(*tokenizer_, 100, {});
  stream.BeginBehind(Ids("<|start|>assistant<|channel|>final<|message|>Ye"));
  EXPECT_EQ(stream.Push('s'), "s");
}

TEST_F(ChannelsTest, OtherVocabulariesHaveNone) {
  EXPECT_TRUE(Channels::Of(*tokenizer_).has_value());
  TestVocab phi;
  phi.AddByteAlphabet();
  for (const char* text : {"<|start|>", "<|channel|>", "<|message|>", "<|end|>"}) {
    phi.Add(text, TokenKind::kControl);
  }
  EXPECT_FALSE(Channels::Of(*phi.Make("gpt2", "gpt-4o").value()).has_value())
      << "<|end|> ends an answer";
}

// The grammar holds from the message for the user on.
TEST_F(ChannelsTest, AGrammarWaitsForTheAnswersMessage) {
  const int32_t end = tokenizer_->FindToken("<|return|>").value();
  const TextsGrammar texts({"yes"}, end, tokenizer_->vocab_size());
  OutputConstraint constraint(&texts, *tokenizer_);
  constraint.BeginBehind(Ids("<|start|>assistant"));
  for (const int32_t id : Ids("<|channel|>analysis<|message|>no</think><|end|><|start|>assistant"
                              "<|channel|>final<|message|>")) {
    const auto mask = constraint.Mask();
    ASSERT_TRUE(mask.ok()) << mask.status();
    EXPECT_TRUE(MaskHas(*mask, id)) << id;
    EXPECT_FALSE(MaskHas(*mask, end));
    EXPECT_FALSE(constraint.Over());
    constraint.Accept(id);
  }
  EXPECT_TRUE(MaskHas(*constraint.Mask(), 'y'));
  EXPECT_FALSE(MaskHas(*constraint.Mask(), 'n'));
  for (const char c : std::string("yes")) constraint.Accept(c);
  EXPECT_TRUE(constraint.Over());

  OutputConstraint at_once(&texts, *tokenizer_);
  at_once.BeginBehind(Ids("<|start|>assistant<|channel|>final<|message|>"));
  EXPECT_FALSE(MaskHas(*at_once.Mask(), 'n'));
}

}  // namespace
}  // namespace withy::engine
