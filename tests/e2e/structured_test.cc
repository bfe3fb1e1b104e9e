// Answers in a form that the app asks for, through the five processes: every one is valid, with and
// without drafts, and what cannot be enforced is refused by name.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "grammar/format_check.h"
#include "grammar/testing.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"

namespace withy::e2e {
namespace {

using grammar::SchemaValidator;
using grammar::TestJson;
using ::testing::HasSubstr;

class StructuredTest : public ::testing::Test {
 protected:
  void SetUp() override {
    board_.SpeculateAlways();
    board_.StartAll();
    ASSERT_TRUE(board_.WaitUntilServing()) << board_.Log("model_worker");
    stub_ = board_.NewStub();
    token_ = board_.BindApp("app");
  }
  Answer Ask(const v1::OutputFormat& format, v1::Speculation speculation, float temperature,
             const std::string& model = "") {
    v1::GenerateRequest request = UserRequest("", "Tell me about the garden", 400);
    *request.mutable_output_format() = format;
    request.set_speculation(speculation);
    request.set_model(model);
    request.mutable_sampling()->set_temperature(temperature);
    request.mutable_sampling()->set_seed(11);
    return Generate(*stub_, token_, request);
  }

  Board board_{{"model.tree_rows=17"}};
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
};

TEST_F(StructuredTest, EveryAnswerIsValidAndDraftsDoNotChangeIt) {
  if (!WITHY_XGRAMMAR) GTEST_SKIP() << "this build has no XGrammar";
  uint32_t accepted = 0;
  for (const char* schema : grammar::kExampleSchemas) {
    SCOPED_TRACE(schema);
    const SchemaValidator validator(TestJson::parse(schema));
    v1::OutputFormat format;
    format.set_json_schema(schema);
    for (const float temperature : {0.0f, 1.2f}) {
      const Answer plain = Ask(format, v1::SPECULATION_OFF, temperature);
      ASSERT_TRUE(plain.status.ok()) << plain.status;
      EXPECT_EQ(plain.finished.reason(), v1::FINISH_REASON_END_OF_TURN) << plain.text;
      const TestJson value = TestJson::parse(plain.text, nullptr, /*allow_exceptions=*/false);
      ASSERT_FALSE(value.is_discarded()) << plain.text;
      EXPECT_TRUE(validator.Allows(value)) << plain.text;
      const Answer drafted = Ask(format, v1::SPECULATION_AUTO, temperature);
      EXPECT_EQ(drafted.text, plain.text) << drafted.status;
      for (const v1::SourceReport& source : drafted.finished.speculation().sources()) {
        accepted += source.accepted_tokens();
      }
    }
  }
  EXPECT_GT(accepted, 20u) << "keys are drafted without a model";
}

TEST_F(StructuredTest, TheDraftModelAndOtherForms) {
  if (!WITHY_XGRAMMAR) GTEST_SKIP() << "this build has no XGrammar";
  v1::OutputFormat format;
  format.set_regex("(yes|no), [a-z]{3,8}!");
  for (const char* model : {"target", "draft"}) {
    const Answer answer = Ask(format, v1::SPECULATION_AUTO, 1, model);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_THAT(answer.text, ::testing::MatchesRegex("(yes|no), [a-z]+!"));
  }
  format.set_grammar("root ::= item (\", \" item)? \".\"\nitem ::= \"a rose\" | \"a bee\"\n");
  EXPECT_THAT(Ask(format, v1::SPECULATION_AUTO, 1).text,
              ::testing::MatchesRegex("a (rose|bee)(, a (rose|bee))?\\."));
}

// Biases forbid, penalties vary, and drafts change neither.
TEST_F(StructuredTest, BiasesAndPenaltiesHoldWithAndWithoutDrafts) {
  v1::GenerateRequest request = UserRequest("", "Tell me about the garden", 60);
  request.mutable_sampling()->set_temperature(0);
  request.set_speculation(v1::SPECULATION_OFF);
  const Answer free = Generate(*stub_, token_, request);
  ASSERT_TRUE(free.status.ok()) << free.status;
  v1::TokenBias* bias = request.mutable_sampling()->add_logit_bias();
  bias->set_token(300);
  bias->set_bias(100);
  const Answer forced = Generate(*stub_, token_, request);
  ASSERT_TRUE(forced.status.ok()) << forced.status;
  ASSERT_EQ(forced.finished.usage().completion_tokens(), 60u);
  const std::string once = forced.text.substr(0, forced.text.size() / 60);
  ASSERT_FALSE(once.empty());
  for (size_t at = 0; at < forced.text.size(); at += once.size()) {
    ASSERT_EQ(forced.text.substr(at, once.size()), once) << forced.text;
  }
  bias->set_bias(4);
  request.mutable_sampling()->set_presence_penalty(0.5f);
  request.mutable_sampling()->set_frequency_penalty(1);
  const Answer plain = Generate(*stub_, token_, request);
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  EXPECT_NE(plain.text, free.text);
  EXPECT_EQ(plain.finished.sampling().logit_bias_size(), 1);
  request.set_speculation(v1::SPECULATION_AUTO);
  EXPECT_EQ(Generate(*stub_, token_, request).text, plain.text);
  bias->set_token(1u << 30);
  EXPECT_EQ(Generate(*stub_, token_, request).status.code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StructuredTest, WhatCannotBeEnforcedIsRefusedByName) {
  v1::OutputFormat format;
  format.set_json_schema(R"({"type": "array", "uniqueItems": true})");
  const Answer answer = Ask(format, v1::SPECULATION_AUTO, 0);
  if (!WITHY_XGRAMMAR) {
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(answer.status.message()), HasSubstr("./withy setup"));
    return;
  }
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("uniqueItems"));
  format.set_regex("(unclosed");  // only the worker, which compiles it, finds out
  const Answer late = Ask(format, v1::SPECULATION_AUTO, 0);
  EXPECT_EQ(late.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(late.status.message()), HasSubstr("output_format.regex"));
}

}  // namespace
}  // namespace withy::e2e
