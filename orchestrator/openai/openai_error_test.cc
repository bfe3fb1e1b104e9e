#include "orchestrator/openai/openai_error.h"

#include <nlohmann/json.hpp>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/call/validate.h"

namespace withy::orchestrator {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

json ErrorOf(const absl::Status& status, std::string_view prompt_field = "") {
  return json::parse(OpenAiError(status, prompt_field))["error"];
}

TEST(OpenAiErrorTest, ErrorsHaveOpenAisForm) {
  const json error = ErrorOf(absl::OutOfRangeError("the prompt needs 9 tokens"), "messages");
  EXPECT_THAT(error["message"], HasSubstr("the prompt needs 9 tokens"));
  EXPECT_THAT(error["message"], HasSubstr("maximum context length"));
  EXPECT_EQ(error["type"], "invalid_request_error");
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "messages");
  EXPECT_EQ(ErrorOf(absl::NotFoundError("model is \"x\": there is none"))["code"],
            "model_not_found");
  EXPECT_EQ(ErrorOf(absl::NotFoundError("context \"x\" is not known"))["code"], "not_found");
  EXPECT_TRUE(ErrorOf(absl::InternalError("broken"))["param"].is_null());
  EXPECT_EQ(ErrorOf(absl::InternalError("broken"))["type"], "server_error");
  EXPECT_EQ(HttpStatusOf(absl::OutOfRangeError("")), 400);
  EXPECT_EQ(HttpStatusOf(absl::UnauthenticatedError("")), 401);
  EXPECT_EQ(HttpStatusOf(absl::ResourceExhaustedError("")), 429);
  EXPECT_EQ(HttpStatusOf(absl::UnavailableError("")), 503);
  EXPECT_EQ(HttpStatusOf(absl::InternalError("")), 500);
  const json large = json::parse(OpenAiHttpError(413, "the body is long"))["error"];
  EXPECT_EQ(large["code"], "context_length_exceeded");
  EXPECT_THAT(large["message"], HasSubstr("maximum context length"));
  EXPECT_TRUE(json::parse(OpenAiHttpError(400, "x"))["error"]["code"].is_null());
}

TEST(OpenAiErrorTest, FieldsHaveOpenAisNames) {
  for (const auto& [ours, theirs, param] :
       std::vector<std::tuple<std::string, std::string, std::string>>{
           {"sampling.top_p is 1.5", "top_p is 1.5", "top_p"},
           {"limits.max_tokens is 9: too many", "max_tokens is 9: too many", "max_tokens"},
           {"output_format.json_schema at #/properties/a: no",
            "response_format.json_schema.schema at #/properties/a: no",
            "response_format.json_schema.schema"},
           {"output_format is set", "response_format is set", "response_format"},
           {"output_format.regex is 5", "withy.regex is 5", "withy.regex"},
           {"limits.stop[2] is empty", "stop[2] is empty", "stop[2]"},
           {"prompt.messages[3].content is", "messages[3].content is", "messages[3].content"},
           {"messages[1]: role \"x\"", "messages[1]: role \"x\"", "messages[1]"},
           {"prompt.messages[1].tool_calls[0].name is",
            "messages[1].tool_calls[0].function.name is",
            "messages[1].tool_calls[0].function.name"},
           {"prompt.messages.tools_json[0].type must", "tools[0].type must", "tools[0].type"},
           {"prompt.messages.template_arguments_json is", "chat_template_kwargs is",
            "chat_template_kwargs"},
           {"template arguments: no", "chat_template_kwargs: no", "chat_template_kwargs"},
           {"prompt.text is empty: write", "prompt is empty: write", "prompt"},
           {"slo.ttft_ms is -1", "header x-slo-ttft-ms is -1", "x-slo-ttft-ms"},
           {"request_id is too long", "header idempotency-key is too long", "idempotency-key"},
           {"header x-withy-priority is", "header x-withy-priority is", "x-withy-priority"},
           {"inputs[1] has 9 tokens", "input[1] has 9 tokens", "input[1]"},
           {"prompts are read", "prompts are read", ""},
           {"the prompt is long", "the prompt is long", ""},
           {"temperature", "temperature", "temperature"},
           {"", "", ""}}) {
    std::string got;
    EXPECT_EQ(InOpenAiNames(ours, &got), theirs);
    EXPECT_EQ(got, param) << ours;
  }
}

// What validation says of wrong values never has the contract's names.
TEST(OpenAiErrorTest, ValidationSpeaksToClientsInTheirNames) {
  const auto error = [](auto change) {
    v1::GenerateRequest request;
    v1::Message* message = request.mutable_prompt()->mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content("hi");
    change(request);
    const absl::Status status = ValidateGenerate(request);
    EXPECT_FALSE(status.ok());
    return ErrorOf(status);
  };
  const auto expect = [](const json& got, const std::string& param) {
    EXPECT_EQ(got["param"], param) << got;
    for (const char* name : {"sampling.", "limits.", "slo.", "prompt.", "_json", "request_id"}) {
      EXPECT_THAT(got["message"].get<std::string>(), Not(HasSubstr(name)));
    }
  };
  using Request = v1::GenerateRequest&;
  expect(error([](Request r) { r.mutable_sampling()->set_top_p(1.5); }), "top_p");
  expect(error([](Request r) { r.mutable_sampling()->set_temperature(-1); }), "temperature");
  expect(error([](Request r) { r.mutable_sampling()->set_min_p(1); }), "min_p");
  expect(error([](Request r) { r.mutable_sampling()->set_repetition_penalty(0); }),
         "repetition_penalty");
  expect(error([](Request r) { r.mutable_limits()->add_stop(std::string(1000, 'x')); }), "stop[0]");
  expect(error([](Request r) { r.mutable_slo()->set_ttft_ms(-1); }), "x-slo-ttft-ms");
  expect(error([](Request r) { r.set_priority(99); }), "x-withy-priority");
  expect(error([](Request r) { r.set_request_id(std::string(100, 'x')); }), "idempotency-key");
  expect(error([](Request r) {
           r.mutable_prompt()->mutable_messages()->mutable_messages(0)->set_role("robot");
         }),
         "messages[0].role");
  expect(error([](Request r) { r.mutable_prompt()->mutable_messages()->set_tools_json("[5]"); }),
         "tools[0]");
}

}  // namespace
}  // namespace withy::orchestrator
