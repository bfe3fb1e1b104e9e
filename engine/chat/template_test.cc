#include "engine/chat/template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/gguf/writer.h"
#include "engine/tokenizer/testing.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

const std::vector<ChatMessage> kTalk = {{"system", "Be kind.", {}},
                                        {"user", "Hi", {}},
                                        {"assistant", "Hello!", {}},
                                        {"user", "Bye", {}}};

std::string Render(const ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                   bool generation = true) {
  const auto rendered = chat.Render(messages, generation);
  EXPECT_TRUE(rendered.ok()) << rendered.status();
  return rendered->Text();
}

std::string Render(std::string_view name) {
  return Render(ChatTemplate::FromName(name).value(), kTalk);
}

TEST(ChatTemplateTest, EveryFormRendersAsPublished) {
  EXPECT_EQ(Render("plain"), "Be kind.\nHi\nHello!\nBye\n");
  EXPECT_EQ(Render("chatml"),
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
            "<|im_start|>assistant\n");
  EXPECT_EQ(Render("llama2"),
            "[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]");
  EXPECT_EQ(Render("llama3"),
            "<|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
            "<|start_header_id|>user<|end_header_id|>\n\nBye<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n");
  EXPECT_EQ(Render("zephyr"),
            "<|system|>\nBe kind.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n"
            "<|user|>\nBye</s>\n<|assistant|>\n");
  EXPECT_EQ(Render("mistral"), "[INST] Be kind.\n\nHi [/INST] Hello!</s>[INST] Bye [/INST]");
  EXPECT_EQ(Render("gemma"),
            "<start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!"
            "<end_of_turn>\n<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n");
  EXPECT_EQ(Render("phi3"),
            "<|system|>\nBe kind.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n"
            "<|user|>\nBye<|end|>\n<|assistant|>\n");
}

TEST(ChatTemplateTest, FormsAreRecognisedByTheirMarkup) {
  const auto name = [](std::string_view text) {
    const auto chat = ChatTemplate::FromText(text);
    return chat.ok() ? std::string(chat->name()) : std::string(chat.status().message());
  };
  EXPECT_EQ(name("{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'}}"),
            "chatml");
  EXPECT_EQ(name("{% set c = '<|start_header_id|>' + message['role'] + '<|end_header_id|>' %}"),
            "llama3");
  EXPECT_EQ(name("{{ '<start_of_turn>' + role + '\n' + message['content'] | trim }}"), "gemma");
  EXPECT_EQ(name("{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>' %}{{ '[INST] ' }}"),
            "llama2");
  EXPECT_EQ(name("{{ '[INST] ' + message['content'] + ' [/INST]' }}"), "mistral");
  EXPECT_EQ(name("{{'<|user|>\n' + message['content'] + '<|end|>\n<|assistant|>\n'}}"), "phi3");
  EXPECT_EQ(name("{{ '<|user|>\n' + message['content'] + eos_token }}"), "zephyr");
  EXPECT_THAT(name("{{ 'Question: ' + message['content'] }}"), HasSubstr("--chat-template NAME"));
  EXPECT_THAT(name("{{ 'Question: ' + message['content'] }}"), HasSubstr("model.chat_template"));
  EXPECT_EQ(ChatTemplate::FromText("x").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(ChatTemplate::FromName("x").status().message()),
              HasSubstr("plain, chatml"));
}

TEST(ChatTemplateTest, MistralSpacingFollowsTheText) {
  const std::vector<ChatMessage> talk = {{"user", "Hi", {}}, {"assistant", "Yo", {}}};
  const auto render = [&](std::string_view text) {
    return Render(ChatTemplate::FromText(text).value(), talk, false);
  };
  EXPECT_EQ(render("{{ '[INST] ' + c + ' [/INST]' }}"), "[INST] Hi [/INST] Yo</s>");
  EXPECT_EQ(render("[AVAILABLE_TOOLS] '[INST] ' + c + '[/INST]'"), "[INST] Hi[/INST] Yo</s>");
  EXPECT_EQ(render("[AVAILABLE_TOOLS] \"[INST]\" + c + \"[/INST]\""), "[INST]Hi[/INST]Yo</s>");
  const ChatTemplate v7 = ChatTemplate::FromText("[SYSTEM_PROMPT] [INST] c[/INST]").value();
  EXPECT_EQ(Render(v7, kTalk),
            "[SYSTEM_PROMPT] Be kind.[/SYSTEM_PROMPT][INST] Hi[/INST] Hello!</s>[INST] Bye[/INST]");
}

TEST(ChatTemplateTest, TheNextPromptBeginsWithTheLast) {
  for (const char* name :
       {"plain", "chatml", "llama2", "llama3", "zephyr", "mistral", "gemma", "phi3"}) {
    const ChatTemplate chat = ChatTemplate::FromName(name).value();
    const std::span<const ChatMessage> all(kTalk);
    const std::string first = chat.Render(all.first(2), true)->Text();
    const std::string answered = chat.Render(all.first(3), false)->Text();
    const std::string second = chat.Render(all.first(4), true)->Text();
    EXPECT_TRUE(answered.starts_with(first)) << name;
    EXPECT_TRUE(second.starts_with(answered)) << name;
    EXPECT_TRUE(first.starts_with(chat.Render(all.first(1), false)->Text())) << name;
  }
}

// A prompt that ends in an answer ends where that one does, so that it goes on.
TEST(ChatTemplateTest, AnAnswerGoesOnWhereItEnds) {
  const std::vector<ChatMessage> begun = {{"user", "Count", {}}, {"assistant", "One, two,", {}}};
  for (const char* name :
       {"plain", "chatml", "llama2", "llama3", "zephyr", "mistral", "gemma", "phi3"}) {
    const ChatTemplate chat = ChatTemplate::FromName(name).value();
    const std::string prompt = Render(chat, begun);
    EXPECT_TRUE(prompt.ends_with("One, two,")) << name << ": " << prompt;
    const std::string closed = Render(chat, begun, /*generation=*/false);
    EXPECT_TRUE(closed.starts_with(prompt)) << name;
    std::vector<ChatMessage> nothing = begun;
    nothing[1].content.clear();
    EXPECT_EQ(Render(chat, nothing), Render(chat, {begun[0]})) << name;
    const RenderedChat rendered = chat.Render(begun, true).value();
    EXPECT_FALSE(rendered.pieces.back().special) << "what an app says is no markup";
  }
}

TEST(ChatTemplateTest, APromptMayBeginAThought) {
  const auto opens = [](const std::string& markup, bool special, bool continues) {
    RenderedChat chat;
    chat.pieces.push_back({.text = "<think>", .special = false});
    chat.pieces.push_back({.text = markup, .special = special});
    return chat.OpensThought(continues);
  };
  EXPECT_TRUE(opens("<|assistant|><think>\n", true, false));
  EXPECT_FALSE(opens("<|assistant|><think>\n\n</think>\n\n", true, false));
  EXPECT_FALSE(opens("<|assistant|>", true, false));
  EXPECT_FALSE(opens("<think>", false, false)) << "a user's text is no thought";
  EXPECT_TRUE(opens("<think>Hm", false, true));
  EXPECT_FALSE(opens("<think>Hm</think>Yes", false, true));
}

TEST(ChatTemplateTest, MarkupAndTextStayApart) {
  const ChatTemplate chat = ChatTemplate::FromName("chatml").value();
  const std::vector<ChatMessage> talk = {{"user", "<|im_end|>", {}}};
  const RenderedChat rendered = chat.Render(talk, true).value();
  ASSERT_EQ(rendered.pieces.size(), 3u);
  EXPECT_TRUE(rendered.pieces[0].special);
  EXPECT_FALSE(rendered.pieces[1].special);
  EXPECT_EQ(rendered.pieces[1].message, 0);
  EXPECT_EQ(rendered.pieces[1].text, "<|im_end|>");
  EXPECT_TRUE(rendered.pieces[2].special);
  EXPECT_EQ(rendered.pieces[2].message, -1);

  TestVocab vocab;
  vocab.AddByteAlphabet();
  const int32_t start = vocab.Add("<|im_start|>", TokenKind::kControl);
  const int32_t end = vocab.Add("<|im_end|>", TokenKind::kControl);
  const auto tokenizer = vocab.Make("gpt2", "gpt-2").value();
  const Encoding encoding = tokenizer->EncodePieces(rendered.TextPieces(), {});
  EXPECT_EQ(std::count(encoding.ids.begin(), encoding.ids.end(), start), 2);
  EXPECT_EQ(std::count(encoding.ids.begin(), encoding.ids.end(), end), 1);
}

TEST(ChatTemplateTest, FixedSpansMoveWithTheText) {
  const std::vector<ChatMessage> talk = {{"user", "  keep this ", {{2, 6}, {0, 3}, {11, 12}}}};
  const ChatTemplate plain = ChatTemplate::FromName("plain").value();
  EXPECT_EQ(plain.Render(talk, true)->pieces[0].fixed_spans, talk[0].fixed_spans);
  const ChatTemplate trims = ChatTemplate::FromName("llama3").value();
  const RenderedChat rendered = trims.Render(talk, true).value();
  EXPECT_EQ(rendered.pieces[1].text, "keep this");
  EXPECT_EQ(rendered.pieces[1].fixed_spans, (std::vector<ByteSpan>{{0, 4}, {0, 1}}));
}

TEST(ChatTemplateTest, BadMessagesAreNamed) {
  const auto message = [](const char* name, const std::vector<ChatMessage>& talk) {
    const absl::Status status = ChatTemplate::FromName(name)->Render(talk, true).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(message("chatml", {}), HasSubstr("empty"));
  EXPECT_THAT(message("chatml", {{"tool", "x", {}}}), HasSubstr("messages[0]: role \"tool\""));
  EXPECT_THAT(message("chatml", {{"user", "x", {}}, {"system", "y", {}}}),
              HasSubstr("messages[1]"));
  EXPECT_THAT(message("chatml", {{"user", "x", {{0, 2}}}}), HasSubstr("[0, 2)"));
  EXPECT_THAT(message("llama2", {{"user", "x", {}}, {"user", "y", {}}}),
              HasSubstr("expected assistant"));
  EXPECT_THAT(message("gemma", {{"assistant", "x", {}}}), HasSubstr("expected user"));
  EXPECT_THAT(message("mistral", {{"system", "x", {}}}), HasSubstr("the last message"));
}

TEST(ChatTemplateTest, FromFile) {
  const auto from = [](const GgufWriter& writer, std::string_view name) {
    const std::string path =
        testing::TempDir() + "withy_chat_" + std::to_string(getpid()) + ".gguf";
    EXPECT_TRUE(writer.Write(path).ok());
    const GgufFile file = GgufFile::Open(path).value();
    std::filesystem::remove(path);
    return ChatTemplate::FromFile(file, name);
  };
  EXPECT_EQ(from(GgufWriter(), "")->name(), "plain");
  EXPECT_EQ(from(GgufWriter(), "gemma")->name(), "gemma");
  GgufWriter unknown;
  unknown.SetString("tokenizer.chat_template", "?");
  EXPECT_EQ(from(unknown, "").status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(from(unknown, "phi3")->name(), "phi3");
  GgufWriter zephyr;
  zephyr.SetString("tokenizer.chat_template", "'<|user|>\n' + message['content'] + eos_token");
  const std::vector<std::string> tokens = {"a", "<eos>"};
  zephyr.SetStringArray("tokenizer.ggml.tokens", tokens);
  zephyr.Set<uint32_t>("tokenizer.ggml.eos_token_id", 1);
  EXPECT_EQ(Render(from(zephyr, "").value(), {{"user", "Hi", {}}}),
            "<|user|>\nHi<eos>\n<|assistant|>\n");
}

// The template of a file that has these tokens, and no template.
ChatTemplate OfVocabulary(const std::vector<std::string>& tokens, const char* tokenizer) {
  GgufWriter writer;
  writer.SetString("tokenizer.ggml.model", tokenizer);
  writer.SetStringArray("tokenizer.ggml.tokens", tokens);
  writer.Set<uint32_t>("tokenizer.ggml.eos_token_id", 0);
  const std::string path =
      testing::TempDir() + "withy_vocabulary_" + std::to_string(getpid()) + ".gguf";
  EXPECT_TRUE(writer.Write(path).ok());
  const GgufFile file = GgufFile::Open(path).value();
  std::filesystem::remove(path);
  return ChatTemplate::FromFile(file).value();
}

TEST(ChatTemplateTest, AFileWithoutATemplateHasTheOneOfItsVocabulary) {
  const struct {
    std::vector<std::string> tokens;
    const char* tokenizer;
    const char* rendered;
  } known[] = {
      {{"</s>", "<|im_start|>", "<|im_end|>"},
       "gpt2",
       "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
      {{"</s>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
       "gpt2",
       "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant"
       "<|end_header_id|>\n\n"},
      {{"</s>", "<start_of_turn>", "<end_of_turn>"},
       "llama",
       "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n"},
      {{"</s>", "<|user|>", "<|assistant|>", "<|end|>"},
       "llama",
       "<|user|>\nHi<|end|>\n<|assistant|>\n"},
      {{"<eos>", "<|user|>", "<|assistant|>", "<|system|>"},
       "gpt2",
       "<|user|>\nHi<eos>\n<|assistant|>\n"},
      {{"</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]"}, "gpt2", "[INST]Hi[/INST]"},
      {{"</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]"}, "llama", "[INST] Hi[/INST]"},
  };
  for (const auto& [tokens, tokenizer, rendered] : known) {
    const ChatTemplate chat = OfVocabulary(tokens, tokenizer);
    EXPECT_EQ(Render(chat, {{"user", "Hi", {}}}), rendered);
    EXPECT_FALSE(chat.doubtful());
    EXPECT_THAT(chat.note(), testing::AllOf(HasSubstr("no chat template"), HasSubstr(tokens[1])));
  }
}

TEST(ChatTemplateTest, AVocabularyThatTellsNoFormatIsWarnedOf) {
  const std::vector<std::vector<std::string>> unknown = {
      {"</s>", "a"},
      {"</s>", "<|im_start|>", "<|im_end|>", "<|im_sep|>"},
      {"</s>", "<|user|>", "<|assistant|>", "<|system|>", "[gMASK]"},
      {"</s>", "<|user|>", "<|assistant|>", "<|end|>"},
      {"</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]"},
  };
  for (const std::vector<std::string>& tokens : unknown) {
    const ChatTemplate chat = OfVocabulary(tokens, "gpt2");
    EXPECT_EQ(chat.name(), "plain");
    EXPECT_TRUE(chat.doubtful());
    EXPECT_THAT(chat.note(), HasSubstr("model.chat_template"));
  }
}

}  // namespace
}  // namespace withy::engine
