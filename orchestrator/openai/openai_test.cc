// Requests and answers of OpenAI's API as documents, without HTTP.
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/openai/conversations.h"
#include "orchestrator/openai/openai_answer.h"
#include "orchestrator/openai/openai_request.h"

namespace withy::orchestrator {
namespace {

using nlohmann::json;
using testing::HasSubstr;

using Headers = std::map<std::string, std::string>;

absl::StatusOr<OpenAiCall> ParseChat(const std::string& body, const Headers& headers = {},
                                     OpenAiKind kind = OpenAiKind::kChat) {
  return ParseOpenAiCall(kind, body, [&](const char* name) -> std::optional<std::string> {
    const auto found = headers.find(name);
    if (found == headers.end()) return std::nullopt;
    return found->second;
  });
}

// A chat with one message and `further` members.
std::string Chat(const std::string& further) {
  return absl::StrCat(R"({"messages": [{"role": "user", "content": "hi"}])",
                      further.empty() ? "" : ", ", further, "}");
}

TEST(OpenAiRequestTest, AChatIsMessagesWithEarlierOnesFixed) {
  const auto call = ParseChat(R"({"model": "m", "messages": [
      {"role": "developer", "content": "be brief"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
      {"role": "assistant", "content": null},
      {"role": "user", "content": "c", "name": "ignored"}], "unknown": {"x": [1]}})");
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.model(), "m");
  const auto& messages = call->request.prompt().messages().messages();
  ASSERT_EQ(messages.size(), 4);
  EXPECT_EQ(messages[0].role(), "developer");
  EXPECT_EQ(messages[1].content(), "ab");
  ASSERT_EQ(messages[1].fixed_size(), 1);
  EXPECT_EQ(messages[1].fixed(0).end(), 2u);
  EXPECT_EQ(messages[2].content(), "");
  EXPECT_EQ(messages[2].fixed_size(), 0);
  EXPECT_EQ(messages[3].content(), "c");
  EXPECT_EQ(messages[3].fixed_size(), 0) << "the call's own words may be shortened";
  EXPECT_FALSE(call->stream);
}

TEST(OpenAiRequestTest, ParametersBecomeFieldsOfTheContract) {
  const auto call = ParseChat(
      Chat(
          R"("temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 11, "max_tokens": 5, "stop": ["x"],
              "logprobs": true, "top_logprobs": 2, "n": 1, "presence_penalty": 0,
              "response_format": {"type": "text"}, "stream": true,
              "stream_options": {"include_usage": true}, "tools": [], "logit_bias": {})"),
      {{"x-slo-ttft-ms", "100"},
       {"x-llm-d-slo-ttft-ms", "300"},
       {"x-llm-d-slo-tpot-ms", "20.5"},
       {"x-slo-strict", "true"},
       {"x-withy-speculation", "lookup"},
       {"x-withy-priority", "-3"},
       {"idempotency-key", "k"}});
  ASSERT_TRUE(call.ok()) << call.status();
  const v1::GenerateRequest& request = call->request;
  EXPECT_FLOAT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_FLOAT_EQ(request.sampling().top_p(), 0.9f);
  EXPECT_EQ(request.sampling().top_k(), 7u);
  EXPECT_EQ(request.sampling().seed(), 11u);
  EXPECT_EQ(request.limits().max_tokens(), 5u);
  EXPECT_EQ(request.limits().stop(0), "x");
  EXPECT_EQ(request.limits().logprobs(), 2u);
  EXPECT_EQ(request.slo().ttft_ms(), 100);
  EXPECT_EQ(request.slo().tpot_ms(), 20.5);
  EXPECT_TRUE(request.slo().strict());
  EXPECT_EQ(request.speculation(), v1::SPECULATION_LOOKUP);
  EXPECT_EQ(request.priority(), -3);
  EXPECT_EQ(request.request_id(), "k");
  EXPECT_TRUE(call->stream);
  EXPECT_TRUE(call->include_usage);
  EXPECT_FALSE(ParseChat(Chat(""))->request.has_slo());
}

TEST(OpenAiRequestTest, NothingIsLeftOutUnlessItIsAskedFor) {
  EXPECT_EQ(ParseChat(Chat(""))->request.truncation(), v1::TRUNCATION_UNSPECIFIED);
  EXPECT_EQ(ParseChat(Chat(R"("withy": {"truncation": "none"})"))->request.truncation(),
            v1::TRUNCATION_NONE);
  EXPECT_EQ(ParseChat(Chat(R"("withy": {"truncation": "oldest"})"))->request.truncation(),
            v1::TRUNCATION_OLDEST);
}

TEST(OpenAiRequestTest, WhatIsWrongIsNamed) {
  const auto error = [](const std::string& body, const Headers& headers = {}) {
    return std::string(ParseChat(body, headers).status().message());
  };
  EXPECT_THAT(error("{"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("\xff"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("an object"));
  EXPECT_THAT(error("{}"), HasSubstr("messages"));
  EXPECT_THAT(error(R"({"messages": ["x"]})"), HasSubstr("messages[0]"));
  EXPECT_THAT(error(R"({"messages": [{"content": "x"}]})"), HasSubstr("messages[0].role"));
  EXPECT_THAT(error(R"({"messages": [{"role": "user", "content": 5}]})"),
              HasSubstr("messages[0].content"));
  EXPECT_THAT(error(R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})"),
              HasSubstr("messages[0].content[0].type is \"image_url\""));
  for (const auto& [further, named] : std::map<std::string, std::string>{
           {R"("temperature": "hot")", "temperature"},
           {R"("max_tokens": -2)", "max_tokens is -2"},
           {R"("max_tokens": 0)", "max_tokens is 0"},
           {R"("max_tokens": 1.5)", "max_tokens is 1.5"},
           {R"("max_completion_tokens": 0)", "max_completion_tokens is 0"},
           {R"("max_tokens": true)", "max_tokens is of type boolean"},
           {R"("top_k": -2)", "top_k is -2"},
           {R"("seed": 0.5)", "seed is 0.5"},
           {R"("stop": 5)", "stop"},
           {R"("stop": [5])", "stop"},
           {R"("n": 9)", "n is 9"},
           {R"("n": 0)", "n is 0"},
           {R"("top_logprobs": 2)", "logprobs"},
           {R"("top_logprobs": 21, "logprobs": true)", "top_logprobs"},
           {R"("presence_penalty": "0.5")", "presence_penalty"},
           {R"("logit_bias": {"x": 1})", "logit_bias has \"x\""},
           {R"("logit_bias": {"5": "1"})", "logit_bias[5]"},
           {R"("response_format": {"type": "xml"})", "response_format.type is \"xml\""},
           {R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
           {R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})",
            "response_format.json_schema.schema"},
           {R"("withy": {"regex": "a", "grammar": "root ::= \"a\""})", "withy.regex"},
           {R"("response_format": {"type": "json_object"}, "withy": {"regex": "a"})",
            "withy.regex"},
           {R"("seed": "x")", "seed"},
           {R"("stream": "yes")", "stream"},
           {R"("stream_options": true)", "stream_options"},
           {R"("tools": {})", "tools is of type object"},
           {R"("tool_choice": "required")", "tool_choice asks for a call, but there are no tools"},
           {R"("tool_choice": {"type": "function"})", "tool_choice"},
           {R"("parallel_tool_calls": 1)", "parallel_tool_calls"},
           {R"("chat_template_kwargs": [])", "chat_template_kwargs"},
           {R"("functions": [{"name": "f"}])", "give tools instead"},
           {R"("withy": "oldest")", "withy is of type string"},
           {R"("withy": {"truncation": "middle"})", "withy.truncation is \"middle\""},
           {R"("model": 5)", "model"}}) {
    EXPECT_THAT(error(Chat(further)), HasSubstr(named)) << further;
  }
  EXPECT_THAT(error(Chat(""), {{"x-slo-ttft-ms", "soon"}}), HasSubstr("x-slo-ttft-ms"));
  EXPECT_THAT(error(Chat(""), {{"x-slo-ttft-ms", "nan"}}), HasSubstr("x-slo-ttft-ms"));
  EXPECT_THAT(error(Chat(""), {{"x-slo-ttft-ratio", "2"}}), HasSubstr("x-slo-ttft-ratio"));
  EXPECT_THAT(error(Chat(""), {{"x-withy-speculation", "all"}}), HasSubstr("lookup"));
}

// What clients send for "none", "all" and "no limit", and how some languages write whole numbers.
TEST(OpenAiRequestTest, UsualDefaultsAreTaken) {
  const auto request = [](const std::string& further) {
    const auto call = ParseChat(Chat(further));
    EXPECT_TRUE(call.ok()) << further << ": " << call.status();
    return call.ok() ? call->request : v1::GenerateRequest();
  };
  EXPECT_EQ(request(R"("max_tokens": 4.0)").limits().max_tokens(), 4u);
  for (const char* no_limit : {"-1", "-1.0", "4294967296", "1e30", "99999999999999999999999"}) {
    EXPECT_EQ(request(absl::StrCat("\"max_tokens\": ", no_limit)).limits().max_tokens(), UINT32_MAX)
        << no_limit;
  }
  EXPECT_EQ(request(R"("max_tokens": null, "max_completion_tokens": 7)").limits().max_tokens(), 7u);
  EXPECT_EQ(request(R"("top_k": -1)").sampling().top_k(), 0u);
  EXPECT_EQ(request(R"("top_k": 40.0)").sampling().top_k(), 40u);
  EXPECT_GT(request(R"("top_p": 0)").sampling().top_p(), 0);
  EXPECT_EQ(request(R"("stop": "")").limits().stop_size(), 0);
  EXPECT_EQ(request(R"("stop": ["", null, "x"])").limits().stop_size(), 1);
  EXPECT_FALSE(request(R"("logprobs": false, "top_logprobs": 0)").limits().has_logprobs());
  request(R"("functions": [], "logit_bias": {}, "response_format": {}, "n": 1.0, "tools": [])");
  request(R"("stop": null, "seed": null, "temperature": null, "tool_choice": null)");
  for (const char* prompt : {R"("suffix": "")", R"("suffix": null)", R"("logprobs": false)"}) {
    EXPECT_TRUE(
        ParseChat(absl::StrCat(R"({"prompt": "a", )", prompt, "}"), {}, OpenAiKind::kCompletion)
            .ok())
        << prompt;
  }
  EXPECT_FALSE(ParseChat(R"({"prompt": "a", "suffix": "b"})", {}, OpenAiKind::kCompletion).ok());
}

TEST(OpenAiRequestTest, FormsOfAnswersAreTaken) {
  const auto format = [](const std::string& further) {
    const auto call = ParseChat(Chat(further));
    EXPECT_TRUE(call.ok()) << further << ": " << call.status();
    return call.ok() ? call->request.output_format() : v1::OutputFormat();
  };
  EXPECT_EQ(format(R"("response_format": {"type": "text"})").form_case(),
            v1::OutputFormat::FORM_NOT_SET);
  EXPECT_TRUE(format(R"("response_format": {"type": "json_object"})").json_object());
  EXPECT_EQ(format(R"("response_format": {"type": "json_schema", "json_schema": {"name": "x",
                    "strict": true, "schema": {"type": "object", "properties": {"b": {},
                    "a": {}}}}})")
                .json_schema(),
            R"({"type":"object","properties":{"b":{},"a":{}}})")
      << "in the order of its keys";
  EXPECT_EQ(format(R"("withy": {"regex": "[a-z]+"})").regex(), "[a-z]+");
  EXPECT_EQ(format(R"("withy": {"grammar": "root ::= [a]"})").grammar(), "root ::= [a]");
}

// JavaScript reads every number as a double: what it reads, and sends again, is the same seed.
TEST(OpenAiRequestTest, SeedsAreTheSameAsDoubles) {
  const auto seed = [](const std::string& text) {
    return ParseChat(Chat("\"seed\": " + text))->request.sampling().seed();
  };
  EXPECT_EQ(seed("1.0"), 1u);
  EXPECT_EQ(seed("0"), 0u);
  for (const char* text : {"18446744073709551615", "1.8446744073709552e19", "-1", "-7.0",
                           "9007199254740993", "1e300"}) {
    const uint64_t once = seed(text);
    EXPECT_EQ(static_cast<uint64_t>(static_cast<double>(once)), once) << text;
    EXPECT_EQ(seed(absl::StrCat(once)), once) << text;
  }
}

TEST(OpenAiRequestTest, LimitsAboveTheModelsMeanAllOfIt) {
  v1::ModelDescription model;
  model.set_context_length(100);
  model.set_vocabulary(50);
  auto call = ParseChat(Chat(R"("max_tokens": -1, "top_k": 60)"));
  FitToModel(model, &call->request);
  EXPECT_EQ(call->request.limits().max_tokens(), 100u);
  EXPECT_EQ(call->request.sampling().top_k(), 0u);
  call = ParseChat(Chat(R"("max_tokens": 99, "top_k": 50)"));
  FitToModel(model, &call->request);
  EXPECT_EQ(call->request.limits().max_tokens(), 99u);
  EXPECT_EQ(call->request.sampling().top_k(), 50u);
}

// A document of 100,000 levels neither crashes the parser nor whoever looks at what it made.
TEST(OpenAiRequestTest, DeepDocumentsAreHarmless) {
  const std::string deep(100'000, '[');
  EXPECT_FALSE(ParseChat(deep).ok());
  const std::string closed = deep + std::string(deep.size(), ']');
  EXPECT_THAT(ParseChat(Chat("\"unknown\": " + closed)).status().message(),
              HasSubstr("the request's body is nested 100001 levels deep: at most 72"));
  for (const char* field : {"stop", "tools", "tool_choice", "response_format"}) {
    EXPECT_FALSE(ParseChat(Chat(absl::StrCat("\"", field, "\": ", closed))).ok()) << field;
  }
  EXPECT_FALSE(ParseChat(Chat("\"chat_template_kwargs\": {\"a\": " + closed + "}")).ok());
  EXPECT_FALSE(ParseChat(R"({"messages": [{"role": "assistant", "tool_calls": [{"function":
      {"name": "f", "arguments": )" +
                         closed + "}}]}]}")
                   .ok());
  const auto nested = [](int levels) {
    return std::string(static_cast<size_t>(levels), '[') +
           std::string(static_cast<size_t>(levels), ']');
  };
  EXPECT_TRUE(ParseChat(Chat("\"tools\": " + nested(kMaxJsonDepth))).ok());
  EXPECT_THAT(ParseChat(Chat("\"tools\": " + nested(kMaxJsonDepth + 1))).status().message(),
              HasSubstr("tools is nested 65 levels deep: at most 64; make it flatter"));
}

// Two million keys in objects whose keys were compared with each other would take hours.
TEST(OpenAiRequestTest, ManyKeysAreReadInOnePass) {
  std::string keys;
  for (int i = 0; i < 1'000'000; ++i) absl::StrAppend(&keys, i > 0 ? "," : "", "\"k", i, "\":0");
  EXPECT_TRUE(ParseChat(Chat(keys)).ok());
  EXPECT_TRUE(ParseChat(Chat("\"metadata\": {" + keys + "}")).ok());
}

constexpr char kTools[] =
    R"([{"type": "function", "function": {"name": "look", "description": "z", "parameters": {}}}])";

TEST(OpenAiRequestTest, ToolsCallsAndResultsBecomeTheContracts) {
  const auto call = ParseChat(absl::StrCat(R"({"messages": [
      {"role": "user", "content": "what is there?"},
      {"role": "assistant", "content": null, "tool_calls": [{"id": "i1", "type": "function",
          "function": {"name": "look", "arguments": "{\"at\": 1}"}}]},
      {"role": "tool", "tool_call_id": "i1", "content": "a cat"}],
      "tool_choice": "auto", "parallel_tool_calls": true,
      "chat_template_kwargs": {"enable_thinking": false}, "tools": )",
                                           kTools, "}"));
  ASSERT_TRUE(call.ok()) << call.status();
  const v1::Messages& messages = call->request.prompt().messages();
  EXPECT_THAT(messages.tools_json(), HasSubstr(R"("name":"look","description":"z")"))
      << "keys keep their order";
  EXPECT_EQ(messages.template_arguments_json(), R"({"enable_thinking":false})");
  ASSERT_EQ(messages.messages(1).tool_calls_size(), 1);
  EXPECT_EQ(messages.messages(1).tool_calls(0).id(), "i1");
  EXPECT_EQ(messages.messages(1).tool_calls(0).name(), "look");
  EXPECT_EQ(messages.messages(1).tool_calls(0).arguments_json(), R"({"at": 1})");
  EXPECT_EQ(messages.messages(2).tool_call_id(), "i1");
  EXPECT_EQ(messages.messages(2).fixed_size(), 1) << "a result is never shortened";
  const auto none = ParseChat(Chat(absl::StrCat(R"("tool_choice": "none", "tools": )", kTools)));
  EXPECT_EQ(none->request.prompt().messages().tools_json(), "[]");
}

TEST(OpenAiRequestTest, ACompletionIsRawText) {
  const auto call = ParseChat(R"({"prompt": ["once"], "logprobs": 0, "echo": true})", {},
                              OpenAiKind::kCompletion);
  ASSERT_TRUE(call.ok()) << call.status();
  EXPECT_EQ(call->request.prompt().text(), "once");
  EXPECT_TRUE(call->request.limits().has_logprobs());
  EXPECT_TRUE(call->echo);
  EXPECT_TRUE(
      ParseChat(R"({"prompt": "a", "echo": true, "max_tokens": 0})", {}, OpenAiKind::kCompletion)
          ->only_echo);
  EXPECT_FALSE(ParseChat(R"({"prompt": "a", "max_tokens": 0})", {}, OpenAiKind::kCompletion).ok());
  for (const char* tokens : {"[5, 6]", "[[5, 6]]"}) {
    const auto given =
        ParseChat(absl::StrCat(R"({"prompt": )", tokens, "}"), {}, OpenAiKind::kCompletion);
    ASSERT_TRUE(given.ok()) << given.status();
    EXPECT_EQ(given->prompt_tokens, (std::vector<int32_t>{5, 6}));
  }
  for (const char* wrong : {"[]", "[[]]", "[-1]", "[1.5]", "[1, \"a\"]", "[[1], []]", "{}"}) {
    EXPECT_FALSE(
        ParseChat(absl::StrCat(R"({"prompt": )", wrong, "}"), {}, OpenAiKind::kCompletion).ok())
        << wrong;
  }
}

TEST(OpenAiRequestTest, EachPromptIsAnsweredAsOftenAsAsked) {
  const auto call = ParseChat(R"({"prompt": ["a", [5, 6], "b"], "n": 2, "seed": 7})",
                              {{"idempotency-key", "k"}}, OpenAiKind::kCompletion);
  ASSERT_TRUE(call.ok()) << call.status();
  const std::vector<OpenAiCall> choices = ChoicesOf(*call);
  ASSERT_EQ(choices.size(), 6u);
  const auto told = [&](size_t i) {
    const OpenAiCall& one = choices[i];
    return absl::StrCat(one.choice, " ", one.prompt_tokens.size(), " ", one.request.prompt().text(),
                        " ", one.request.sampling().seed(), " ", one.request.request_id());
  };
  EXPECT_EQ(told(0), "0 0 a 7 k");
  EXPECT_EQ(told(1), "1 0 a 8 k#1");
  EXPECT_EQ(told(3), "3 2  8 k#3");
  EXPECT_EQ(told(4), "4 0 b 7 k#4");
  EXPECT_EQ(ChoicesOf(*ParseChat(Chat(""))).size(), 1u);
  EXPECT_FALSE(ParseChat(Chat(R"("n": 2)"), {{"x-withy-context", "c"}}).ok());
  std::string many = "\"a\"";
  for (int i = 0; i < 64; ++i) many += ", \"a\"";
  EXPECT_THAT(ParseChat(absl::StrCat(R"({"prompt": [)", many, "]}"), {}, OpenAiKind::kCompletion)
                  .status()
                  .message(),
              HasSubstr("at most 64 answers"));
}

TEST(OpenAiRequestTest, WhatMustBeCalledIsTheFormOfTheAnswer) {
  const auto form = [](const std::string& further) {
    const auto call = ParseChat(Chat(absl::StrCat(
        R"("tools": [{"type": "function", "function": {"name": "look"}}], )", further)));
    EXPECT_TRUE(call.ok()) << further << ": " << call.status();
    return call.ok() ? call->request.output_format() : v1::OutputFormat();
  };
  EXPECT_FALSE(form(R"("tool_choice": "auto")").has_tool_calls());
  v1::OutputFormat any =
      form(R"("tool_choice": "required", "response_format": {"type": "json_object"})");
  ASSERT_TRUE(any.has_tool_calls());
  EXPECT_EQ(any.tool_calls().tool(), "");
  EXPECT_FALSE(any.tool_calls().one_call());
  EXPECT_TRUE(
      form(R"("tool_choice": "required", "parallel_tool_calls": false)").tool_calls().one_call());
  const v1::OutputFormat named =
      form(R"("tool_choice": {"type": "function", "function": {"name": "look"}})");
  EXPECT_EQ(named.tool_calls().tool(), "look");
  EXPECT_TRUE(named.tool_calls().one_call());
}

TEST(OpenAiRequestTest, WhatMayBeCalledIsHeldToItsFormWhereThatIsAskedFor) {
  const auto form = [](const std::string& strict, const std::string& further) {
    const auto call = ParseChat(Chat(absl::StrCat(
        R"("tools": [{"type": "function", "function": {"name": "look")", strict, "}}]", further)));
    EXPECT_TRUE(call.ok()) << further << ": " << call.status();
    return call.ok() ? call->request.output_format() : v1::OutputFormat();
  };
  EXPECT_FALSE(form("", R"(, "parallel_tool_calls": true)").has_tool_calls());
  EXPECT_FALSE(form(R"(, "strict": false)", "").has_tool_calls());
  EXPECT_FALSE(form(R"(, "strict": true)", R"(, "tool_choice": "none")").has_tool_calls());
  const v1::OutputFormat strict = form(R"(, "strict": true)", "");
  EXPECT_TRUE(strict.tool_calls().free_text());
  EXPECT_FALSE(strict.tool_calls().one_call());
  const v1::OutputFormat one = form("", R"(, "parallel_tool_calls": false)");
  EXPECT_TRUE(one.tool_calls().free_text());
  EXPECT_TRUE(one.tool_calls().one_call());
  EXPECT_TRUE(form(R"(, "strict": true)", R"(, "tool_choice": "required")").has_tool_calls());
  EXPECT_EQ(form(R"(, "strict": true)", R"(, "withy": {"regex": "a"})").regex(), "a");
  // Either calls, or JSON.
  const v1::OutputFormat either =
      form("", R"(, "response_format": {"type": "json_schema", "json_schema": {"name": "x",
             "schema": {"type": "string"}}})");
  EXPECT_FALSE(either.tool_calls().free_text());
  EXPECT_EQ(either.tool_calls().json_schema(), R"({"type":"string"})");
  EXPECT_EQ(form("", R"(, "tool_choice": "none", "response_format": {"type": "json_object"})")
                .form_case(),
            v1::OutputFormat::kJsonObject);
}

TEST(OpenAiRequestTest, BiasesAndPenaltiesAreSampling) {
  const auto call = ParseChat(Chat(R"("logit_bias": {"9": -100, "5": 1.5}, "presence_penalty": 1,
                                      "frequency_penalty": -0.5)"));
  ASSERT_TRUE(call.ok()) << call.status();
  const v1::Sampling& sampling = call->request.sampling();
  ASSERT_EQ(sampling.logit_bias_size(), 2);
  EXPECT_EQ(sampling.logit_bias(0).token(), 5u);
  EXPECT_FLOAT_EQ(sampling.logit_bias(0).bias(), 1.5f);
  EXPECT_FLOAT_EQ(sampling.presence_penalty(), 1);
  EXPECT_FLOAT_EQ(sampling.frequency_penalty(), -0.5f);
}

v1::GenerateResponse Started() {
  v1::GenerateResponse event;
  event.mutable_started()->set_call_id("c1");
  event.mutable_started()->set_model("m");
  event.mutable_started()->mutable_decision()->set_model_level_percent(40);
  return event;
}

v1::GenerateResponse Delta(const std::string& text) {
  v1::GenerateResponse event;
  event.mutable_delta()->set_text(text);
  v1::Token* token = event.mutable_delta()->add_tokens();
  token->set_logprob(-0.5);
  token->set_text(text);
  v1::TokenAlternative* other = token->add_alternatives();
  other->set_text("\xff");  // half a character
  other->set_logprob(-2);
  return event;
}

v1::GenerateResponse Finished(const std::string& text, v1::FinishReason reason) {
  v1::GenerateResponse event;
  event.mutable_finished()->set_text(text);
  event.mutable_finished()->set_reason(reason);
  v1::Usage* usage = event.mutable_finished()->mutable_usage();
  usage->set_context_tokens(10);
  usage->set_prompt_tokens(5);
  usage->set_completion_tokens(2);
  usage->set_reused_tokens(8);
  usage->set_compressed_kv_tokens(4);
  usage->set_other_level_kv_tokens(3);
  event.mutable_finished()->mutable_latency()->mutable_measured()->set_ttft_ms(12);
  return event;
}

// An answer of one choice: documents as texts, its end behind `finished`.
class OneAnswer {
 public:
  OneAnswer(const OpenAiCall& call, int64_t created)
      : choices_(ChoicesOf(call)), answer_(choices_, created) {}

  std::vector<std::string> OnEvent(const v1::GenerateResponse& event) {
    std::vector<ServerEvent> events = answer_.OnEvent(0, event);
    if (event.has_finished()) {
      finished_ = true;
      for (ServerEvent& one : answer_.End()) events.push_back(std::move(one));
    }
    std::vector<std::string> documents;
    for (const ServerEvent& one : events) documents.push_back(one.data);
    return documents;
  }
  std::string Document() const { return answer_.Document(); }
  v1::Message Said() const { return answer_.Said(0); }
  bool finished() const { return finished_; }

 private:
  bool finished_ = false;
  const std::vector<OpenAiCall> choices_;
  OpenAiAnswer answer_;
};

TEST(OpenAiAnswerTest, AStreamHasRoleTextReasonUsageAndDone) {
  const auto call = ParseChat(Chat(R"("stream": true, "stream_options": {"include_usage": true})"));
  OneAnswer answer(*call, 1700000000);
  std::vector<std::string> sent = answer.OnEvent(Started());
  ASSERT_EQ(sent.size(), 1u);
  json chunk = json::parse(sent[0]);
  EXPECT_EQ(chunk["object"], "chat.completion.chunk");
  EXPECT_EQ(chunk["id"], "chatcmpl-c1");
  EXPECT_EQ(chunk["model"], "m");
  EXPECT_EQ(chunk["created"], 1700000000);
  EXPECT_EQ(chunk["choices"][0]["delta"]["role"], "assistant");
  EXPECT_TRUE(chunk["choices"][0]["finish_reason"].is_null());
  EXPECT_TRUE(chunk["usage"].is_null());
  EXPECT_EQ(chunk["withy"]["decision"]["model_level_percent"], 40);

  EXPECT_TRUE(answer.OnEvent(Started()).empty()) << "the role is sent once";
  sent = answer.OnEvent(Delta("He"));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(json::parse(sent[0])["choices"][0]["delta"]["content"], "He");

  EXPECT_FALSE(answer.finished());
  sent = answer.OnEvent(Finished("He", v1::FINISH_REASON_MAX_TOKENS));
  EXPECT_TRUE(answer.finished());
  ASSERT_EQ(sent.size(), 3u);
  chunk = json::parse(sent[0]);
  EXPECT_EQ(chunk["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chunk["withy"]["latency"]["measured"]["ttft_ms"], 12);
  EXPECT_EQ(chunk["withy"]["compressed_kv_tokens"], 4);
  EXPECT_EQ(chunk["withy"]["other_level_kv_tokens"], 3);
  chunk = json::parse(sent[1]);
  EXPECT_TRUE(chunk["choices"].empty());
  EXPECT_EQ(chunk["usage"]["prompt_tokens"], 15);
  EXPECT_EQ(chunk["usage"]["total_tokens"], 17);
  EXPECT_EQ(chunk["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
  EXPECT_EQ(sent[2], "[DONE]");
}

TEST(OpenAiAnswerTest, ADocumentHasTheWholeAnswerAndItsLogprobs) {
  const auto call = ParseChat(Chat(R"("logprobs": true, "top_logprobs": 1)"));
  OneAnswer answer(*call, 1);
  for (const auto& event : {Started(), Delta("He"), Delta("llo")}) answer.OnEvent(event);
  answer.OnEvent(Finished("Hello", v1::FINISH_REASON_END_OF_TURN));
  const json document = json::parse(answer.Document());
  EXPECT_EQ(document["object"], "chat.completion");
  const json& choice = document["choices"][0];
  EXPECT_EQ(choice["message"]["content"], "Hello");
  EXPECT_EQ(choice["finish_reason"], "stop");
  ASSERT_EQ(choice["logprobs"]["content"].size(), 2u);
  EXPECT_EQ(choice["logprobs"]["content"][1]["token"], "llo");
  const json& other = choice["logprobs"]["content"][0]["top_logprobs"][0];
  EXPECT_EQ(other["token"], "\xef\xbf\xbd") << "U+FFFD";
  EXPECT_EQ(other["bytes"], json::array({255}));
  EXPECT_EQ(document["usage"]["completion_tokens"], 2);
}

v1::GenerateResponse FinishedWithCall(const std::string& text) {
  v1::GenerateResponse event = Finished(text, v1::FINISH_REASON_TOOL_CALLS);
  v1::ToolCall* call = event.mutable_finished()->add_tool_calls();
  call->set_id("i1");
  call->set_name("look");
  call->set_arguments_json(R"({"at": 1})");
  return event;
}

constexpr char kCallText[] =
    "A moment.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call>";

TEST(OpenAiAnswerTest, CallsAreNoText) {
  const auto call = ParseChat(Chat(absl::StrCat(R"("tools": )", kTools)));
  OneAnswer answer(*call, 1);
  for (const auto& event : {Started(), Delta(kCallText), FinishedWithCall(kCallText)}) {
    answer.OnEvent(event);
  }
  const json choice = json::parse(answer.Document())["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  EXPECT_EQ(choice["message"]["content"], "A moment.");
  const json& made = choice["message"]["tool_calls"][0];
  EXPECT_EQ(made["id"], "i1");
  EXPECT_EQ(made["type"], "function");
  EXPECT_EQ(made["function"]["name"], "look");
  EXPECT_EQ(made["function"]["arguments"], R"({"at": 1})");
  EXPECT_EQ(answer.Said().content(), "A moment.");

  OneAnswer silent(*call, 1);
  const std::string only = std::string(kCallText).substr(10);
  for (const auto& event : {Started(), Delta(only), FinishedWithCall(only)}) silent.OnEvent(event);
  EXPECT_TRUE(json::parse(silent.Document())["choices"][0]["message"]["content"].is_null());
}

// Token by token: neither a piece of a call nor the white space before it is sent as text.
TEST(OpenAiAnswerTest, AStreamHoldsBackWhatMayBeACall) {
  const auto call = ParseChat(Chat(absl::StrCat(R"("stream": true, "tools": )", kTools)));
  for (const std::string text : {kCallText, "A <tool> is no call, nor is <tool_call>this."}) {
    const bool calls = text == kCallText;
    OneAnswer answer(*call, 1);
    answer.OnEvent(Started());
    std::string streamed;
    json made;
    std::string reason;
    const auto take = [&](const v1::GenerateResponse& event) {
      for (const std::string& document : answer.OnEvent(event)) {
        if (document == "[DONE]") continue;
        const json choice = json::parse(document)["choices"][0];
        streamed += choice["delta"].value("content", "");
        if (choice["delta"].contains("tool_calls"))
          made.push_back(choice["delta"]["tool_calls"][0]);
        if (choice["finish_reason"].is_string()) reason = choice["finish_reason"];
      }
    };
    for (const char c : text) take(Delta(std::string(1, c)));
    EXPECT_EQ(streamed, calls ? "A moment." : "A <tool> is no call, nor is");
    take(calls ? FinishedWithCall(text) : Finished(text, v1::FINISH_REASON_END_OF_TURN));
    EXPECT_EQ(streamed, calls ? "A moment." : text);
    EXPECT_EQ(reason, calls ? "tool_calls" : "stop");
    ASSERT_EQ(made.size(), calls ? 1u : 0u);
    if (!calls) continue;
    EXPECT_EQ(made[0]["index"], 0);
    EXPECT_EQ(made[0]["function"]["arguments"], R"({"at": 1})");
  }
}

v1::GenerateResponse StartedInThought(bool begun) {
  v1::GenerateResponse event = Started();
  event.mutable_started()->set_answer_begins_in_thought(begun);
  return event;
}

// Whoever began the thought, it stands apart from the answer, whole and as a stream.
TEST(OpenAiAnswerTest, ThoughtsAreNoContent) {
  const auto call = ParseChat(Chat(absl::StrCat(R"("stream": true, "tools": )", kTools)));
  for (const bool begun : {true, false}) {
    for (const bool calls : {true, false}) {
      const std::string said = calls ? "" : "Yes.";
      const std::string text = absl::StrCat(begun ? "Hm, <b>.\n" : "<think>\nHm, <b>.\n",
                                            "</think>\n\n", calls ? kCallText + 10 : said);
      OneAnswer answer(*call, 1);
      answer.OnEvent(StartedInThought(begun));
      std::string thought, content;
      const auto take = [&](const v1::GenerateResponse& event) {
        for (const std::string& document : answer.OnEvent(event)) {
          if (document == "[DONE]") continue;
          const json delta = json::parse(document)["choices"][0]["delta"];
          thought += delta.value("reasoning_content", "");
          content += delta.value("content", "");
        }
      };
      for (const char c : text) take(Delta(std::string(1, c)));
      EXPECT_EQ(thought, "Hm, <b>.");
      take(calls ? FinishedWithCall(text) : Finished(text, v1::FINISH_REASON_END_OF_TURN));
      EXPECT_EQ(thought, "Hm, <b>.");
      EXPECT_EQ(content, said);
      const json message = json::parse(answer.Document())["choices"][0]["message"];
      EXPECT_EQ(message["reasoning_content"], thought);
      EXPECT_EQ(message["content"], calls ? json(nullptr) : json(said));
      EXPECT_EQ(answer.Said().content(), said);
    }
  }
  const auto plain = ParseChat(Chat(""));
  OneAnswer cut(*plain, 1);
  cut.OnEvent(StartedInThought(true));
  cut.OnEvent(Delta("Let me"));
  cut.OnEvent(Finished("Let me", v1::FINISH_REASON_MAX_TOKENS));
  json message = json::parse(cut.Document())["choices"][0]["message"];
  EXPECT_EQ(message["reasoning_content"], "Let me");
  EXPECT_EQ(message["content"], "");
  OneAnswer none(*plain, 1);
  none.OnEvent(StartedInThought(false));
  none.OnEvent(Finished("Yes.", v1::FINISH_REASON_END_OF_TURN));
  message = json::parse(none.Document())["choices"][0]["message"];
  EXPECT_FALSE(message.contains("reasoning_content"));
}

TEST(OpenAiAnswerTest, TokensOfAPromptAreCountedInCharacters) {
  CharacterCounter counter;
  for (const auto& [bytes, before] : std::vector<std::pair<std::string, size_t>>{{"a", 0},
                                                                                 {"\xe2", 1},
                                                                                 {"\x82\xac", 1},
                                                                                 {"\xf0\x9f", 2},
                                                                                 {"\x98", 2},
                                                                                 {"\x80z", 2},
                                                                                 {"b", 4}}) {
    EXPECT_EQ(counter.whole(), before);
    counter.Add(bytes);
  }
  v1::Token scored;
  scored.set_text("lo");
  scored.set_logprob(-1);
  const auto lacking = EchoedTokens("hello", {scored});
  ASSERT_EQ(lacking.size(), 2u);
  EXPECT_EQ(lacking[0].text(), "hel");
  EXPECT_FALSE(lacking[0].has_logprob());
  EXPECT_TRUE(lacking[1].has_logprob());
  scored.set_text(" hello");
  const auto spaced = EchoedTokens("hello", {scored});
  ASSERT_EQ(spaced.size(), 1u);
  EXPECT_EQ(spaced[0].text(), "hello");
  EXPECT_FALSE(spaced[0].has_logprob()) << "the first token has none";
}

TEST(OpenAiAnswerTest, ACompletionMayRepeatItsPrompt) {
  const auto call =
      ParseChat(R"({"prompt": "Say ", "logprobs": 1, "echo": true})", {}, OpenAiKind::kCompletion);
  OneAnswer answer(*call, 1);
  for (const auto& event : {Started(), Delta("He"), Delta("llo")}) answer.OnEvent(event);
  answer.OnEvent(Finished("Hello", v1::FINISH_REASON_STOP_STRING));
  const json document = json::parse(answer.Document());
  EXPECT_EQ(document["object"], "text_completion");
  EXPECT_EQ(document["choices"][0]["text"], "Say Hello");
  EXPECT_EQ(document["choices"][0]["logprobs"]["text_offset"], json::array({0, 2}));
  // The prompt's own tokens come from a score.
}

TEST(ConversationTest, ADigestStandsForRolesAndContents) {
  const auto digests = [](std::vector<std::pair<std::string, std::string>> said) {
    v1::Messages messages;
    for (const auto& [role, content] : said) {
      v1::Message* message = messages.add_messages();
      message->set_role(role);
      message->set_content(content);
      message->add_fixed()->set_end(1);  // says nothing of the conversation
    }
    return ConversationDigests(messages);
  };
  const auto both = digests({{"user", "ab"}, {"assistant", "c"}});
  ASSERT_EQ(both.size(), 3u);
  EXPECT_EQ(digests({{"user", "ab"}})[1], both[1]);
  EXPECT_NE(digests({{"user", "a"}})[1], both[1]);
  EXPECT_NE(digests({{"usera", "b"}})[1], both[1]);
  EXPECT_NE(digests({{"user", "ab"}, {"user", "c"}})[2], both[2]);
}

TEST(ConversationTest, ADigestStandsForCallsHoweverTheirArgumentsAreWritten) {
  const auto digest = [](const std::string& id, const std::string& name,
                         const std::string& arguments) {
    v1::Messages messages;
    v1::ToolCall* call = messages.add_messages()->add_tool_calls();
    call->set_id(id);
    call->set_name(name);
    call->set_arguments_json(arguments);
    return ConversationDigests(messages).back();
  };
  const std::string one = digest("i", "look", R"({"a": 1, "b": "x"})");
  EXPECT_EQ(digest("i", "look", R"({"b":"x","a":1})"), one);
  EXPECT_NE(digest("i", "look", R"({"b":"x","a":2})"), one);
  EXPECT_NE(digest("j", "look", R"({"b":"x","a":1})"), one);
  EXPECT_NE(digest("i", "hear", R"({"b":"x","a":1})"), one);
  EXPECT_NE(digest("i", "look", "{"), one);
}

}  // namespace
}  // namespace withy::orchestrator
