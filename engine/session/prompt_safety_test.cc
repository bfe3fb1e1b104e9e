// Users' text stays text for every template and vocabulary; and a caller that has left ends the
// encoding of its prompt.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/test_seed.h"
#include "engine/session/testing.h"

namespace withy::engine {
namespace {

// Markup of every template as ordinary, user-defined or control tokens; bytes without a token; an
// unknown token that ends the text.
std::unique_ptr<Tokenizer> MarkupTokenizer(TokenKind kind) {
  TestVocab vocab;
  vocab.AddByteAlphabet();
  vocab.Change(0x1D, "absent");
  int32_t end = kNoToken;
  for (const char* text : {"<|im_start|>", "<|im_end|>", "<|start_header_id|>", "<|end_header_id|>",
                           "<|eot_id|>", "<start_of_turn>", "<end_of_turn>", "</s>", "<|user|>",
                           "<|assistant|>", "<|system|>", "<|end|>", "<|endoftext|>"}) {
    end = vocab.Add(text, kind);
  }
  vocab.writer().Set<uint32_t>("tokenizer.ggml.unknown_token_id", static_cast<uint32_t>(end));
  vocab.writer().Set<uint32_t>("tokenizer.ggml.eos_token_id", static_cast<uint32_t>(end));
  return vocab.Make("gpt2", "llama-bpe").value();
}

std::vector<int32_t> ControlTokens(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::vector<int32_t> controls;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(controls),
               [&](int32_t id) { return tokenizer.IsControl(id); });
  return controls;
}

std::string Hostile(std::mt19937& random) {
  static const std::vector<std::string> kParts = {"<|im_start|>",
                                                  "<|im_end|>\n",
                                                  "<|start_header_id|>",
                                                  "<|eot_id|>",
                                                  "<start_of_turn>model\n",
                                                  "<end_of_turn>",
                                                  "</s>",
                                                  "<|user|>",
                                                  "<|assistant|>\n",
                                                  "<|end|>",
                                                  "<|endoftext|>",
                                                  "\x1D",
                                                  "[INST]",
                                                  "<<SYS>>",
                                                  "<",
                                                  "|",
                                                  ">",
                                                  "a",
                                                  " ",
                                                  "\n",
                                                  "\xC3\xA9",
                                                  "im_end"};
  std::string text = "x";
  for (size_t n = random() % 8; n > 0; --n) text += kParts[random() % kParts.size()];
  return text + "x";
}

TEST(PromptSafetyTest, NoMessageAddsToTheMarkupOfItsTemplate) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const TokenKind kind : {TokenKind::kNormal, TokenKind::kUserDefined, TokenKind::kControl}) {
    const auto tokenizer = MarkupTokenizer(kind);
    for (const char* name :
         {"plain", "chatml", "llama2", "llama3", "zephyr", "mistral", "gemma", "phi3"}) {
      const ChatTemplate chat = ChatTemplate::FromName(name).value();
      const ConversationEncoder encoder(*tokenizer, chat);
      const auto controls = [&](const auto& text) {
        const std::vector<Segment> segments = {SystemSays(text()), UserSays(text()),
                                               AssistantSays(text()), UserSays(text())};
        const auto encoded = encoder.EncodePrompt(segments, kWide);
        EXPECT_TRUE(encoded.ok()) << encoded.status();
        return ControlTokens(*tokenizer, encoded->ids);
      };
      const std::vector<int32_t> markup = controls([] { return std::string("x"); });
      for (int round = 0; round < 100; ++round) {
        EXPECT_EQ(controls([&] { return Hostile(random); }), markup)
            << name << ", kind " << static_cast<int>(kind);
      }
    }
  }
}

// Templates that cut, join, trim and quote what users say. Each shows all roles that it is given.
TEST(PromptSafetyTest, NoMessageAddsToTheMarkupOfAFilesTemplate) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (const char* text :
       {"{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n",
        "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content | trim + '</s>' }}{% endfor %}",
        "{% for m in messages %}<start_of_turn>{{ m.content | tojson }}<end_of_turn>{% endfor %}",
        "{% for m in messages %}<|user|>{{ m.content.split('|') | join('|') }}<|end|>{% endfor %}",
        "{% for m in messages %}<|user|>{% for c in m.content %}{{ c }}{% endfor %}<|end|>{% "
        "endfor %}",
        "{% for m in messages %}<|user|>{{ m.content[::-1][::-1] | replace('im', 'i' ~ 'm') "
        "}}<|end|>"
        "{% endfor %}",
        "<|eot_id|>{{ messages | map(attribute='content') | join('<|end|>') | indent(2) }}",
        "<|eot_id|>{% set all %}{% for m in messages %}{{ m.content | lower | e | safe }}{% endfor "
        "%}"
        "{% endset %}{{ all ~ all }}"}) {
    const ChatTemplate chat = ChatOfFile(text);
    ASSERT_TRUE(chat.executes_file()) << chat.note();
    for (const TokenKind kind :
         {TokenKind::kNormal, TokenKind::kUserDefined, TokenKind::kControl}) {
      const auto tokenizer = MarkupTokenizer(kind);
      const ConversationEncoder encoder(*tokenizer, chat);
      const auto controls = [&](const auto& say) {
        const std::vector<Segment> segments = {SystemSays(say()), UserSays(say()),
                                               AssistantSays(say()), UserSays(say())};
        const auto encoded = encoder.EncodePrompt(segments, kWide);
        EXPECT_TRUE(encoded.ok()) << encoded.status();
        return ControlTokens(*tokenizer, encoded->ids);
      };
      const std::vector<int32_t> markup = controls([] { return std::string("x"); });
      for (int round = 0; round < 50; ++round) {
        EXPECT_EQ(controls([&] { return Hostile(random); }), markup)
            << text << ", kind " << static_cast<int>(kind);
      }
    }
  }
}

TEST(PromptSafetyTest, RawTextSpellsMarkupButUnknownCharactersStayOut) {
  const auto tokenizer = MarkupTokenizer(TokenKind::kControl);
  const ChatTemplate chat = ChatTemplate::FromName("plain").value();
  const ConversationEncoder encoder(*tokenizer, chat);
  const auto controls = [&](const std::string& text) {
    const std::vector<Segment> raw = {RawText(text)};
    return ControlTokens(*tokenizer, encoder.EncodePrompt(raw, kWide)->ids);
  };
  EXPECT_EQ(controls("a<|im_end|>"),
            (std::vector<int32_t>{tokenizer->FindToken("<|im_end|>").value()}));
  EXPECT_TRUE(controls("a\x1D"
                       "b")
                  .empty());
}

TEST(PromptSafetyTest, ACancelledPromptIsNoPromptAndIsNotRemembered) {
  const ChatFixture f;
  const std::vector<Segment> segments = {UserSays(std::string(4 * CancelPoll::kStride, 'l'))};
  const CancelCheck at_once = [] { return true; };
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(f.encoder->EncodePrompt(segments, kWide, 0, &at_once).status().code(),
              absl::StatusCode::kCancelled);
    EXPECT_EQ(f.encoder->EncodeRecord(segments, kWide, &at_once).status().code(),
              absl::StatusCode::kCancelled);
  }
  const auto whole = f.encoder->EncodePrompt(segments, kWide);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_GT(whole->ids.size(), segments[0].text.size() / 2);
  // Already encoded text takes no further time.
  EXPECT_EQ(f.encoder->EncodePrompt(segments, kWide, 0, &at_once)->ids, whole->ids);
}

}  // namespace
}  // namespace withy::engine
