#include "engine/chat/tool_calls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "base/test_seed.h"
#include "engine/chat/call_forms/form.h"

namespace withy::engine {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;

constexpr char kTools[] = R"([
  {"type": "function", "function": {"name": "weather", "parameters": {"type": "object",
      "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}},
  {"type": "function", "function": {"name": "time"}}])";

AnswerParts Parse(std::string_view answer) { return ToolCallParser(kTools).Parse(answer); }

// NAME(ARGUMENTS) of each call.
std::vector<std::string> Calls(std::string_view answer) {
  std::vector<std::string> calls;
  for (const ToolCall& call : Parse(answer).calls) {
    calls.push_back(call.name + "(" + call.arguments_json + ")");
  }
  return calls;
}

TEST(ToolCallsTest, EveryPublishedFormIsRead) {
  const std::string paris = R"(weather({"city": "Paris"}))";
  for (
      const std::string_view answer : {
          "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": "
          "\"Paris\"}}\n</tool_call>",
          "<tool_call>{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"weather\"}",
          R"({"name": "weather", "parameters": {"city": "Paris"}})",
          R"(<|python_tag|>{"name": "weather", "parameters": {"city": "Paris"}})",
          R"({"type": "function", "name": "weather", "parameters": {"city": "Paris"}})",
          R"({"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}})",
          R"([TOOL_CALLS] [{"name": "weather", "arguments": {"city": "Paris"}}])",
          R"([TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}, "id": "abcdefghi"}])",
          R"([TOOL_CALLS]weather[ARGS]{"city": "Paris"})",
          R"([TOOL_CALLS]weather[CALL_ID]abc123def[ARGS]{"city": "Paris"})",
          R"([TOOL_CALLS]weather{"city": "Paris"})",
          R"(<function=weather>{"city": "Paris"}</function>)",
          R"(<function=weather>{"city": "Paris"})",
          R"(<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}])",
          R"(<|tool_call|>[{"name": "weather", "arguments": {"city": "Paris"}}]<|/tool_call|>)",
          R"(<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "weather", "parameters": {"city": "Paris"}}]<|END_ACTION|>)",
          "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n"
          "{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Paris\"}"
          "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          R"(<tool_call>{"name": "weather", "arguments": "{\"city\": \"Paris\"}"}</tool_call>)",
      }) {
    EXPECT_THAT(Calls(answer), ElementsAre(paris)) << answer;
    EXPECT_EQ(Parse(answer).text, "") << answer;
  }
}

// Where a form is found says which it is, whatever their order.
TEST(ToolCallsTest, NoOpeningBeginsWithAnother) {
  for (const CallForm* form : CallForms()) {
    ASSERT_NE(form->opening, "");
    for (const CallForm* other : CallForms()) {
      EXPECT_EQ(form->opening.starts_with(other->opening), form == other)
          << form->opening << " and " << other->opening;
    }
  }
}

TEST(ToolCallsTest, ParametersInTagsHaveTheirTypes) {
  EXPECT_THAT(Calls("<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n"
                    "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>"),
              ElementsAre(R"(weather({"city":"12","days":3}))"));
  EXPECT_THAT(Calls("<function=time>\n</function>"), ElementsAre("time({})"));
}

TEST(ToolCallsTest, SeveralCallsKeepTheirOrder) {
  const auto both = ElementsAre("time({})", R"(weather({"city": "Rome"}))");
  EXPECT_THAT(Calls("<tool_call>\n{\"name\": \"time\"}\n</tool_call>\n<tool_call>\n"
                    "{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>"),
              both);
  EXPECT_THAT(Calls(R"([TOOL_CALLS] [{"name": "time", "arguments": {}},
                        {"name": "weather", "arguments": {"city": "Rome"}}])"),
              both);
  EXPECT_THAT(Calls(R"([TOOL_CALLS]time[ARGS]{}[TOOL_CALLS]weather[ARGS]{"city": "Rome"})"), both);
  EXPECT_THAT(
      Calls(
          R"({"name": "time", "parameters": {}}; {"name": "weather", "parameters": {"city": "Rome"}})"),
      both);
}

TEST(ToolCallsTest, ArgumentsAreAsTheModelWroteThem) {
  const std::string written = R"({"b": 1.50, "a": 12345678901234567890123, "c": "\u00e9 {"})";
  const AnswerParts parts =
      Parse("<tool_call>{\"name\": \"time\", \"arguments\": " + written + "}</tool_call>");
  ASSERT_EQ(parts.calls.size(), 1u);
  EXPECT_EQ(parts.calls[0].arguments_json, written);
}

TEST(ToolCallsTest, TextAroundCallsIsKept) {
  EXPECT_EQ(Parse("Let me look.\n\n<tool_call>{\"name\": \"time\"}</tool_call>").text,
            "Let me look.");
  EXPECT_EQ(Parse("One <tool_call>{\"name\": \"time\"}</tool_call>\nTwo\n").text, "One\nTwo\n");
  EXPECT_EQ(Parse("<think>time?</think>\n\n{\"name\": \"time\"}").text, "<think>time?</think>");
}

TEST(ToolCallsTest, WhatIsNoCallStaysText) {
  for (const std::string_view answer :
       {"",
        " \n",
        "Paris.",
        "<tool_call>",
        "<tool_call></tool_call>",
        "<tool_call>{\"name\": \"time\"",
        "<tool_call>{\"name\": 5}</tool_call>",
        "<tool_call>{\"name\": \"time\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"time\"} and more",
        "[TOOL_CALLS]",
        "[TOOL_CALLS] []",
        "[TOOL_CALLS]two words[ARGS]{}",
        "<|python_tag|>print(1)",
        "<function=time>",
        R"({"name": "unknown", "parameters": {}})",
        R"({"answer": 5})",
        R"([1, 2])",
        R"({"name": "time"} is how I would call it)",
        "<think><tool_call>{\"name\": \"time\"}</tool_call></think>It is noon.",
        "<tool_call>{\"name\": \"a b\"}</tool_call>"}) {
    const AnswerParts parts = Parse(answer);
    EXPECT_THAT(parts.calls, IsEmpty()) << answer;
    EXPECT_EQ(parts.text, answer);
  }
  EXPECT_EQ(Parse("<tool_call>oops</tool_call> <tool_call>{\"name\": \"time\"}</tool_call>").text,
            "<tool_call>oops</tool_call>");
}

TEST(ToolCallsTest, NestingAndNumbersAreBounded) {
  const std::string deep(100'000, '[');
  EXPECT_THAT(Calls("<tool_call>{\"name\": \"time\", \"arguments\": {\"a\": " + deep), IsEmpty());
  std::string many, marked;
  for (int i = 0; i < 200; ++i) many += "<tool_call>{\"name\": \"time\"}</tool_call>";
  EXPECT_EQ(Parse(many).calls.size(), kMaxToolCalls);
  for (int i = 0; i < 20'000; ++i) marked += "<tool_call>[";
  EXPECT_EQ(Parse(marked).text, marked);
}

TEST(ToolCallsTest, IdsAreThoseOfTheCall) {
  std::vector<ToolCall> calls(10), again(10), other(10);
  GiveIds(7, &calls);
  GiveIds(7, &again);
  GiveIds(8, &other);
  EXPECT_EQ(calls, again);
  std::set<std::string> ids;
  for (const auto* list : {&calls, &other}) {
    for (const ToolCall& call : *list) {
      EXPECT_EQ(call.id.size(), 9u);
      ids.insert(call.id);
    }
  }
  EXPECT_EQ(ids.size(), 20u);
}

TEST(ToolCallsTest, JsonIsOpenAis) {
  EXPECT_EQ(ToolCallsJson({}), "");
  const ToolCall call{.id = "i", .name = "time", .arguments_json = R"({"a":1})"};
  EXPECT_EQ(ToolCallsJson({&call, 1}),
            R"([{"id":"i","type":"function","function":{"name":"time","arguments":"{\"a\":1}"}}])");
  EXPECT_TRUE(IsEmptyJson(" [ ]\n"));
  EXPECT_TRUE(IsEmptyJson("{}"));
  EXPECT_FALSE(IsEmptyJson("[1]"));
}

// An answer in pieces: what was shown never has to be taken back.
void ExpectShownIsKept(const std::string& answer, std::mt19937& random) {
  const AnswerParts whole = Parse(answer);
  size_t shown = 0;
  for (size_t end = 0; end <= answer.size();) {
    const size_t before = shown;
    shown = ShownBeforeCalls(std::string_view(answer).substr(0, end), shown);
    ASSERT_GE(shown, before);
    ASSERT_LE(shown, end);
    if (end == answer.size()) break;
    end += std::min<size_t>(1 + random() % 4, answer.size() - end);
  }
  ASSERT_THAT(whole.text, StartsWith(answer.substr(0, shown))) << answer;
}

// Random sequences of what calls are made of.
TEST(ToolCallsTest, NoAnswerBreaksTheParser) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::vector<std::string> parts = {"{",
                                    "}",
                                    "[",
                                    "]",
                                    "\"",
                                    "\\",
                                    ",",
                                    ":",
                                    " ",
                                    "\n",
                                    "a",
                                    "time",
                                    "weather",
                                    "null",
                                    "1e5",
                                    "-",
                                    ";",
                                    "\xff",
                                    "</think>",
                                    "<think>",
                                    "```json\n",
                                    "```",
                                    "\"name\": \"time\"",
                                    "{\"name\": \"weather\", \"arguments\": {\"city\": \"x\"}}",
                                    "\"arguments\": {}",
                                    "<function=time>",
                                    "<parameter=a>",
                                    "</parameter>",
                                    "text. "};
  for (const std::string_view marker : CallMarkers()) parts.emplace_back(marker);
  int called = 0;
  for (int round = 0; round < 30'000; ++round) {
    std::string answer;
    for (uint32_t i = random() % 12; i > 0; --i) answer += parts[random() % parts.size()];
    called += Parse(answer).calls.empty() ? 0 : 1;
    ExpectShownIsKept(answer, random);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(called, 100) << "the answers must have calls for this to test anything";
}

TEST(ToolCallsTest, PlainTextIsShownAtOnce) {
  EXPECT_EQ(ShownBeforeCalls("Hello", 0), 5u);
  EXPECT_EQ(ShownBeforeCalls("a < b", 0), 5u);
  EXPECT_EQ(ShownBeforeCalls("Hello ", 0), 5u) << "white space may be in front of a call";
  EXPECT_EQ(ShownBeforeCalls("Hello <tool", 0), 5u);
  EXPECT_EQ(ShownBeforeCalls("Hello <tool shed>", 5), 17u);
  EXPECT_EQ(ShownBeforeCalls("{\"na", 0), 0u);
  EXPECT_EQ(ShownBeforeCalls("{\"answer", 0), 8u);
  EXPECT_EQ(ShownBeforeCalls("code: {\"name", 6), 12u);
}

}  // namespace
}  // namespace withy::engine
