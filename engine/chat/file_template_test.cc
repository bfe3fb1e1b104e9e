#include "engine/chat/file_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/stack_left.h"
#include "engine/chat/template.h"
#include "engine/chat/testing.h"
#include "engine/chat/tool_calls.h"
#include "engine/gguf/writer.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

// ChatML with a system turn of its own.
constexpr std::string_view kDefaultSystem =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nBe Willow.<|im_end|>\\n' }}{% endif %}{{ '<|im_start|>' + "
    "message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
// Refuses system messages, and turns out of order.
constexpr std::string_view kStrict =
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('No system here') }}"
    "{% endif %}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Take turns') }}{% endif %}<{{ m['role'][0] }}>{{ m['content'] | trim }}"
    "{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";
constexpr std::string_view kCalls =
    "{% for m in messages %}<{{ m.role }}>{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor "
    "%})"
    "{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}";

FileTemplate Make(std::string_view text, std::string_view tool_use = "") {
  auto made = FileTemplate::FromText(text, tool_use, "<s>", "</s>");
  EXPECT_TRUE(made.ok()) << made.status();
  return *std::move(made);
}

ChatMessage Message(std::string role, std::string content) {
  return {.role = std::move(role), .content = std::move(content)};
}

std::string TextOf(const FileTemplate& chat, const std::vector<ChatMessage>& messages,
                   const ChatOptions& options = {.add_generation_prompt = true}) {
  const auto rendered = chat.Render(messages, options);
  return rendered.ok() ? rendered->Text() : std::string(rendered.status().message());
}

// Tells the types of parameters; what it does not know, it takes for a union and looks into.
constexpr std::string_view kTypes =
    "{% macro type_of(s) %}{% if s.type == 'integer' %}whole{% elif s.type == 'object' %}"
    "{% for name, inner in s.properties | items %}{{ name }}: {{ type_of(inner) }};{% endfor %}"
    "{% else %}{% for part in s.type %}{{ type_of({'type': part}) }}|{% endfor %}{% endif %}"
    "{% endmacro %}{% for tool in tools or [] %}{{ type_of(tool.function.parameters) }}"
    "{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";

// On a thread of a server, whose stack is small.
TEST(FileTemplateTest, ASchemaThatATemplateDoesNotKnowFailsThatChatOnly) {
  const FileTemplate chat = Make(kTypes);
  const auto told = [&](const std::string& schema) {
    const std::string tools =
        R"([{"type":"function","function":{"name":"f","parameters":)" + schema + "}}]";
    absl::StatusOr<RenderedChat> rendered = absl::InternalError("did not run");
    EXPECT_TRUE(RunOnStack(kSmallStackBytes, [&] {
      rendered = chat.Render(std::vector{Message("user", "Hi")}, {.tools_json = tools});
    }));
    return rendered.ok() ? rendered->Text() : std::string(rendered.status().message());
  };
  const std::string why = told(R"({"type": "file"})");
  EXPECT_THAT(why, HasSubstr("chat template fails on these messages: line 1: "));
  EXPECT_THAT(why, HasSubstr("nests deeper than 400 levels"));
  std::string schema = R"({"type":"integer"})", types = "whole";
  for (int level = 0; level < 20; ++level) {
    schema = R"({"type":"object","properties":{"a":)" + schema + "}}";
    types = "a: " + types + ";";
  }
  EXPECT_EQ(told(schema), types + "<user>Hi");
}

TEST(FileTemplateTest, WhatTheFileAddsIsThere) {
  EXPECT_EQ(TextOf(Make(kDefaultSystem), {Message("user", "Hi")}),
            "<|im_start|>system\nBe Willow.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
            "<|im_start|>assistant\n");
}

TEST(FileTemplateTest, MarkupAndTextStayApart) {
  const std::vector<ChatMessage> talk = {Message("user", "<|im_end|>")};
  const RenderedChat chat =
      Make(kDefaultSystem).Render(talk, {.add_generation_prompt = true}).value();
  ASSERT_EQ(chat.pieces.size(), 3u);
  EXPECT_TRUE(chat.pieces[0].special);
  EXPECT_THAT(chat.pieces[0].text, testing::EndsWith("<|im_start|>user\n"));
  EXPECT_FALSE(chat.pieces[1].special);
  EXPECT_EQ(chat.pieces[1].message, 0);
  EXPECT_EQ(chat.pieces[1].text, "<|im_end|>");
  EXPECT_TRUE(chat.pieces[2].special);
}

TEST(FileTemplateTest, FixedSpansMoveWithTheText) {
  std::vector<ChatMessage> talk = {Message("user", "  keep this ")};
  talk[0].fixed_spans = {{2, 6}, {0, 3}, {11, 12}};
  const RenderedChat chat = Make(kStrict).Render(talk, {}).value();
  EXPECT_EQ(chat.pieces[1].text, "keep this");
  EXPECT_EQ(chat.pieces[1].fixed_spans, (std::vector<ByteSpan>{{0, 4}, {0, 1}}));
}

TEST(FileTemplateTest, TraitsAreFoundOut) {
  const TemplateTraits loose = Make(kDefaultSystem).traits();
  EXPECT_TRUE(loose.takes_system && loose.takes_late_system && loose.takes_tool);
  EXPECT_TRUE(loose.takes_developer);
  EXPECT_FALSE(loose.alternates);
  const TemplateTraits strict = Make(kStrict).traits();
  EXPECT_FALSE(strict.takes_system || strict.takes_late_system || strict.takes_developer);
  EXPECT_TRUE(strict.alternates);
}

TEST(FileTemplateTest, ASystemMessageThatTheTemplateRefusesIsPutInFrontOfTheQuestion) {
  EXPECT_EQ(TextOf(Make(kStrict), {Message("system", "Be kind."), Message("user", " Hi ")}),
            "<s><u>Be kind.\n\n Hi<a>");
  EXPECT_THAT(TextOf(Make(kStrict), {Message("system", "Be kind.")}), HasSubstr("messages[0]"));
}

TEST(FileTemplateTest, ARefusalIsToldInTheTemplatesWords) {
  const std::vector<ChatMessage> talk = {Message("user", "a"), Message("user", "b")};
  const auto rendered = Make(kStrict).Render(talk, {});
  EXPECT_EQ(rendered.status(), absl::InvalidArgumentError(
                                   "the model's chat template refuses these messages: Take turns"));
}

TEST(FileTemplateTest, CallsAreToldAsTheTemplateTakesThem) {
  ChatMessage calls = Message("assistant", "");
  for (const char* arguments : {R"({"x": 1})", R"("{\"x\": 1}")"}) {
    calls.tool_calls_json =
        std::string(R"([{"function": {"name": "f", "arguments": )") + arguments + "}}]";
    EXPECT_EQ(TextOf(Make(kCalls), {Message("user", "q"), calls}), "<user>q<assistant>f(x=1)");
    const FileTemplate texts = Make(
        "{% for m in messages %}{% if m.content is none %}{{ m.tool_calls[0].function.name + "
        "m.tool_calls[0].function.arguments }}{% else %}{{ m.content }}{% endif %}{% endfor %}");
    EXPECT_EQ(TextOf(texts, {Message("user", "q"), calls}), "qf{\"x\": 1}");
  }
  calls.tool_calls_json = "[";
  EXPECT_THAT(TextOf(Make(kCalls), {calls}), HasSubstr("messages[0]"));
}

TEST(FileTemplateTest, ToolsSelectTheirVariant) {
  const FileTemplate chat = Make(kDefaultSystem, kCalls);
  const ChatOptions with_tools = {.tools_json = R"([{"name": "<|im_end|>"}])"};
  EXPECT_EQ(TextOf(chat, {Message("user", "q")}, with_tools),
            "<user>q[{\"name\": \"<|im_end|>\"}]");
  EXPECT_THAT(TextOf(chat, {Message("user", "q")}), HasSubstr("Willow"));
  EXPECT_THAT(TextOf(chat, {Message("user", "q")}, {.tools_json = "{"}), HasSubstr("tools"));
  const std::vector<ChatMessage> talk = {Message("user", "q")};
  const RenderedChat rendered = chat.Render(talk, with_tools).value();
  for (const ChatPiece& piece : rendered.pieces) {
    EXPECT_FALSE(piece.special && piece.text.find("im_end") != std::string::npos)
        << "a tool's name is no markup";
  }
}

constexpr char kLookTool[] = R"([{"type": "function", "function": {"name": "look"}}])";

TEST(FileTemplateTest, WhetherToolsAndCallsAreShownIsFoundOut) {
  const TemplateTraits tools = Make(kToolTemplate).traits();
  EXPECT_TRUE(tools.takes_tools);
  EXPECT_TRUE(tools.takes_calls);
  EXPECT_TRUE(tools.takes_tool);
  EXPECT_FALSE(tools.takes_developer);
  const TemplateTraits none = Make(kDefaultSystem).traits();
  EXPECT_FALSE(none.takes_tools);
  EXPECT_FALSE(none.takes_calls);
  EXPECT_TRUE(Make(kDefaultSystem, kCalls).traits().takes_tools) << "its variant does";
}

TEST(FileTemplateTest, ArgumentsAreVariables) {
  const FileTemplate chat = Make(kToolTemplate);
  const std::vector<ChatMessage> messages = {Message("user", "q")};
  const auto with = [&](std::string_view arguments) {
    return TextOf(chat, messages, {.add_generation_prompt = true, .arguments_json = arguments});
  };
  const std::string plain = with("");
  EXPECT_EQ(with("{}"), plain);
  EXPECT_EQ(with(R"({"enable_thinking": true, "unknown": [1]})"), plain);
  EXPECT_EQ(with(R"({"enable_thinking": false})"), plain + "<think>\n\n</think>\n\n");
  EXPECT_THAT(with(R"({"messages": []})"), HasSubstr("\"messages\" is the template's own"));
  EXPECT_THAT(with(R"({"bos_token": "x"})"), HasSubstr("bos_token"));
  EXPECT_THAT(with("{"), HasSubstr("template arguments"));
  EXPECT_THAT(with("[1]"), HasSubstr("not a JSON object"));
  // Their text is no markup.
  const FileTemplate shows = Make("{{ messages[0].content }}{{ style }}");
  const auto rendered =
      shows.Render(messages, {.arguments_json = R"({"style": "<|im_end|>"})"}).value();
  for (const ChatPiece& piece : rendered.pieces) EXPECT_FALSE(piece.special);
}

TEST(FileTemplateTest, ToolsThatNobodyShowsAreRefusedWithTheRemedy) {
  const std::vector<ChatMessage> messages = {Message("user", "q")};
  const ChatTemplate built_in = ChatTemplate::FromName("chatml").value();
  const auto refusal = [&](const ChatOptions& options) {
    return std::string(built_in.Render(messages, options).status().message());
  };
  EXPECT_THAT(refusal({.tools_json = kLookTool}), HasSubstr("chatml is built in and shows none"));
  EXPECT_THAT(refusal({.tools_json = kLookTool}), HasSubstr("model.chat_template"));
  EXPECT_THAT(refusal({.arguments_json = R"({"a": 1})"}), HasSubstr("template arguments"));
  EXPECT_EQ(refusal({.tools_json = "[]", .arguments_json = "{}"}), "");
  ChatMessage calls = Message("assistant", "");
  calls.tool_calls_json = R"([{"function": {"name": "f", "arguments": {}}}])";
  EXPECT_THAT(
      std::string(built_in.Render(std::vector{messages[0], calls}, true).status().message()),
      HasSubstr("messages[1]: tool_calls"));
}

// A plain template, and a variant for tools that wants the name of each result's tool: calls and
// results are shown by the variant, also in a later turn that gives no tools.
TEST(FileTemplateTest, AVariantForToolsShowsCallsAndResults) {
  constexpr std::string_view kPlain =
      "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
  constexpr std::string_view kNames =
      "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
      "{% for m in messages %}[{{ m.role }}]"
      "{% if m.role == 'tool' %}"
      "{% if m.name is not defined %}{{ raise_exception('no name') }}{% endif %}{{ m.name }}="
      "{% endif %}{{ m.content or '' }}"
      "{% for call in m.tool_calls or [] %}<{{ call.function.name }}>{% endfor %}{% endfor %}";
  const FileTemplate both = Make(kPlain, kNames);
  EXPECT_TRUE(both.traits().takes_tools);
  EXPECT_TRUE(both.traits().takes_calls);
  EXPECT_TRUE(both.traits().takes_tool);
  EXPECT_FALSE(Make(kPlain).traits().takes_calls) << "a result's name is no call";
  ChatMessage calls = Message("assistant", "");
  calls.tool_calls_json =
      R"([{"id": "i", "type": "function", "function": {"name": "look", "arguments": "{}"}}])";
  ChatMessage result = Message("tool", "a cat");
  result.name = "look";
  result.tool_call_id = "i";
  const std::vector<ChatMessage> turn = {Message("user", "q"), calls, result};
  EXPECT_THAT(TextOf(both, turn, {.tools_json = kLookTool}),
              HasSubstr("[assistant]<look>[tool]look=a cat"));
  EXPECT_EQ(TextOf(both, turn, {}), "[user]q[assistant]<look>[tool]look=a cat");
  EXPECT_EQ(TextOf(both, {Message("user", "q")}, {}), "[user]q");
}

// What a model wrote wrongly is shown as it is, or within an object to templates that look inside.
TEST(FileTemplateTest, MalformedArgumentsAreShown) {
  const FileTemplate shows = Make(
      "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}");
  const FileTemplate looks = Make(
      "{% for m in messages %}{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
      "{{ c.function.name }}({% for k, v in c.function.arguments.items() %}{{ k }}={{ v }};"
      "{% endfor %}){% endfor %}{% endfor %}");
  const auto text = [](const FileTemplate& chat, const std::string& arguments) {
    ChatMessage calls = Message("assistant", "");
    calls.tool_calls_json =
        ToolCallsJson(std::vector<ToolCall>{{.id = "i", .name = "f", .arguments_json = arguments}});
    return TextOf(chat, {Message("user", "q"), calls}, {});
  };
  EXPECT_EQ(text(looks, R"({"a": 1})"), "qf(a=1;)");
  for (const char* nothing : {"", " ", "null", "{}"}) {
    EXPECT_EQ(text(shows, nothing), "qf({})") << nothing;
    EXPECT_EQ(text(looks, nothing), "qf()") << nothing;
  }
  for (const char* malformed : {"{'a': 1}", R"({"a": )", "[1]", "x"}) {
    EXPECT_THAT(text(shows, malformed), HasSubstr("qf(\"")) << malformed;
    EXPECT_EQ(text(looks, malformed), absl::StrCat("qf(malformed_arguments=", malformed, ";)"));
  }
}

TEST(FileTemplateTest, TheDateIsTheConversations) {
  const FileTemplate chat = Make("{{ strftime_now('%Y') }}{{ messages[0].content }}");
  EXPECT_EQ(TextOf(chat, {Message("user", "q")}, {.unix_s = 1'000'000'000}), "2001q");
}

ChatTemplate FromFile(std::string_view text, std::string* error = nullptr) {
  GgufWriter writer;
  writer.SetString("tokenizer.chat_template", text);
  const std::string path =
      testing::TempDir() + "withy_file_template_" + std::to_string(getpid()) + ".gguf";
  EXPECT_TRUE(writer.Write(path).ok());
  const GgufFile file = GgufFile::Open(path).value();
  std::filesystem::remove(path);
  auto chat = ChatTemplate::FromFile(file);
  if (!chat.ok() && error != nullptr) *error = std::string(chat.status().message());
  return chat.ok() ? *std::move(chat) : ChatTemplate::FromName("plain").value();
}

TEST(FileTemplateTest, WhatCannotBeExecutedFallsBackAndSaysWhy) {
  const ChatTemplate executed = FromFile(kDefaultSystem);
  EXPECT_TRUE(executed.executes_file());
  EXPECT_EQ(executed.note(), "");
  EXPECT_EQ(executed.name(), "chatml");
  EXPECT_NE(executed.fingerprint(), FromFile(kCalls).fingerprint());
  EXPECT_EQ(FromFile(kCalls).name(), "other");

  const ChatTemplate recognised =
      FromFile("\n{% import 'x' %}{{ '<|im_start|>' + messages[0]['content'] }}");
  EXPECT_FALSE(recognised.executes_file());
  EXPECT_EQ(recognised.name(), "chatml");
  EXPECT_THAT(recognised.note(), HasSubstr("line 2: {% import %}"));
  EXPECT_THAT(recognised.note(), HasSubstr("chatml"));

  std::string error;
  FromFile("{% import 'x' %}", &error);
  EXPECT_THAT(error, HasSubstr("{% import %}"));
  EXPECT_THAT(error, HasSubstr("--chat-template NAME"));
}

TEST(FileTemplateTest, TheBosThatTheTokenizerAddsIsDropped) {
  const std::vector<ChatMessage> talk = {Message("user", "<s>")};
  RenderedChat chat = Make(kStrict).Render(talk, {}).value();
  chat.DropFront("<s>");
  EXPECT_EQ(chat.Text(), "<u><s>");
  chat.DropFront("<u>");
  chat.DropFront("<s>");
  EXPECT_EQ(chat.Text(), "<s>") << "a user's text stays";
}

}  // namespace
}  // namespace withy::engine
