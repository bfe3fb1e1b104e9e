// LlmService.Score before a scripted worker.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/contract_limits.h"
#include "orchestrator/call/validate.h"
#include "orchestrator/testing.h"

namespace withy::orchestrator {
namespace {

using grpc::StatusCode;
using testing::HasSubstr;

grpc::Status Score(Board& board, const v1::ScoreRequest& request,
                   const std::string& token = "good") {
  return ScoreCall(board, request, token).Finish();
}

TEST(ScoreTest, AnAppsTextIsScoredByTheWorker) {
  Board board;
  ScoreCall call(board, TextRequest("hello"));
  const grpc::Status status = call.Finish();
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(call.last.result().tokens(), 5u);
  EXPECT_EQ(call.last.progress(), 1);
  EXPECT_EQ(Score(board, TextRequest("hello"), "bad").error_code(), StatusCode::UNAUTHENTICATED);
}

TEST(ScoreTest, BadRequestsAreNamed) {
  Board board;
  const auto refusal = [&](const v1::ScoreRequest& request, StatusCode code) {
    const grpc::Status status = Score(board, request);
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    return status.error_message();
  };
  EXPECT_THAT(refusal(TextRequest(""), StatusCode::INVALID_ARGUMENT), HasSubstr("text is empty"));
  EXPECT_THAT(
      refusal(TextRequest(std::string(kMaxScoreBytes + 1, 'x')), StatusCode::INVALID_ARGUMENT),
      HasSubstr("text is 3145729 bytes long"));
  EXPECT_THAT(refusal(TextRequest("\xff\xfe"), StatusCode::INVALID_ARGUMENT), HasSubstr("UTF-8"));
  v1::ScoreRequest request = TextRequest("x");
  request.set_logprobs(21);
  EXPECT_THAT(refusal(request, StatusCode::INVALID_ARGUMENT), HasSubstr("logprobs is 21"));
  request = TextRequest("x");
  request.mutable_prompt()->set_text("before it");
  request.set_window_tokens(64);
  EXPECT_THAT(refusal(request, StatusCode::INVALID_ARGUMENT), HasSubstr("window_tokens"));
  request = TextRequest("x");
  request.set_model("nobody");
  EXPECT_THAT(refusal(request, StatusCode::NOT_FOUND), HasSubstr("nobody"));
  request.set_model("draft");
  EXPECT_THAT(refusal(request, StatusCode::UNIMPLEMENTED), HasSubstr("--against"));
  EXPECT_TRUE(Score(board, TextRequest(std::string(kMaxScoreBytes, 'x'))).ok())
      << "the longest text passes the server's limit of a request";
}

TEST(ScoreTest, OneTextIsScoredAtATimeAndEndsWithItsCaller) {
  Board board;
  ScoreCall first(board, TextRequest("hold"));
  ASSERT_TRUE(first.HasBegun());
  ScoreCall second(board, TextRequest("hello"));
  EXPECT_EQ(second.Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(second.context.GetServerTrailingMetadata().count("retry-after-ms"), 1u);
  EXPECT_TRUE(board.Generate(Ask("hello")).status.ok()) << "calls go on";
  first.context.TryCancel();
  EXPECT_EQ(first.Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(board.worker.scorer.AwaitCancelled(1));
}

TEST(ScoreTest, WithoutAWorkerItIsUnavailableByName) {
  Board board;
  board.StopWorker();
  const grpc::Status status = Score(board, TextRequest("hello"));
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(status.error_message(), HasSubstr("model_worker"));
}

}  // namespace
}  // namespace withy::orchestrator
