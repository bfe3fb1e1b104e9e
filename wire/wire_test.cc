#include "wire/wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "wire/output_format.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

v1::RunRequest Asking(const std::string& text) {
  v1::RunRequest request;
  request.mutable_prompt()->set_text(text);
  return request;
}

v1::RunRequest AskingAsUser(const std::string& text) {
  v1::RunRequest request;
  v1::Message& message = *request.mutable_prompt()->mutable_messages()->add_messages();
  message.set_role("user");
  message.set_content(text);
  return request;
}

TEST(WireTest, WhatACallLeavesOutIsTheDefault) {
  const AnswerDefaults defaults = DefaultsFor({}, {}, 1000);
  const auto request =
      RequestFromWire(AskingAsUser("hi"), defaults, /*fallback_seed=*/9, /*window=*/8192);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->max_tokens, 2048) << "the model ends its turn before";
  EXPECT_EQ(request->level_percent, 100);
  EXPECT_FLOAT_EQ(request->sampling.temperature, 0.7f);
  EXPECT_FLOAT_EQ(request->sampling.top_p, 0.95f);
  EXPECT_FLOAT_EQ(request->sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(request->sampling.repetition_window, 256);
  EXPECT_EQ(request->sampling.seed, 9u);
  EXPECT_FALSE(request->sampling.logprobs);
  EXPECT_EQ(RequestFromWire(Asking("hi"), defaults, 9, 8192)->max_tokens, 256) << "raw text";
}

TEST(WireTest, FormsOfAnswersAreConverted) {
  using Kind = OutputFormat::Kind;
  v1::OutputFormat wire;
  EXPECT_EQ(FormatFromWire(wire, ""), OutputFormat());
  wire.set_json_object(false);
  EXPECT_EQ(FormatFromWire(wire, "").kind, Kind::kFree);
  wire.set_json_object(true);
  EXPECT_EQ(FormatFromWire(wire, "").kind, Kind::kJsonObject);
  wire.set_json_schema("{}");
  EXPECT_EQ(FormatFromWire(wire, ""), OutputFormat({.kind = Kind::kJsonSchema, .text = "{}"}));
  wire.set_grammar("root ::= \"a\"");
  EXPECT_EQ(FormatFromWire(wire, ""),
            OutputFormat({.kind = Kind::kEbnf, .text = "root ::= \"a\""}));
  v1::RunRequest request = AskingAsUser("hi");
  request.mutable_output_format()->set_regex("a+");
  const auto converted = RequestFromWire(request, DefaultsFor({}, {}, 1000), 9, 8192);
  ASSERT_TRUE(converted.ok()) << converted.status();
  EXPECT_EQ(converted->output_format, OutputFormat({.kind = Kind::kRegex, .text = "a+"}));
}

TEST(WireTest, AModelIsOpenedAsConfigured) {
  v1::ModelConfig config;
  EXPECT_EQ(OptionsFromWire(config, "/state").model.device, "auto");
  EXPECT_FALSE(OptionsFromWire(config, "/state").model.exact_prefill);
  config.set_device("cuda:1");
  config.set_cuda_exact_prefill(true);
  EXPECT_EQ(OptionsFromWire(config, "/state").model.device, "cuda:1");
  EXPECT_TRUE(OptionsFromWire(config, "/state").model.exact_prefill);
}

TEST(WireTest, ATemperatureOfZeroIsGreedy) {
  v1::RunRequest wire = AskingAsUser("hi");
  wire.mutable_sampling()->set_temperature(0);
  const auto request = RequestFromWire(wire, DefaultsFor({}, {}, 1000), 9, 8192);
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->sampling.temperature, 0.0f);
  EXPECT_EQ(request->sampling.top_p, 1.0f);
  EXPECT_EQ(request->sampling.repetition_penalty, 1.0f);
}

TEST(WireTest, ADefaultLengthFitsAnyWindow) {
  v1::ModelConfig config;
  config.set_max_tokens(4000);
  const AnswerDefaults defaults = DefaultsFor(config, {}, 1000);
  for (const int32_t window : {1, 16, 64, 4000, 8192}) {
    for (const v1::RunRequest& wire : {Asking("hi"), AskingAsUser("hi")}) {
      const auto request = RequestFromWire(wire, defaults, 1, window);
      ASSERT_TRUE(request.ok()) << request.status();
      EXPECT_EQ(request->max_tokens, std::min(window, 4000));
      const RequestLimits limits{
          .vocab_size = 1000, .context_length = window, .levels_percent = {100}};
      EXPECT_TRUE(Validate(*request, limits).ok());
    }
  }
}

TEST(WireTest, ACutAnswerSaysSoAndAnotherDoesNot) {
  EXPECT_THAT(CutText(FinishReason::kMaxTokens, 7),
              testing::AllOf(HasSubstr("cut after 7 tokens"), HasSubstr("limits.max_tokens")));
  EXPECT_THAT(CutText(FinishReason::kContextFull, 7), HasSubstr("window is full"));
  for (const FinishReason reason : {FinishReason::kEndOfTurn, FinishReason::kStopString,
                                    FinishReason::kCancelled, FinishReason::kNone}) {
    EXPECT_EQ(CutText(reason, 7), "");
  }
}

TEST(WireTest, ProgressIsToldFourTimesASecondAtMost) {
  constexpr int64_t kMs = 1'000'000;
  ProgressPace pace;
  EXPECT_FALSE(pace.Due(1000 * kMs)) << "a short prompt has none";
  EXPECT_FALSE(pace.Due(1249 * kMs));
  EXPECT_TRUE(pace.Due(1250 * kMs));
  EXPECT_FALSE(pace.Due(1300 * kMs));
  EXPECT_TRUE(pace.Due(1600 * kMs));
}

TEST(WireTest, AbsurdValuesAreNamed) {
  const RequestLimits limits{.vocab_size = 100, .context_length = 64, .levels_percent = {100}};
  const auto check = [&](const v1::RunRequest& wire) -> std::string {
    const auto request = RequestFromWire(wire, {}, 1, limits.context_length);
    const absl::Status status = request.ok() ? Validate(*request, limits) : request.status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wire.DebugString();
    return std::string(status.message());
  };
  v1::RunRequest wire = Asking("hi");
  wire.mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(check(wire), HasSubstr("temperature"));
  wire = Asking("hi");
  wire.mutable_sampling()->set_temperature(11);
  EXPECT_THAT(check(wire), HasSubstr("temperature"));
  wire = Asking("hi");
  wire.mutable_sampling()->set_top_k(101);
  EXPECT_THAT(check(wire), HasSubstr("top_k"));
  wire = Asking("hi");
  wire.mutable_sampling()->set_top_p(0);
  EXPECT_THAT(check(wire), HasSubstr("top_p"));
  wire = Asking("hi");
  wire.mutable_sampling()->set_repetition_window(65537);
  EXPECT_THAT(check(wire), HasSubstr("repetition_window"));
  wire = Asking("hi");
  wire.mutable_limits()->set_max_tokens(65);
  EXPECT_THAT(check(wire), HasSubstr("max_tokens"));
  wire = Asking("hi");
  wire.mutable_limits()->set_logprobs(21);
  EXPECT_THAT(check(wire), HasSubstr("logprobs"));
  wire = Asking("hi");
  wire.mutable_limits()->add_stop("");
  check(wire);
  wire = Asking("hi");
  wire.set_model_level_percent(40);
  EXPECT_THAT(check(wire), HasSubstr("100"));
  EXPECT_THAT(check(Asking("")), HasSubstr("prompt"));
  EXPECT_THAT(check(v1::RunRequest()), HasSubstr("prompt"));
  wire = v1::RunRequest();
  wire.mutable_prompt()->mutable_messages()->add_messages()->set_content("hi");
  EXPECT_THAT(check(wire), HasSubstr("role"));
  wire = Asking("hi");
  v1::ByteSpan* span = wire.add_kept()->add_spans();
  span->set_begin(1);
  span->set_end(5);
  EXPECT_THAT(check(wire), HasSubstr("kept"));
}

TEST(WireTest, SegmentsSurviveTheWire) {
  Segment segment;
  segment.role = "assistant";
  segment.text = "hello";
  segment.kept = {{0, 2}};
  segment.fixed = {{1, 3}};
  segment.level_percent = 60;
  segment.cancelled = true;
  segment.unix_s = 17;
  segment.token_ids = {1, 2, 3};
  segment.tokenizer_fingerprint = 0xFFFFFFFFFFFFFFFF;
  const Segment back = SegmentFromWire(ToWire(segment));
  EXPECT_EQ(back.text, segment.text);
  EXPECT_EQ(back.kept, segment.kept);
  EXPECT_EQ(back.fixed, segment.fixed);
  EXPECT_EQ(back.level_percent, 60);
  EXPECT_TRUE(back.cancelled);
  EXPECT_FALSE(back.ended);
  EXPECT_EQ(back.unix_s, 17);
  EXPECT_EQ(back.token_ids, segment.token_ids);
  EXPECT_EQ(back.tokenizer_fingerprint, segment.tokenizer_fingerprint);
}

TEST(WireTest, ToolsAndCallsGoThereAndBack) {
  v1::Prompt prompt;
  v1::Messages& messages = *prompt.mutable_messages();
  messages.set_tools_json("[1]");
  messages.set_template_arguments_json("{\"a\":1}");
  messages.add_messages()->set_role("user");
  v1::Message& calls = *messages.add_messages();
  calls.set_role("assistant");
  v1::ToolCall& call = *calls.add_tool_calls();
  call.set_id("i");
  call.set_name("look");
  v1::Message& result = *messages.add_messages();
  result.set_role("tool");
  result.set_name("look");
  result.set_tool_call_id("i");
  const auto segments = PromptFromWire(prompt, {}).value();
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].tools_json, "[1]");
  EXPECT_EQ(segments[0].template_arguments_json, "{\"a\":1}");
  EXPECT_EQ(segments[1].tools_json, "");
  ASSERT_EQ(segments[1].tool_calls.size(), 1u);
  EXPECT_EQ(segments[1].tool_calls[0].arguments_json, "{}") << "none";
  for (const Segment& segment : segments) {
    const Segment back = SegmentFromWire(ToWire(segment));
    EXPECT_EQ(back.tool_calls, segment.tool_calls);
    EXPECT_EQ(back.name, segment.name);
    EXPECT_EQ(back.tool_call_id, segment.tool_call_id);
    EXPECT_EQ(back.tools_json, segment.tools_json);
    EXPECT_EQ(back.template_arguments_json, segment.template_arguments_json);
  }
  EXPECT_EQ(segments[2].tool_call_id, "i");
}

TEST(WireTest, AnAnswerThatCallsHasItsReason) {
  v1::GenerateFinished finished;
  const ToolCall call{.id = "i", .name = "look", .arguments_json = "{}"};
  FillAnswer(FinishReason::kEndOfTurn, "x", {&call, 1}, &finished);
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_TOOL_CALLS);
  EXPECT_EQ(finished.tool_calls(0).name(), "look");
  FillAnswer(FinishReason::kEndOfTurn, "x", {}, &finished);
  EXPECT_EQ(finished.reason(), v1::FINISH_REASON_END_OF_TURN);
}

}  // namespace
}  // namespace withy::engine
