// A broken-off answer is no result: a retry with the same request_id answers in full, and the
// context contains the answer once. Only an answer ended by Cancel counts as far as it went.
#include <grpcpp/grpcpp.h>

#include <functional>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/board.h"
#include "tests/e2e/test_model.h"

namespace withy::e2e {
namespace {

constexpr char kQuestion[] = "tell me a long story";
constexpr uint32_t kTokens = 150;

class RetryTest : public ::testing::Test {
 protected:
  void StartBoard(std::vector<std::string> overrides = {}) {
    overrides.push_back("model.path=" + TestSlowPath());
    board_ = std::make_unique<Board>(overrides);
    board_->StartAll();
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("model_worker");
    stub_ = board_->NewStub();
    token_ = board_->BindApp("app");
  }

  std::string CreateContext() { return e2e::CreateContext(*stub_, token_); }
  std::vector<v1::ContextMessage> MessagesOf(const std::string& context_id) {
    grpc::ClientContext context;
    Authorise(&context, token_);
    v1::GetContextRequest request;
    request.set_context_id(context_id);
    v1::GetContextResponse kept;
    const grpc::Status status = stub_->GetContext(&context, request, &kept);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {kept.messages().begin(), kept.messages().end()};
  }
  static v1::GenerateRequest Asking(const std::string& context_id, const std::string& request_id) {
    v1::GenerateRequest request = UserRequest(context_id, kQuestion, kTokens);
    request.set_request_id(request_id);
    return request;
  }
  // The answer without a failure.
  std::string Whole() {
    const Answer answer =
        Generate(*stub_, token_, UserRequest(CreateContext(), kQuestion, kTokens));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    whole_reason_ = answer.finished.reason();
    return answer.text;
  }
  // Calls Generate and runs `then` after the fourth delta; reading continues if it returns true.
  Answer AskUntil(const v1::GenerateRequest& request, const std::function<bool()>& then) {
    int deltas = 0;
    return Generate(*stub_, token_, request,
                    [&](const Answer&) { return ++deltas != 4 || then(); });
  }
  // Retries as an app does, and checks the answer and the context.
  void ExpectWholeOnRetry(const v1::GenerateRequest& request, const std::string& whole) {
    const Answer retried = GenerateWithRetry(*stub_, token_, request);
    ASSERT_TRUE(retried.status.ok()) << retried.status;
    EXPECT_EQ(retried.text, whole);
    EXPECT_EQ(retried.finished.text(), whole);
    EXPECT_EQ(retried.finished.reason(), whole_reason_);
    const Answer again = GenerateWithRetry(*stub_, token_, request);
    EXPECT_TRUE(again.started.replayed());
    EXPECT_EQ(again.text, whole);
    if (request.context_id().empty()) return;
    const std::vector<v1::ContextMessage> kept = MessagesOf(request.context_id());
    ASSERT_EQ(kept.size(), 2u) << "the exchange once, and no part of it";
    EXPECT_EQ(kept[0].message().content(), kQuestion);
    EXPECT_EQ(kept[1].message().content(), whole);
    EXPECT_FALSE(kept[1].cancelled());
  }
  void Restart(const std::string& process) {
    board_->Kill(process);
    board_->Start(process);
  }

  std::unique_ptr<Board> board_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
  v1::FinishReason whole_reason_ = v1::FINISH_REASON_UNSPECIFIED;
};

class BreakTest : public RetryTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(BreakTest, AKilledProcessIsNoCancel) {
  StartBoard();
  const std::string whole = Whole();
  for (const std::string& context : {CreateContext(), std::string()}) {
    const v1::GenerateRequest request = Asking(context, "story in " + context);
    const Answer broken = AskUntil(request, [&] {
      Restart(GetParam());
      return true;
    });
    EXPECT_NE(broken.finished.reason(), v1::FINISH_REASON_CANCELLED);
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log(GetParam());
    ExpectWholeOnRetry(request, whole);
  }
}

INSTANTIATE_TEST_SUITE_P(EachProcess, BreakTest,
                         ::testing::Values("orchestrator", "model_worker", "context_store"));

class DrainTest : public RetryTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(DrainTest, AProcessThatStopsInMidAnswerIsNoCancel) {
  StartBoard({"orchestrator.drain_s=1"});
  const v1::GenerateRequest request = Asking(CreateContext(), "story");
  const Answer broken = AskUntil(request, [&] {
    board_->Stop(GetParam());
    board_->Start(GetParam());
    return true;
  });
  EXPECT_NE(broken.finished.reason(), v1::FINISH_REASON_CANCELLED);
  ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log(GetParam());
  ExpectWholeOnRetry(request, Whole());
}

INSTANTIATE_TEST_SUITE_P(EachProcess, DrainTest, ::testing::Values("orchestrator", "model_worker"));

TEST_F(RetryTest, AClientThatGoesIsNoCancel) {
  StartBoard();
  const std::string whole = Whole();
  const v1::GenerateRequest request = Asking(CreateContext(), "story");
  const Answer broken = AskUntil(request, [] { return false; });
  EXPECT_EQ(broken.status.code(), absl::StatusCode::kCancelled);
  ExpectWholeOnRetry(request, whole);
  // Everything survives.
  for (const std::string& process : kProcesses) board_->Kill(process);
  board_->StartAll();
  ASSERT_TRUE(board_->WaitUntilServing());
  ExpectWholeOnRetry(request, whole);
}

TEST_F(RetryTest, ADeadlineThatPassesIsNoCancel) {
  StartBoard();
  const absl::Time began = absl::Now();
  const std::string whole = Whole();
  const absl::Duration half = (absl::Now() - began) / 2;
  const v1::GenerateRequest request = Asking(CreateContext(), "story");
  const Answer late = Generate(*stub_, token_, request, nullptr, half);
  EXPECT_NE(late.finished.reason(), v1::FINISH_REASON_CANCELLED);
  ExpectWholeOnRetry(request, whole);
}

TEST_F(RetryTest, WhatTheCallerCancelsIsItsResult) {
  StartBoard();
  const v1::GenerateRequest request = Asking(CreateContext(), "story");
  const Answer cancelled = AskUntil(request, [&] {
    grpc::ClientContext context;
    Authorise(&context, token_);
    v1::CancelRequest cancel;
    cancel.set_request_id("story");
    v1::CancelResponse response;
    const grpc::Status status = stub_->Cancel(&context, cancel, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return true;
  });
  ASSERT_TRUE(cancelled.status.ok()) << cancelled.status;
  EXPECT_EQ(cancelled.finished.reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_EQ(cancelled.finished.text(), cancelled.text);
  EXPECT_LT(cancelled.finished.usage().completion_tokens(), kTokens);
  const Answer again = Generate(*stub_, token_, request);
  ASSERT_TRUE(again.status.ok()) << again.status;
  EXPECT_TRUE(again.started.replayed());
  EXPECT_EQ(again.finished.reason(), v1::FINISH_REASON_CANCELLED);
  EXPECT_EQ(again.text, cancelled.text);
  const std::vector<v1::ContextMessage> kept = MessagesOf(request.context_id());
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_TRUE(kept[1].cancelled());
  EXPECT_EQ(kept[1].message().content(), cancelled.text);
}

TEST_F(RetryTest, ARetryAfterAnotherExchangeComesLast) {
  StartBoard();
  const std::string context = CreateContext();
  const v1::GenerateRequest request = Asking(context, "story");
  const Answer broken = AskUntil(request, [] { return false; });
  ASSERT_EQ(broken.status.code(), absl::StatusCode::kCancelled);
  ASSERT_TRUE(Generate(*stub_, token_, UserRequest(context, "something else", 4)).status.ok());
  std::vector<v1::ContextMessage> kept = MessagesOf(context);
  ASSERT_EQ(kept.size(), 4u);
  EXPECT_TRUE(kept[1].cancelled()) << "what was said stays until the retry";
  const Answer retried = GenerateWithRetry(*stub_, token_, request);
  ASSERT_TRUE(retried.status.ok()) << retried.status;
  EXPECT_GT(retried.text.size(), broken.text.size());
  EXPECT_NE(retried.finished.reason(), v1::FINISH_REASON_CANCELLED);
  kept = MessagesOf(context);
  ASSERT_EQ(kept.size(), 4u);
  EXPECT_EQ(kept[0].message().content(), "something else");
  EXPECT_EQ(kept[2].message().content(), kQuestion);
  EXPECT_EQ(kept[3].message().content(), retried.text);
}

TEST_F(RetryTest, ARetryDrawsWhatTheFirstTryDrew) {
  StartBoard();
  v1::GenerateRequest request = Asking(CreateContext(), "story");
  request.mutable_sampling()->set_temperature(1);
  const Answer broken = AskUntil(request, [] { return false; });
  ASSERT_EQ(broken.status.code(), absl::StatusCode::kCancelled);
  const Answer retried = GenerateWithRetry(*stub_, token_, request);
  ASSERT_TRUE(retried.status.ok()) << retried.status;
  EXPECT_THAT(retried.text, ::testing::StartsWith(broken.text));
}

TEST_F(RetryTest, TheIdOfWhatBrokeOffIsNoOtherRequests) {
  StartBoard();
  const std::string context = CreateContext();
  const Answer broken = AskUntil(Asking(context, "story"), [] { return false; });
  ASSERT_EQ(broken.status.code(), absl::StatusCode::kCancelled);
  v1::GenerateRequest other = UserRequest(context, "something else", 4);
  other.set_request_id("story");
  const Answer refused = GenerateWithRetry(*stub_, token_, other);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kAlreadyExists) << refused.status;
}

}  // namespace
}  // namespace withy::e2e
