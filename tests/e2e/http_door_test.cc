// The HTTP door of the five real processes: with curl, and what conversations reuse. Neighbour:
// http_clients_test.cc asks it with the packages that applications use.
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "grammar/format_check.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"
#include "tests/e2e/calling_model.h"

namespace withy::e2e {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// Standard output of a shell command, and its exit code.
std::pair<std::string, int> Shell(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char piece[4096];
  while (const size_t got = fread(piece, 1, sizeof piece, pipe)) output.append(piece, got);
  return {output, pclose(pipe)};
}

class HttpDoorTest : public ::testing::Test {
 protected:
  explicit HttpDoorTest(const std::string& model = WITHY_SOURCE_DIR
                        "/models/withy-pocket-q8_0.gguf")
      : url_(absl::StrCat("127.0.0.1:", FreePort())),
        board_({absl::StrCat("orchestrator.http_listen=", url_), "model.path=" + model}) {
    board_.StartAll();
    EXPECT_TRUE(board_.WaitUntilServing()) << board_.Log("orchestrator");
    token_ = board_.BindApp("app");
  }

  // curl's output: of a POST of `body`, else of a GET.
  std::string Curl(const std::string& path, const json& body = nullptr,
                   const std::string& options = "") const {
    const std::string file = board_.dir() + "/body.json";
    if (!body.is_null()) {
      FILE* out = fopen(file.c_str(), "w");
      fputs(body.dump().c_str(), out);
      fclose(out);
    }
    return Shell(absl::StrCat("curl -sS --max-time 60 ", options, " -H 'Authorization: Bearer ",
                              token_, "' ", body.is_null() ? "" : "--data-binary @" + file,
                              " http://", url_, path))
        .first;
  }
  json Chat(const json& messages) const {
    return json::parse(
        Curl("/v1/chat/completions",
             {{"model", "target"}, {"messages", messages}, {"max_tokens", 8}, {"temperature", 0}}),
        nullptr, false);
  }

  std::string url_;
  Board board_;
  std::string token_;
};

bool Installed(const char* program) {
  return Shell(absl::StrCat("command -v ", program)).second == 0;
}

TEST_F(HttpDoorTest, CurlGetsAnswersAndEvents) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  const json messages = {{{"role", "user"}, {"content", "tell me a story"}}};
  const json whole = Chat(messages);
  const std::string text = whole["choices"][0]["message"]["content"];
  EXPECT_GE(whole["usage"]["completion_tokens"], 1);

  const std::string events =
      Curl("/v1/chat/completions",
           {{"messages", messages}, {"max_tokens", 8}, {"temperature", 0}, {"stream", true}}, "-N");
  std::string streamed;
  for (const absl::string_view line : absl::StrSplit(events, '\n')) {
    if (!absl::StartsWith(line, "data: {")) continue;
    const json chunk = json::parse(std::string(line.substr(6)));
    if (chunk["choices"].empty()) continue;
    streamed += chunk["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(streamed, text);
  EXPECT_THAT(events, HasSubstr("data: [DONE]"));
  EXPECT_THAT(Curl("/v1/models"), HasSubstr("\"owned_by\":\"withy\""));
  // The pocket model's template knows no tools.
  EXPECT_THAT(Curl("/v1/chat/completions",
                   {{"messages", messages},
                    {"tools", {{{"type", "function"}, {"function", {{"name", "look"}}}}}}}),
              HasSubstr("use a model whose"));
}

// Also after the orchestrator, which knows which context is whose, was killed.
TEST_F(HttpDoorTest, ConversationsReuseKv) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  std::string rules = "You answer in short sentences.";
  while (rules.size() < 1200) rules += " You never say more than you were asked.";
  json messages = {{{"role", "system"}, {"content", rules}},
                   {{"role", "user"}, {"content", "tell me a story"}}};
  const auto turn = [&](const std::string& next) {
    json answer = Chat(messages);
    EXPECT_TRUE(answer.contains("choices")) << answer;
    messages.push_back(answer["choices"][0]["message"]);
    messages.push_back({{"role", "user"}, {"content", next}});
    return answer["usage"];
  };
  json usage = turn("and then?");
  const uint32_t first = usage["prompt_tokens"];
  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 0);
  usage = turn("and how does it end?");
  EXPECT_GE(usage["prompt_tokens_details"]["cached_tokens"], first * 8 / 10);
  EXPECT_GT(usage["prompt_tokens"], first) << "the whole conversation is counted";

  board_.Kill("orchestrator");
  board_.Start("orchestrator");
  ASSERT_TRUE(board_.WaitUntilServing());
  usage = turn("really?");
  EXPECT_GE(usage["prompt_tokens_details"]["cached_tokens"], first);
}

// As clients of other servers use it, with the real worker behind it.
TEST_F(HttpDoorTest, WhatOtherServersTakeIsTaken) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  const json asked = {{{"role", "user"}, {"content", "tell me a story"}}};
  const auto chat = [&](const json& messages, const json& more) {
    json body = {{"messages", messages}, {"max_tokens", 4}, {"temperature", 0}};
    if (!more.is_null()) body.update(more);
    return json::parse(Curl("/v1/chat/completions", body), nullptr, false);
  };
  const auto text = [](const json& answer) {
    return answer.contains("choices")
               ? answer["choices"][0]["message"]["content"].get<std::string>()
               : answer.dump();
  };
  const std::string story = text(chat(asked, {{"max_tokens", 12}}));
  EXPECT_EQ(text(chat(asked, {{"max_tokens", 12.0}, {"top_k", -1}, {"stop", ""}})), story);
  EXPECT_EQ(text(chat(asked, {{"max_tokens", 1 << 20}, {"stop", {story.substr(4, 4)}}})),
            story.substr(0, story.find(story.substr(4, 4))));
  // An answer goes on where it was cut, with what it would have said.
  const std::string begun = text(chat(asked, {}));
  ASSERT_TRUE(story.starts_with(begun)) << story;
  json goes_on = asked;
  goes_on.push_back({{"role", "assistant"}, {"content", begun}});
  EXPECT_EQ(begun + text(chat(goes_on, {{"max_tokens", 8}})), story);
  EXPECT_TRUE(chat({{{"role", "user"}, {"content", ""}}}, {}).contains("choices"));
  std::string lengthy;
  while (lengthy.size() < 400'000) lengthy += "word ";
  for (const size_t bytes : {lengthy.size(), size_t{60'000}}) {
    const json error =
        chat({{{"role", "user"}, {"content", lengthy.substr(0, bytes)}}}, {})["error"];
    EXPECT_EQ(error["code"], "context_length_exceeded") << error;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("maximum context length"));
  }
}

// The score of a prompt's tokens is what generating them one by one tells.
TEST_F(HttpDoorTest, APromptsLogprobsAreThoseOfItsTokens) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  const auto complete = [&](const json& body) {
    const json answer = json::parse(Curl("/v1/completions", body), nullptr, false);
    EXPECT_TRUE(answer.contains("choices")) << answer;
    return answer["choices"][0];
  };
  const json made =
      complete({{"prompt", "the boat"}, {"max_tokens", 6}, {"temperature", 0}, {"logprobs", 2}});
  const std::string whole = "the boat" + made["text"].get<std::string>();
  for (const int tokens : {0, 1}) {
    const json scored = complete({{"prompt", whole},
                                  {"max_tokens", tokens},
                                  {"temperature", 0},
                                  {"logprobs", 2},
                                  {"echo", true}});
    EXPECT_TRUE(scored["text"].get<std::string>().starts_with(whole));
    const json& told = scored["logprobs"];
    EXPECT_TRUE(told["token_logprobs"][0].is_null());
    const size_t before = told["tokens"].size() - static_cast<size_t>(tokens) - 6;
    for (size_t i = 0; i < 6; ++i) {
      EXPECT_EQ(told["tokens"][before + i], made["logprobs"]["tokens"][i]);
      EXPECT_NEAR(told["token_logprobs"][before + i].get<double>(),
                  made["logprobs"]["token_logprobs"][i].get<double>(), 0.05);
    }
    size_t offset = 0;
    for (size_t i = 0; i < told["tokens"].size(); ++i) {
      EXPECT_EQ(told["text_offset"][i], offset);
      offset += told["tokens"][i].get<std::string>().size();
    }
  }
}

TEST_F(HttpDoorTest, TextsGetVectorsThatTellWhatIsAlike) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  const auto embed = [&](const json& input) {
    return json::parse(Curl("/v1/embeddings", {{"model", "target"}, {"input", input}}), nullptr,
                       false);
  };
  const json answer =
      embed({"The boat is on the lake.", "A boat was on a lake.", "Add 7 and 12, then divide."});
  ASSERT_TRUE(answer.contains("data")) << answer;
  ASSERT_EQ(answer["data"].size(), 3u);
  std::vector<std::vector<double>> vectors;
  for (const json& one : answer["data"]) vectors.push_back(one["embedding"]);
  const auto cosine = [&](size_t a, size_t b) {
    return std::inner_product(vectors[a].begin(), vectors[a].end(), vectors[b].begin(), 0.0);
  };
  EXPECT_NEAR(cosine(0, 0), 1, 1e-5);
  EXPECT_GT(cosine(0, 1), cosine(0, 2));
  EXPECT_GT(answer["usage"]["prompt_tokens"], 10);
  EXPECT_EQ(embed("The boat is on the lake.")["data"][0]["embedding"],
            answer["data"][0]["embedding"])
      << "whatever stands beside it";
  std::string lengthy;
  while (lengthy.size() < 60'000) lengthy += "word ";
  const json error = embed({"short", lengthy})["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded") << error;
  EXPECT_EQ(error["param"], "input[1]");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr("tokens, the window of"));
}

TEST_F(HttpDoorTest, TheBoardsMetricsAreServed) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  EXPECT_TRUE(Chat({{{"role", "user"}, {"content", "hello"}}}).contains("choices"));
  EXPECT_THAT(Curl("/metrics"), HasSubstr("withy_up{process=\"model_worker\"} 1"));
  board_.Kill("profiler_agent");
  const json away = json::parse(Curl("/metrics"), nullptr, false);
  EXPECT_THAT(away["error"]["message"].get<std::string>(), HasSubstr("profiler_agent"));
}

// Two requests of one curl share its connection.
TEST_F(HttpDoorTest, AConnectionIsUsedAgain) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  const std::string models = absl::StrCat(" http://", url_, "/v1/models");
  const std::string connects =
      Curl("/v1/models", nullptr,
           absl::StrCat("-o /dev/null -o /dev/null -w '%{num_connects} '", models));
  EXPECT_EQ(connects, "1 0 ");
}

// Prompts that are tokens are all read before the first is answered.
TEST_F(HttpDoorTest, AWrongTokenOfALaterPromptIsToldBeforeAnyAnswer) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  const auto complete = [&](const json& prompt) {
    return Curl("/v1/completions", {{"prompt", prompt}, {"max_tokens", 2}, {"stream", true}});
  };
  EXPECT_THAT(complete({{5, 6}, {7}}), HasSubstr("[DONE]"));
  const json refused = json::parse(complete({{5, 6}, {999'999'999}}), nullptr, false);
  ASSERT_TRUE(refused.contains("error")) << "no event was sent";
  EXPECT_THAT(refused["error"]["message"].get<std::string>(), HasSubstr("999999999"));
}

// A context that an app made stays, whatever its title; what is kept for it goes.
TEST_F(HttpDoorTest, AnAppsOwnContextIsNeverDeleted) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  const auto stub = board_.NewStub();
  v1::CreateContextRequest create;
  create.set_title("openai");
  grpc::ClientContext context;
  Authorise(&context, token_);
  v1::CreateContextResponse own;
  ASSERT_TRUE(stub->CreateContext(&context, create, &own).ok());
  for (int i = 0; i < 18; ++i) {
    const std::string said = absl::StrCat("Note ", i, ": ", std::string(1100, 'a'));
    const json answer = json::parse(
        Curl("/v1/chat/completions",
             {{"messages", {{{"role", "user"}, {"content", said}}}}, {"max_tokens", 1}}),
        nullptr, false);
    ASSERT_TRUE(answer.contains("choices")) << answer;
  }
  grpc::ClientContext list_context;
  Authorise(&list_context, token_);
  v1::ListContextsResponse contexts;
  ASSERT_TRUE(stub->ListContexts(&list_context, {}, &contexts).ok());
  int kept = 0, found = 0;
  for (const v1::ContextInfo& info : contexts.contexts()) {
    if (info.kept_by_service()) ++kept;
    if (info.context_id() != own.context().context_id()) continue;
    ++found;
    EXPECT_FALSE(info.kept_by_service());
  }
  EXPECT_EQ(found, 1);
  EXPECT_LE(kept, 17);
  EXPECT_GE(kept, 16);
}

class AgentLoopTest : public HttpDoorTest {
 protected:
  AgentLoopTest() : HttpDoorTest(CallingModelPath()) {}

  static json Tools() {
    return {{{"type", "function"},
             {"function", {{"name", "look"}, {"parameters", {{"type", "object"}}}}}}};
  }
  json Ask(const json& messages, const std::string& options = "") const {
    return json::parse(
        Curl("/v1/chat/completions",
             {{"messages", messages}, {"tools", Tools()}, {"max_tokens", 32}, {"temperature", 0}},
             options),
        nullptr, false);
  }
  void RestartAll() {
    for (const std::string& process : kProcesses) board_.Kill(process);
    board_.StartAll();
    ASSERT_TRUE(board_.WaitUntilServing()) << board_.Log("orchestrator");
  }
  // Messages of the app's only context.
  std::vector<v1::Message> Recorded() const {
    const auto stub = board_.NewStub();
    grpc::ClientContext context;
    Authorise(&context, token_);
    v1::ListContextsResponse contexts;
    EXPECT_TRUE(stub->ListContexts(&context, {}, &contexts).ok());
    EXPECT_EQ(contexts.contexts_size(), 1);
    if (contexts.contexts_size() != 1) return {};
    v1::GetContextResponse got;
    EXPECT_TRUE(GetContext(*stub, token_, contexts.contexts(0).context_id(), &got).ok());
    std::vector<v1::Message> messages;
    for (const v1::ContextMessage& message : got.messages()) messages.push_back(message.message());
    return messages;
  }
};

// Between a call and its result, and after the answer, everything is killed.
TEST_F(AgentLoopTest, ItGoesOnAfterEveryProcessWasKilled) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  std::string rules = "You look before you speak.";
  while (rules.size() < 1200) rules += " You never say more than you were asked.";
  json messages = {{{"role", "developer"}, {"content", rules}},
                   {{"role", "user"}, {"content", "What is it?"}}};
  const json first = Ask(messages);
  ASSERT_TRUE(first.contains("choices")) << first;
  const json& called = first["choices"][0];
  EXPECT_EQ(called["finish_reason"], "tool_calls");
  EXPECT_TRUE(called["message"]["content"].is_null());
  ASSERT_EQ(called["message"]["tool_calls"].size(), 1u) << first;
  const json& call = called["message"]["tool_calls"][0];
  EXPECT_EQ(call["function"]["name"], "look");
  EXPECT_EQ(call["function"]["arguments"], R"({"at": "it"})");

  RestartAll();
  std::vector<v1::Message> recorded = Recorded();
  ASSERT_EQ(recorded.size(), 3u);
  EXPECT_EQ(recorded[2].content(), "");
  ASSERT_EQ(recorded[2].tool_calls_size(), 1);
  EXPECT_EQ(recorded[2].tool_calls(0).id(), call["id"]);
  messages.push_back(called["message"]);
  messages.push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "a cat"}});
  const json second = Ask(messages);
  ASSERT_TRUE(second.contains("choices")) << second;
  EXPECT_EQ(second["choices"][0]["message"]["content"], kCalledText);
  EXPECT_EQ(second["choices"][0]["finish_reason"], "stop");
  recorded = Recorded();
  ASSERT_EQ(recorded.size(), 5u) << "the conversation goes on in its context";
  EXPECT_EQ(recorded[3].tool_call_id(), call["id"]);

  RestartAll();
  messages.push_back(second["choices"][0]["message"]);
  messages.push_back({{"role", "user"}, {"content", "Are you sure?"}});
  const json third = Ask(messages);
  ASSERT_TRUE(third.contains("choices")) << third;
  EXPECT_EQ(third["choices"][0]["message"]["content"], kCalledText);
  EXPECT_EQ(Recorded().size(), 7u);
}

// The model would call `look` with arguments of its own.
TEST_F(AgentLoopTest, WhatMustBeCalledIsCalledAsItsSchemaSays) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  if (!WITHY_XGRAMMAR) GTEST_SKIP() << "this build has no XGrammar";
  json tools = Tools();
  tools.push_back(
      {{"type", "function"},
       {"function",
        {{"name", "hear"},
         {"strict", true},
         {"parameters",
          {{"type", "object"},
           {"properties", {{"what", {{"enum", {"a bird"}}}}, {"loud", {{"type", "boolean"}}}}},
           {"required", {"what", "loud"}},
           {"additionalProperties", false}}}}}});
  json body = {{"messages", {{{"role", "user"}, {"content", "What is it?"}}}},
               {"tools", tools},
               {"max_tokens", 200},
               {"temperature", 0},
               {"tool_choice", {{"type", "function"}, {"function", {{"name", "hear"}}}}}};
  const json answer = json::parse(Curl("/v1/chat/completions", body), nullptr, false);
  ASSERT_TRUE(answer.contains("choices")) << answer;
  const json& choice = answer["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls") << answer;
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << answer;
  const json& function = choice["message"]["tool_calls"][0]["function"];
  EXPECT_EQ(function["name"], "hear");
  const json arguments = json::parse(function["arguments"].get<std::string>());
  EXPECT_EQ(arguments["what"], "a bird");
  EXPECT_TRUE(arguments["loud"].is_boolean());
  body["tools"][1]["function"]["parameters"]["not"] = json::object();
  EXPECT_THAT(Curl("/v1/chat/completions", body), HasSubstr("tools[1].function.parameters"));
  body["tool_choice"]["function"]["name"] = "smell";
  EXPECT_THAT(Curl("/v1/chat/completions", body), HasSubstr("\"param\":\"tool_choice"));
}

// What the model would call by itself is held to the schema of a strict tool, and text stays text.
TEST_F(AgentLoopTest, WhatMayBeCalledIsCalledAsItsSchemaSays) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  if (!WITHY_XGRAMMAR) GTEST_SKIP() << "this build has no XGrammar";
  const json look = {{"name", "look"},
                     {"strict", true},
                     {"parameters",
                      {{"type", "object"},
                       {"properties", {{"what", {{"enum", {"a bird"}}}}}},
                       {"required", {"what"}},
                       {"additionalProperties", false}}}};
  json body = {{"messages", {{{"role", "user"}, {"content", "What is it?"}}}},
               {"tools", json::array({{{"type", "function"}, {"function", look}}})},
               {"parallel_tool_calls", false},
               {"max_tokens", 200},
               {"temperature", 0}};
  const json answer = json::parse(Curl("/v1/chat/completions", body), nullptr, false);
  ASSERT_TRUE(answer.contains("choices")) << answer;
  const json& message = answer["choices"][0]["message"];
  ASSERT_TRUE(message["tool_calls"].is_array()) << answer;
  ASSERT_EQ(message["tool_calls"].size(), 1u) << answer;
  const json& function = message["tool_calls"][0]["function"];
  EXPECT_EQ(function["name"], "look");
  EXPECT_EQ(json::parse(function["arguments"].get<std::string>()), json({{"what", "a bird"}}));
  body["messages"].push_back(message);
  body["messages"].push_back({{"role", "tool"},
                              {"tool_call_id", message["tool_calls"][0]["id"]},
                              {"content", "It purrs."}});
  const json told = json::parse(Curl("/v1/chat/completions", body), nullptr, false);
  ASSERT_TRUE(told.contains("choices")) << told;
  EXPECT_EQ(told["choices"][0]["message"]["content"], kCalledText);
  EXPECT_EQ(told["choices"][0]["finish_reason"], "stop");
}

TEST_F(AgentLoopTest, ARetryIsToldTheSameCalls) {
  if (!Installed("curl")) GTEST_SKIP() << "curl is missing (apt-get install curl)";
  const json messages = {{{"role", "user"}, {"content", "What is it?"}}};
  const json first = Ask(messages, "-H 'idempotency-key: k'");
  ASSERT_EQ(first["choices"][0]["finish_reason"], "tool_calls") << first;
  RestartAll();
  const json again = Ask(messages, "-H 'idempotency-key: k'");
  EXPECT_TRUE(again["withy"]["replayed"]) << again;
  EXPECT_EQ(again["choices"][0], first["choices"][0]);
}

}  // namespace
}  // namespace withy::e2e
