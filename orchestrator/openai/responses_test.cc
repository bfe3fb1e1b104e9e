// Requests and answers of OpenAI's Responses API as documents, without HTTP.
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/openai/responses_answer.h"
#include "orchestrator/openai/responses_request.h"

namespace withy::orchestrator {
namespace {

using nlohmann::json;
using testing::HasSubstr;

absl::StatusOr<OpenAiCall> ParseResponse(const std::string& body) {
  return ParseResponsesCall(body, [](const char*) { return std::nullopt; });
}

constexpr char kAgent[] = R"({"model": "target", "max_output_tokens": 9, "store": true,
    "instructions": "be brief", "truncation": "auto", "metadata": {"a": "b"},
    "tools": [{"type": "function", "name": "look", "strict": true,
               "parameters": {"type": "object", "properties": {}}}],
    "tool_choice": {"type": "function", "name": "look"},
    "input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
              {"type": "reasoning", "id": "r", "summary": []},
              {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
              {"type": "function_call_output", "call_id": "c", "output": "a cat"}]})";

TEST(ResponsesRequestTest, ItemsAreMessagesCallsAndResults) {
  const auto call = ParseResponse(kAgent);
  ASSERT_TRUE(call.ok()) << call.status();
  const v1::GenerateRequest& request = call->request;
  const v1::Messages& messages = request.prompt().messages();
  ASSERT_EQ(messages.messages_size(), 4);
  EXPECT_EQ(messages.messages(0).role(), "system");
  EXPECT_EQ(messages.messages(0).content(), "be brief");
  EXPECT_EQ(messages.messages(1).content(), "hi");
  EXPECT_EQ(messages.messages(2).tool_calls(0).name(), "look");
  EXPECT_EQ(messages.messages(3).role(), "tool");
  EXPECT_EQ(messages.messages(3).tool_call_id(), "c");
  EXPECT_EQ(json::parse(messages.tools_json())[0]["function"]["strict"], true);
  EXPECT_EQ(request.output_format().tool_calls().tool(), "look");
  EXPECT_EQ(request.limits().max_tokens(), 9u);
  EXPECT_EQ(request.truncation(), v1::TRUNCATION_OLDEST);
  const auto text = ParseResponse(R"({"input": "hi", "text": {"format": {"type": "json_schema",
      "name": "n", "strict": true, "schema": {"type": "object"}}}})");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->request.output_format().json_schema(), R"({"type":"object"})");
}

TEST(ResponsesRequestTest, WhatIsNotSupportedIsRefusedByName) {
  for (const auto& [body, named] : std::vector<std::pair<std::string, std::string>>{
           {"{}", "input must be"},
           {R"({"input": "x", "previous_response_id": "resp_1"})", "previous_response_id"},
           {R"({"input": "x", "background": true})", "background"},
           {R"({"input": [{"type": "item_reference", "id": "x"}]})", "input[0].type"},
           {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})",
            "input[0].content[0].type"},
           {R"({"input": "x", "truncation": "middle"})", "truncation"},
           {R"({"input": "x", "tools": [{"type": "web_search"}]})", "tools[0].type"}}) {
    EXPECT_THAT(ParseResponse(body).status().message(), HasSubstr(named)) << body;
  }
}

TEST(ResponsesAnswerTest, AStreamBuildsItsItems) {
  const auto choices = ChoicesOf(*ParseResponse(kAgent));
  ResponsesAnswer answer(choices, 5);
  v1::GenerateResponse started, delta, finished;
  started.mutable_started()->set_call_id("c1");
  started.mutable_started()->set_model("m");
  delta.mutable_delta()->set_text("Let me see.");
  v1::GenerateFinished& outcome = *finished.mutable_finished();
  outcome.set_text(R"(Let me see.<tool_call>{"name": "look", "arguments": {}}</tool_call>)");
  outcome.set_reason(v1::FINISH_REASON_TOOL_CALLS);
  outcome.mutable_usage()->set_prompt_tokens(7);
  outcome.mutable_usage()->set_completion_tokens(2);
  v1::ToolCall* call = outcome.add_tool_calls();
  call->set_id("t2");
  call->set_name("look");
  call->set_arguments_json("{}");
  std::vector<ServerEvent> events;
  for (const auto& event : {started, delta, finished}) {
    for (ServerEvent& one : answer.OnEvent(0, event)) events.push_back(std::move(one));
  }
  for (ServerEvent& one : answer.End()) events.push_back(std::move(one));
  std::vector<std::string> names;
  for (const ServerEvent& one : events) {
    const json document = json::parse(one.data);
    EXPECT_EQ(document["type"], one.name);
    EXPECT_EQ(document["sequence_number"], names.size());
    names.push_back(one.name);
  }
  EXPECT_THAT(
      names,
      testing::ElementsAre(
          "response.created", "response.in_progress", "response.output_item.added",
          "response.content_part.added", "response.output_text.delta", "response.output_text.done",
          "response.content_part.done", "response.output_item.done", "response.output_item.added",
          "response.function_call_arguments.delta", "response.function_call_arguments.done",
          "response.output_item.done", "response.completed"));
  const json whole = json::parse(answer.Document());
  EXPECT_EQ(json::parse(events.back().data)["response"], whole);
  EXPECT_EQ(whole["id"], "resp_c1");
  EXPECT_EQ(whole["created_at"], 5);
  EXPECT_EQ(whole["status"], "completed");
  EXPECT_EQ(whole["instructions"], "be brief");
  EXPECT_EQ(whole["metadata"]["a"], "b");
  EXPECT_EQ(whole["output"][0]["content"][0]["text"], "Let me see.");
  EXPECT_EQ(whole["output"][1]["call_id"], "t2");
  EXPECT_EQ(whole["usage"]["total_tokens"], 9);
}

TEST(ResponsesAnswerTest, ACutAnswerIsIncomplete) {
  const auto choices = ChoicesOf(*ParseResponse(R"({"input": "hi"})"));
  ResponsesAnswer answer(choices, 5);
  v1::GenerateResponse started, finished;
  started.mutable_started()->set_call_id("c1");
  finished.mutable_finished()->set_text("Let");
  finished.mutable_finished()->set_reason(v1::FINISH_REASON_MAX_TOKENS);
  answer.OnEvent(0, started);
  answer.OnEvent(0, finished);
  EXPECT_EQ(answer.End().back().name, "response.incomplete");
  EXPECT_EQ(json::parse(answer.Document())["incomplete_details"]["reason"], "max_output_tokens");
  const json failed = json::parse(answer.Fail(absl::InternalError("broke")).back().data);
  EXPECT_EQ(failed["response"]["error"]["message"], "broke");
}

}  // namespace
}  // namespace withy::orchestrator
