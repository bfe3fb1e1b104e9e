#include "orchestrator/call/validate.h"

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "base/contract_limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::orchestrator {
namespace {

using ::testing::HasSubstr;
using Change = std::function<void(v1::GenerateRequest&)>;

v1::GenerateRequest Good() {
  v1::GenerateRequest request;
  v1::Message& message = *request.mutable_prompt()->mutable_messages()->add_messages();
  message.set_role("user");
  message.set_content("grüße");
  return request;
}

v1::Message& Last(v1::GenerateRequest& request) {
  auto& messages = *request.mutable_prompt()->mutable_messages()->mutable_messages();
  return messages[messages.size() - 1];
}

void AddSpan(v1::GenerateRequest& request, uint32_t begin, uint32_t end) {
  v1::ByteSpan& span = *Last(request).add_fixed();
  span.set_begin(begin);
  span.set_end(end);
}

struct BadCase {
  const char* name;
  Change change;
  const char* field;  // that the message must name
  absl::StatusCode code = absl::StatusCode::kInvalidArgument;
};

const float kNan = std::numeric_limits<float>::quiet_NaN();
const float kInf = std::numeric_limits<float>::infinity();

const BadCase kBadCases[] = {
    {"no prompt", [](auto& r) { r.clear_prompt(); }, "prompt"},
    {"empty text", [](auto& r) { r.mutable_prompt()->set_text(""); }, "prompt.text"},
    {"no messages", [](auto& r) { r.mutable_prompt()->mutable_messages()->clear_messages(); },
     "prompt.messages"},
    {"role", [](auto& r) { Last(r).set_role("robot"); }, "prompt.messages[0].role"},
    {"call last",
     [](auto& r) {
       Last(r).set_role("assistant");
       Last(r).add_tool_calls()->set_name("f");
     },
     "results are missing"},
    {"bad utf-8", [](auto& r) { Last(r).set_content("a\xff"); }, "byte 1"},
    {"huge text",
     [](auto& r) { r.mutable_prompt()->set_text(std::string(kMaxPromptBytes + 1, 'a')); },
     "prompt.text", absl::StatusCode::kOutOfRange},
    {"huge messages", [](auto& r) { Last(r).set_content(std::string(kMaxPromptBytes + 1, 'a')); },
     "prompt.messages", absl::StatusCode::kOutOfRange},
    {"many messages",
     [](auto& r) {
       for (int i = 0; i < kMaxMessages; ++i) {
         *r.mutable_prompt()->mutable_messages()->add_messages() = Last(r);
       }
     },
     "prompt.messages", absl::StatusCode::kOutOfRange},
    {"answer goes on in a context",
     [](auto& r) {
       Last(r).set_role("assistant");
       r.set_context_id("c");
     },
     "context_id"},
    {"span reversed", [](auto& r) { AddSpan(r, 2, 1); }, "fixed[0]"},
    {"span empty", [](auto& r) { AddSpan(r, 1, 1); }, "fixed[0]"},
    {"span outside", [](auto& r) { AddSpan(r, 1, 99); }, "fixed[0]"},
    {"span in a character", [](auto& r) { AddSpan(r, 0, 3); }, "fixed[0]"},
    {"spans overlap",
     [](auto& r) {
       AddSpan(r, 0, 2);
       AddSpan(r, 1, 4);
     },
     "fixed[1]"},
    {"temperature nan", [](auto& r) { r.mutable_sampling()->set_temperature(kNan); },
     "sampling.temperature"},
    {"temperature low", [](auto& r) { r.mutable_sampling()->set_temperature(-0.1f); },
     "sampling.temperature"},
    {"temperature high", [](auto& r) { r.mutable_sampling()->set_temperature(kInf); },
     "sampling.temperature"},
    {"top_p zero", [](auto& r) { r.mutable_sampling()->set_top_p(0); }, "sampling.top_p"},
    {"top_p high", [](auto& r) { r.mutable_sampling()->set_top_p(1.01f); }, "sampling.top_p"},
    {"min_p one", [](auto& r) { r.mutable_sampling()->set_min_p(1); }, "sampling.min_p"},
    {"repetition window", [](auto& r) { r.mutable_sampling()->set_repetition_window(65537); },
     "sampling.repetition_window"},
    {"penalty zero", [](auto& r) { r.mutable_sampling()->set_repetition_penalty(0); },
     "repetition_penalty"},
    {"stop empty", [](auto& r) { r.mutable_limits()->add_stop(""); }, "limits.stop[0]"},
    {"stop long", [](auto& r) { r.mutable_limits()->add_stop(std::string(257, 'x')); },
     "limits.stop[0]"},
    {"stops many",
     [](auto& r) {
       for (int i = 0; i < 17; ++i) r.mutable_limits()->add_stop("x");
     },
     "limits.stop"},
    {"logprobs", [](auto& r) { r.mutable_limits()->set_logprobs(21); }, "limits.logprobs"},
    {"priority", [](auto& r) { r.set_priority(11); }, "priority"},
    {"request id", [](auto& r) { r.set_request_id(std::string(65, 'x')); }, "request_id"},
    {"context id", [](auto& r) { r.set_context_id(std::string(65, 'x')); }, "context_id"},
    {"speculation", [](auto& r) { r.set_speculation(static_cast<v1::Speculation>(7)); },
     "speculation"},
    {"level", [](auto& r) { r.set_model_level_percent(101); }, "model_level_percent"},
    {"prompt level", [](auto& r) { r.set_prompt_level_percent(101); }, "prompt_level_percent"},
    {"ratio high", [](auto& r) { r.mutable_slo()->set_ttft_ratio(1.2); }, "slo.ttft_ratio"},
    {"ratio negative", [](auto& r) { r.mutable_slo()->set_tpot_ratio(-1); }, "slo.tpot_ratio"},
    {"ms nan", [](auto& r) { r.mutable_slo()->set_ttft_ms(kNan); }, "slo.ttft_ms"},
    {"ms inf", [](auto& r) { r.mutable_slo()->set_end_to_end_ms(kInf); }, "slo.end_to_end_ms"},
    {"families",
     [](auto& r) {
       r.mutable_slo()->set_ttft_ms(5);
       r.mutable_slo()->set_tpot_ratio(0.5);
     },
     "slo mixes"},
    {"energy and time",
     [](auto& r) {
       r.mutable_slo()->set_energy_mj(5);
       r.mutable_slo()->set_ttft_ms(1);
     },
     "slo mixes"},
    {"first token and end",
     [](auto& r) {
       r.mutable_slo()->set_ttft_ms(5);
       r.mutable_slo()->set_end_to_end_ms(50);
     },
     "slo mixes"},
    {"ratio nan", [](auto& r) { r.mutable_slo()->set_tpot_ratio(kNan); }, "slo.tpot_ratio"},
    {"energy negative", [](auto& r) { r.mutable_slo()->set_energy_mj(-5); }, "slo.energy_mj"},
#if WITHY_XGRAMMAR
    {"schema keyword",
     [](auto& r) { r.mutable_output_format()->set_json_schema(R"({"not": {}})"); },
     "output_format.json_schema: the keyword \"not\""},
    {"regex long", [](auto& r) { r.mutable_output_format()->set_regex(std::string(4097, 'x')); },
     "output_format.regex"},
    {"grammar empty", [](auto& r) { r.mutable_output_format()->set_grammar(""); },
     "output_format.grammar"},
#else
    {"schema", [](auto& r) { r.mutable_output_format()->set_json_schema("{}"); }, "output_format",
     absl::StatusCode::kUnimplemented},
#endif
};

// An empty question, and an answer that is to go on.
TEST(ValidateTest, TheLastMessageMayBeEmptyOrAnAnswer) {
  v1::GenerateRequest request = Good();
  Last(request).clear_content();
  EXPECT_EQ(ValidateGenerate(request), absl::OkStatus());
  request = Good();
  Last(request).set_role("assistant");
  EXPECT_EQ(ValidateGenerate(request), absl::OkStatus());
}

TEST(ValidateTest, EveryBadFieldIsNamed) {
  ASSERT_TRUE(ValidateGenerate(Good()).ok()) << ValidateGenerate(Good());
  for (const BadCase& bad : kBadCases) {
    v1::GenerateRequest request = Good();
    bad.change(request);
    const absl::Status status = ValidateGenerate(request);
    EXPECT_EQ(status.code(), bad.code) << bad.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(bad.field)) << bad.name;
  }
}

TEST(ValidateTest, LimitsThemselvesAreAllowed) {
  v1::GenerateRequest request = Good();
  AddSpan(request, 0, 2);
  AddSpan(request, 2, 4);  // the two bytes of one character
  request.mutable_sampling()->set_temperature(10);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_repetition_penalty(10);
  request.mutable_slo()->set_ttft_ratio(1);
  request.mutable_slo()->set_tpot_ratio(1);
  request.mutable_limits()->add_stop(std::string(256, 'x'));
  request.mutable_limits()->set_logprobs(20);
  request.set_priority(-10);
  request.set_prompt_level_percent(100);
  EXPECT_TRUE(ValidateGenerate(request).ok()) << ValidateGenerate(request);
  request.set_prompt_level_percent(1);
  EXPECT_TRUE(ValidateGenerate(request).ok()) << ValidateGenerate(request);
}

TEST(ValidateTest, WhatTheModelAllows) {
  const ModelLimits model{512, 1000, {40, 100}, true};
  v1::GenerateRequest request = Good();
  request.mutable_limits()->set_max_tokens(512);
  request.mutable_sampling()->set_top_k(1000);
  request.set_model_level_percent(40);
  request.set_context_id("ctx_1");
  EXPECT_TRUE(ValidateForModel(request, model).ok());
  const auto message = [&](const Change& change, const ModelLimits& limits) {
    v1::GenerateRequest changed = request;
    change(changed);
    const absl::Status status = ValidateForModel(changed, limits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(message([](auto& r) { r.mutable_limits()->set_max_tokens(513); }, model),
              HasSubstr("max_tokens is 513"));
  EXPECT_THAT(message([](auto& r) { r.mutable_sampling()->set_top_k(1001); }, model),
              HasSubstr("top_k is 1001"));
  EXPECT_THAT(message([](auto& r) { r.set_model_level_percent(50); }, model), HasSubstr("40, 100"));
  ModelLimits draft = model;
  draft.keeps_contexts = false;
  EXPECT_THAT(message([](auto&) {}, draft), HasSubstr("context_id"));
}

TEST(ValidateTest, OtherRequests) {
  v1::BindAppRequest bind;
  for (const char* name : {"", "a b", "a/b", "\xff"}) {
    bind.set_app(name);
    EXPECT_EQ(ValidateBindApp(bind).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  bind.set_app(std::string(65, 'a'));
  EXPECT_FALSE(ValidateBindApp(bind).ok());
  bind.set_app("My.app_1-x");
  EXPECT_TRUE(ValidateBindApp(bind).ok());

  v1::CreateContextRequest create;
  create.set_title(std::string(129, 't'));
  EXPECT_THAT(std::string(ValidateCreateContext(create).message()), HasSubstr("title"));
  v1::ListContextsRequest list;
  list.set_page_size(1001);
  EXPECT_THAT(std::string(ValidateListContexts(list).message()), HasSubstr("page_size"));
  EXPECT_FALSE(ValidateContextId("").ok());
}

// The encoding of one code point, whether or not it may be encoded.
std::string Encode(uint32_t code) {
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800)
    return {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
  if (code < 0x10000) {
    return {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
            static_cast<char>(0x80 | (code & 63))};
  }
  return {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
          static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
}

TEST(Utf8Test, AcceptsExactlyTheCodePoints) {
  for (uint32_t code = 0; code < 0x120000; ++code) {
    const bool good = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    ASSERT_EQ(FindInvalidUtf8(Encode(code)) == std::string_view::npos, good) << std::hex << code;
  }
}

TEST(Utf8Test, RefusesEveryTruncationAndOverlongForm) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = "ab" + Encode(0x80 + random() % 0xD000);
    for (size_t keep = 3; keep < text.size(); ++keep) {
      ASSERT_EQ(FindInvalidUtf8(text.substr(0, keep)), 2u);
    }
  }
  for (const char* overlong : {"\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xF0\x8F\xBF\xBF", "\x80",
                               "\xF8\x88\x80\x80\x80"}) {
    EXPECT_EQ(FindInvalidUtf8(overlong), 0u);
  }
}

v1::GenerateRequest WithTools(const std::string& tools, const std::string& arguments = "") {
  v1::GenerateRequest request;
  v1::Messages& messages = *request.mutable_prompt()->mutable_messages();
  v1::Message& message = *messages.add_messages();
  message.set_role("user");
  message.set_content("hi");
  messages.set_tools_json(tools);
  messages.set_template_arguments_json(arguments);
  return request;
}

std::string Tool(const std::string& name) {
  return R"({"type": "function", "function": {"name": ")" + name + R"(", "parameters": {}}})";
}

TEST(ValidateTest, ToolsAreNamedWithWhatIsWrong) {
  const auto error = [](const std::string& tools) {
    const absl::Status status = ValidateGenerate(WithTools(tools));
    EXPECT_TRUE(status.ok() || absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  EXPECT_EQ(error("[]"), "");
  EXPECT_EQ(error("[" + Tool("get_weather") + "," + Tool("mcp/files.read") + "]"), "");
  EXPECT_THAT(error("{"), HasSubstr("tools_json is not valid JSON"));
  EXPECT_THAT(error("\xff"), HasSubstr("tools_json"));
  EXPECT_THAT(error("{}"), HasSubstr("must be a list"));
  EXPECT_THAT(error("[5]"), HasSubstr("tools_json[0] is of type number"));
  EXPECT_THAT(error(R"([{"type": "web_search"}])"), HasSubstr("tools_json[0].type"));
  EXPECT_THAT(error(R"([{"type": "function"}])"), HasSubstr("tools_json[0].function"));
  EXPECT_THAT(error("[" + Tool("a") + "," + Tool("a b") + "]"),
              HasSubstr("tools_json[1].function.name is \"a b\""));
  EXPECT_THAT(error("[" + Tool("a") + "," + Tool("a") + "]"), HasSubstr("again"));
  EXPECT_THAT(error("[" + Tool(std::string(129, 'a')) + "]"), HasSubstr("name"));
  EXPECT_THAT(error(std::string(300'000, ' ') + "[]"), HasSubstr("at most 262144"));
  EXPECT_THAT(error(std::string(5000, '[') + std::string(5000, ']')),
              HasSubstr("nested 5000 levels deep"));
  EXPECT_THAT(error(R"([{"type": "function", "function": {"name": "a", "parameters": 5}}])"),
              HasSubstr("parameters"));
  const auto arguments = [](const std::string& json) {
    return std::string(ValidateGenerate(WithTools("", json)).message());
  };
  EXPECT_EQ(arguments(R"({"enable_thinking": false})"), "");
  EXPECT_THAT(arguments("[]"), HasSubstr("template_arguments_json is of type array"));
  EXPECT_THAT(arguments("x"), HasSubstr("template_arguments_json"));
}

TEST(ValidateTest, CallsAndResultsBelongToTheirRoles) {
  v1::GenerateRequest request = WithTools("");
  v1::Messages& messages = *request.mutable_prompt()->mutable_messages();
  v1::Message& calls = *messages.add_messages();
  calls.set_role("assistant");
  v1::ToolCall& call = *calls.add_tool_calls();
  call.set_id("i");
  call.set_name("look");
  call.set_arguments_json(R"({"a": 1})");
  v1::Message& result = *messages.add_messages();
  result.set_role("tool");
  result.set_tool_call_id("i");
  EXPECT_EQ(ValidateGenerate(request), absl::OkStatus()) << "a result may be empty";
  const auto error = [&] { return std::string(ValidateGenerate(request).message()); };
  // What a model wrote wrongly is part of the conversation.
  for (const char* malformed : {"[1]", "{", "null", "{'a': 1}"}) {
    call.set_arguments_json(malformed);
    EXPECT_EQ(error(), "") << malformed;
  }
  call.set_arguments_json("\xff");
  EXPECT_THAT(error(), HasSubstr("messages[1].tool_calls[0].arguments_json is not valid UTF-8"));
  call.clear_arguments_json();
  EXPECT_EQ(error(), "");
  call.set_name("");
  EXPECT_THAT(error(), HasSubstr("messages[1].tool_calls[0].name"));
  call.set_name("look");
  call.set_id(std::string(65, 'x'));
  EXPECT_THAT(error(), HasSubstr("messages[1].tool_calls[0].id is 65 bytes"));
  call.set_id("i");
  calls.set_role("user");
  EXPECT_THAT(error(), HasSubstr("only an assistant calls tools"));
  calls.set_role("assistant");
  result.set_role("user");
  EXPECT_THAT(error(), HasSubstr("messages[2]"));
}

}  // namespace
}  // namespace withy::orchestrator
