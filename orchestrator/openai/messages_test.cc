// Requests and answers of Anthropic's Messages API as documents, without HTTP.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/openai/messages_answer.h"
#include "orchestrator/openai/messages_request.h"

namespace withy::orchestrator {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<OpenAiCall> ParseMessages(const std::string& body) {
  return ParseMessagesCall(body, [](const char*) { return std::nullopt; });
}

constexpr char kTurns[] = R"({"model": "target", "max_tokens": 9, "stop_sequences": ["END"],
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "look", "description": "Looks.", "strict": true,
               "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}}}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    "messages": [
      {"role": "user", "content": [{"type": "text", "text": "what is "},
                                   {"type": "text", "text": "there?"}]},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "it"}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a cat"}]},
        {"type": "text", "text": "so?"}]}]})";

TEST(MessagesRequestTest, BlocksAreMessagesCallsAndResults) {
  const auto call = ParseMessages(kTurns);
  ASSERT_TRUE(call.ok()) << call.status();
  const v1::GenerateRequest& request = call->request;
  EXPECT_EQ(request.limits().max_tokens(), 9u);
  EXPECT_THAT(request.limits().stop(), ElementsAre("END"));
  const v1::Messages& messages = request.prompt().messages();
  ASSERT_EQ(messages.messages_size(), 5);
  const auto told = [&](int i) {
    const v1::Message& one = messages.messages(i);
    return absl::StrCat(one.role(), ": ", one.content());
  };
  EXPECT_EQ(told(0), "system: be brief");
  EXPECT_EQ(told(1), "user: what is there?");
  EXPECT_EQ(told(2), "assistant: Let me see.");
  EXPECT_EQ(messages.messages(2).tool_calls(0).arguments_json(), R"({"at":"it"})");
  EXPECT_EQ(told(3), "tool: a cat");
  EXPECT_EQ(messages.messages(3).tool_call_id(), "t1");
  EXPECT_EQ(told(4), "user: so?");
  const json tool = json::parse(messages.tools_json())[0]["function"];
  EXPECT_EQ(tool["name"], "look");
  EXPECT_EQ(tool["strict"], true);
  EXPECT_EQ(tool["parameters"]["type"], "object");
  EXPECT_TRUE(request.output_format().tool_calls().one_call());
}

TEST(MessagesRequestTest, AnOutputFormatIsTheFormOfTheAnswer) {
  const auto call = ParseMessages(
      R"({"max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "output_config":
          {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "boolean"}}}})");
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(json::parse(call->request.output_format().json_schema()), json({{"type", "boolean"}}));
  const auto none = ParseMessages(
      R"({"max_tokens": 9, "messages": [{"role": "user", "content": "x"}],
          "output_config": {"effort": "low", "format": null}})");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->request.has_output_format());
}

TEST(MessagesRequestTest, InstructionsMayChangeBetweenTurns) {
  const auto call = ParseMessages(
      R"({"max_tokens": 9, "messages": [{"role": "user", "content": "x"},
          {"role": "system", "content": [{"type": "text", "text": "be brief"}]}]})");
  ASSERT_TRUE(call.ok()) << call.status();
  const v1::Message& changed = call->request.prompt().messages().messages(1);
  EXPECT_EQ(changed.role(), "system");
  EXPECT_EQ(changed.content(), "be brief");
}

// By the code the anthropic package sends the whole conversation instead.
TEST(MessagesRequestTest, AThreadOfTheServerIsRefusedByItsCode) {
  for (const char* thread :
       {R"({"type": "create"})", R"({"type": "continue", "previous_message_id": "msg_1"})"}) {
    const auto call = ParseMessages(absl::StrCat(
        R"({"max_tokens": 9, "messages": [{"role": "user", "content": "x"}], "thread": )", thread,
        "}"));
    const json error = json::parse(MessagesError(call.status(), ""))["error"];
    EXPECT_EQ(error["type"], "invalid_request_error");
    EXPECT_EQ(error["details"]["error_code"], "thread_unsupported_request") << error;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("thread is not supported"));
  }
  EXPECT_FALSE(
      json::parse(MessagesError(ParseMessages("{}").status(), ""))["error"].contains("details"));
}

TEST(MessagesRequestTest, WhatIsWrongIsNamedAsTheClientWroteIt) {
  for (const auto& [body, named] : std::vector<std::pair<std::string, std::string>>{
           {R"({"messages": [{"role": "user", "content": "x"}]})", "max_tokens is missing"},
           {R"({"max_tokens": 1})", "messages must be"},
           {R"({"max_tokens": 1, "messages": [{"role": "system", "content": "x"}]})", "system"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": [{"type": "image"}]}]})",
            "messages[0].content[0].type is \"image\""},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
                "tools": [{"type": "web_search_1", "name": "w"}]})",
            "tools[0].type"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
                "output_config": {"format": {"type": "xml"}}})",
            "output_config.format.type is \"xml\""},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
                "output_config": {"format": {"type": "json_schema"}}})",
            "output_config.format.schema is missing"},
           {R"({"max_tokens": 1, "messages": [{"role": "user", "content": "x"}],
                "tool_choice": {"type": "one"}})",
            "tool_choice.type"}}) {
    EXPECT_THAT(ParseMessages(body).status().message(), HasSubstr(named)) << body;
  }
}

v1::GenerateResponse StartedMessage() {
  v1::GenerateResponse event;
  event.mutable_started()->set_call_id("c1");
  event.mutable_started()->set_model("m");
  event.mutable_started()->mutable_decision()->set_predicted_prompt_tokens(4);
  event.mutable_started()->mutable_decision()->set_predicted_reused_tokens(3);
  return event;
}

v1::GenerateResponse TextDelta(const std::string& text) {
  v1::GenerateResponse event;
  event.mutable_delta()->set_text(text);
  return event;
}

v1::GenerateResponse FinishedMessage(const std::string& text, v1::FinishReason reason) {
  v1::GenerateResponse event;
  event.mutable_finished()->set_text(text);
  event.mutable_finished()->set_reason(reason);
  v1::Usage& usage = *event.mutable_finished()->mutable_usage();
  usage.set_prompt_tokens(7);
  usage.set_reused_tokens(3);
  usage.set_completion_tokens(2);
  return event;
}

TEST(MessagesAnswerTest, AStreamHasBlocksThatBeginAndEnd) {
  const auto choices = ChoicesOf(*ParseMessages(kTurns));
  MessagesAnswer answer(choices, 1);
  const std::string text = "<think>hm</think>Yes.";
  v1::GenerateResponse finished = FinishedMessage(
      text + "<tool_call>{\"name\": \"look\", \"arguments\": {\"at\": 1}}</tool_call>",
      v1::FINISH_REASON_TOOL_CALLS);
  v1::ToolCall* call = finished.mutable_finished()->add_tool_calls();
  call->set_id("t2");
  call->set_name("look");
  call->set_arguments_json("{\"at\": 1}");
  std::vector<ServerEvent> events;
  for (const auto& event : {StartedMessage(), TextDelta(text), finished}) {
    for (ServerEvent& one : answer.OnEvent(0, event)) events.push_back(std::move(one));
  }
  for (ServerEvent& one : answer.End()) events.push_back(std::move(one));
  std::string names, thought, said;
  for (const ServerEvent& one : events) {
    const json document = json::parse(one.data);
    EXPECT_EQ(document["type"], one.name);
    if (one.name == "content_block_delta") {
      thought += document["delta"].value("thinking", "");
      said += document["delta"].value("text", "");
    } else {
      absl::StrAppend(
          &names, one.name,
          document.contains("index") ? absl::StrCat(" ", document["index"].get<int>()) : "", ", ");
    }
  }
  EXPECT_EQ(names,
            "message_start, content_block_start 0, content_block_stop 0, content_block_start 1, "
            "content_block_stop 1, content_block_start 2, content_block_stop 2, message_delta, "
            "message_stop, ");
  EXPECT_EQ(thought, "hm");
  EXPECT_EQ(said, "Yes.");
  const json begin = json::parse(events.front().data)["message"];
  EXPECT_EQ(begin["id"], "msg_c1");
  EXPECT_EQ(begin["usage"]["input_tokens"], 4);
  const json end = json::parse(events[events.size() - 2].data);
  EXPECT_EQ(end["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(end["usage"]["output_tokens"], 2);

  const json whole = json::parse(answer.Document());
  ASSERT_EQ(whole["content"].size(), 3u) << whole;
  EXPECT_EQ(whole["content"][0]["thinking"], "hm");
  EXPECT_EQ(whole["content"][1]["text"], "Yes.");
  EXPECT_EQ(whole["content"][2]["input"]["at"], 1);
  EXPECT_EQ(whole["usage"]["input_tokens"], 4);
  EXPECT_EQ(whole["usage"]["cache_read_input_tokens"], 3);
}

TEST(MessagesAnswerTest, ReasonsAndErrorsHaveTheirNames) {
  const auto choices = ChoicesOf(*ParseMessages(kTurns));
  for (const auto& [reason, name] : std::vector<std::pair<v1::FinishReason, std::string>>{
           {v1::FINISH_REASON_END_OF_TURN, "end_turn"},
           {v1::FINISH_REASON_MAX_TOKENS, "max_tokens"},
           {v1::FINISH_REASON_STOP_STRING, "stop_sequence"}}) {
    MessagesAnswer answer(choices, 1);
    answer.OnEvent(0, StartedMessage());
    answer.OnEvent(0, FinishedMessage("Yes.", reason));
    const json whole = json::parse(answer.Document());
    EXPECT_EQ(whole["stop_reason"], name);
    EXPECT_EQ(whole["stop_sequence"],
              reason == v1::FINISH_REASON_STOP_STRING ? json("END") : json(nullptr));
  }
  const json error = json::parse(MessagesError(absl::UnauthenticatedError("who?"), ""));
  EXPECT_EQ(error["type"], "error");
  EXPECT_EQ(error["error"]["type"], "authentication_error");
  EXPECT_EQ(error["error"]["message"], "who?");
}

}  // namespace
}  // namespace withy::orchestrator
