// Scoring of texts over the wire.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model_worker/service_testing.h"

namespace withy::model_worker {
namespace {

using testing::HasSubstr;

// What scores a text, and the message of its end.
struct ScoredText {
  grpc::Status status;
  v1::ScoreResult result;
  std::vector<v1::Token> tokens;
  uint64_t computed_tokens = 0;
};

ScoredText Score(v1::ModelWorker::Stub& stub, const v1::ScoreRequest& request) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(60));
  const auto reader = stub.Score(&context, request);
  ScoredText scored;
  for (v1::ScoreResponse message; reader->Read(&message);) {
    scored.tokens.insert(scored.tokens.end(), message.tokens().begin(), message.tokens().end());
    if (message.has_result()) scored.result = message.result();
    scored.computed_tokens = message.computed_tokens();
  }
  scored.status = reader->Finish();
  return scored;
}

TEST_F(ServiceTest, ATextIsScored) {
  engine::SynthShape shape = engine::TinyShape();
  shape.levels = {50};
  config_.mutable_model()->set_path(
      engine::WriteTiny(folder_, shape, engine::GgmlType::kQ8_0, "levels.gguf"));
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  v1::ScoreRequest request;
  for (int i = 0; i < 25; ++i) request.mutable_text()->append("some words and others, ");
  request.mutable_reference();
  const ScoredText itself = Score(*stub_, request);
  ASSERT_TRUE(itself.status.ok()) << itself.status.error_message();
  EXPECT_GT(itself.result.tokens(), 40u);
  EXPECT_NEAR(itself.result.perplexity(),
              std::exp(-itself.result.logprob_sum() / itself.result.tokens()), 1e-6);
  EXPECT_EQ(itself.result.reference_perplexity(), itself.result.perplexity());
  EXPECT_EQ(itself.result.divergence_mean(), 0);
  EXPECT_EQ(itself.result.top1_agreement(), 1);
  EXPECT_EQ(itself.computed_tokens, 2 * itself.result.tokens()) << "the reference's, too";

  request.mutable_setting()->set_model_level_percent(50);
  request.set_report_tokens(true);
  request.set_logprobs(2);
  const ScoredText level = Score(*stub_, request);
  ASSERT_TRUE(level.status.ok()) << level.status.error_message();
  EXPECT_GT(level.result.divergence_mean(), 0);
  EXPECT_EQ(level.result.reference_perplexity(), itself.result.perplexity());
  ASSERT_EQ(level.tokens.size(), level.result.tokens());
  double sum = 0;
  std::string text;
  for (const v1::Token& token : level.tokens) {
    EXPECT_EQ(token.alternatives_size(), 2);
    sum += static_cast<double>(token.logprob());
    text += token.text();
  }
  EXPECT_NEAR(sum, level.result.logprob_sum(), 1e-3 * std::abs(sum));
  EXPECT_TRUE(text.ends_with(request.text())) << text;

  request.mutable_setting()->clear_model_level_percent();
  request.mutable_setting()->set_kv_format(v1::KV_FORMAT_Q2);
  request.set_window_tokens(128);
  const ScoredText format = Score(*stub_, request);
  ASSERT_TRUE(format.status.ok()) << format.status.error_message();
  EXPECT_GT(format.result.divergence_mean(), 0);

  request.set_window_tokens(0);
  request.mutable_prompt()->set_text("A beginning.");
  const ScoredText behind = Score(*stub_, request);
  ASSERT_TRUE(behind.status.ok()) << behind.status.error_message();
  EXPECT_GE(behind.result.tokens(), itself.result.tokens());
}

TEST_F(ServiceTest, WhatCannotBeScoredIsNamed) {
  StartStore();
  StartWorker();
  WaitUntilServing(true);
  const auto refusal = [&](const v1::ScoreRequest& request, grpc::StatusCode code) {
    const grpc::Status status = Score(*stub_, request).status;
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  };
  v1::ScoreRequest request;
  EXPECT_THAT(refusal(request, grpc::StatusCode::INVALID_ARGUMENT), HasSubstr("text is empty"));
  request.set_text("words ");
  request.mutable_setting()->set_model_level_percent(30);
  EXPECT_THAT(refusal(request, grpc::StatusCode::INVALID_ARGUMENT),
              HasSubstr("setting.model_level_percent is 30"));
  request.mutable_setting()->clear_model_level_percent();
  request.mutable_reference()->set_kv_format(static_cast<v1::KvFormat>(9));
  EXPECT_THAT(refusal(request, grpc::StatusCode::INVALID_ARGUMENT),
              HasSubstr("reference.kv_format is 9"));
  request.clear_reference();
  request.set_window_tokens(1 << 20);
  EXPECT_THAT(refusal(request, grpc::StatusCode::INVALID_ARGUMENT), HasSubstr("window_tokens"));
  request.set_window_tokens(0);
  for (int i = 0; i < 2000; ++i) request.mutable_text()->append("words ");
  EXPECT_THAT(refusal(request, grpc::StatusCode::OUT_OF_RANGE), HasSubstr("set window_tokens"));
  request.set_window_tokens(64);
  EXPECT_TRUE(Score(*stub_, request).status.ok());
}

}  // namespace
}  // namespace withy::model_worker
