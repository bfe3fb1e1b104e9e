// Calls with a request_id, and their retries: over real sockets, with scripted processes behind.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/call/digest.h"
#include "orchestrator/testing.h"

namespace withy::orchestrator {
namespace {

using grpc::StatusCode;

TEST(ReplayTest, ARetryDrawsWhatTheCallBeforeItDrew) {
  Board board;
  v1::GenerateRequest request = Ask("hello");
  request.set_request_id("r1");
  const auto seed = [&](const v1::GenerateRequest& asked) {
    EXPECT_TRUE(board.Generate(asked).status.ok());
    return board.worker.runs().back().sampling().seed();
  };
  const uint64_t first = seed(request);
  EXPECT_EQ(seed(request), first) << "nothing was stored: it is answered again";
  request.set_request_id("r2");
  EXPECT_NE(seed(request), first);
  request.clear_request_id();
  EXPECT_NE(seed(request), seed(request));
  request.mutable_sampling()->set_seed(5);
  EXPECT_EQ(seed(request), 5u);
}

TEST(ReplayTest, ADigestIsOfWhatTheAnswerDependsOn) {
  v1::GenerateRequest request = Ask("hello");
  const std::string digest = RequestDigest(request);
  request.set_report_progress(true);
  request.set_request_id("r1");
  EXPECT_EQ(RequestDigest(request), digest);
  request.mutable_sampling()->set_temperature(0);
  EXPECT_NE(RequestDigest(request), digest) << "greedy is not the default";
}

TEST(ReplayTest, ARetryGetsTheStoredResult) {
  Board board;
  v1::GenerateRequest request = Ask("hello");
  request.set_request_id("r1");
  v1::StoredResult result;
  result.mutable_finished()->set_text("stored");
  result.mutable_decision()->set_model_level_percent(40);
  board.store.Keep("r1", RequestDigest(request), result);
  const Outcome outcome = board.Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_TRUE(outcome.started.replayed());
  EXPECT_EQ(outcome.started.decision().model_level_percent(), 40u);
  EXPECT_EQ(outcome.text, "stored");
  EXPECT_EQ(outcome.finished.text(), "stored");
  EXPECT_TRUE(board.worker.runs().empty());
  request.mutable_prompt()->set_text("something else");
  EXPECT_EQ(board.Generate(request).status.error_code(), StatusCode::ALREADY_EXISTS);
  request.set_request_id("r2");
  EXPECT_EQ(board.Generate(request).text, "abc");
  EXPECT_EQ(board.worker.runs()[0].request_digest(), RequestDigest(request));
}

// By what was measured when the answer was made: the worker, which stores it, knows no SLO.
TEST(ReplayTest, AStoredResultIsJudgedByTheSloOfItsCall) {
  Board board;
  v1::GenerateRequest request = Ask("hello");
  v1::StoredResult result;
  result.mutable_decision()->mutable_full_model()->set_ttft_ms(100);
  result.mutable_finished()->mutable_latency()->mutable_measured()->set_ttft_ms(60);
  const auto met = [&](double ttft_ratio) {
    request.mutable_slo()->set_ttft_ratio(ttft_ratio);
    request.set_request_id(absl::StrCat("r", ttft_ratio));
    board.store.Keep(request.request_id(), RequestDigest(request), result);
    return board.Generate(request).finished.latency().slo_met();
  };
  EXPECT_TRUE(met(0)) << "no SLO";
  EXPECT_TRUE(met(0.6));
  EXPECT_FALSE(met(0.5));
}

// The full model would have taken 7 ms a token and 12 more for the first ones.
TEST(ReplayTest, AStoredResultIsJudgedByItsLength) {
  Board board;
  v1::GenerateRequest request = Ask("hello");
  request.mutable_slo()->set_tpot_ratio(0.5);
  v1::StoredResult result;
  result.mutable_decision()->mutable_full_model()->set_tpot_ms(10);
  result.mutable_decision()->set_answer_tokens(5);
  result.mutable_decision()->set_full_model_ramp_ms(12);
  result.mutable_finished()->mutable_latency()->mutable_measured()->set_tpot_ms(6.7);
  const auto met = [&](int tokens) {
    result.clear_tokens();
    for (int i = 0; i < tokens; ++i) result.add_tokens();
    request.set_request_id(absl::StrCat("r", tokens));
    board.store.Keep(request.request_id(), RequestDigest(request), result);
    return board.Generate(request).finished.latency().slo_met();
  };
  EXPECT_TRUE(met(3)) << "13 ms a token";
  EXPECT_FALSE(met(5));
}

// The second waits for the first, and is answered when that has ended.
TEST(ReplayTest, OneAnswerAtATimeForARequestId) {
  Board board;
  v1::GenerateRequest request = Ask("hold");
  request.set_request_id("r1");
  OpenCall first(board, request);
  std::thread release([&] { board.worker.Release(); });
  const Outcome second = board.Generate(request);
  release.join();
  EXPECT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_TRUE(first.Finish().ok());
}

TEST(ReplayTest, ARetryAfterADeadlineIsAnswered) {
  Board board;
  v1::GenerateRequest request = Ask("hold");
  request.set_request_id("r1");
  for (int tries = 0; tries < 2; ++tries) {
    grpc::ClientContext context;
    Authorise(&context);
    // A busy machine begins the answer before it.
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
    const auto reader = board.stub().Generate(&context, request);
    v1::GenerateResponse message;
    int starts = 0;
    while (reader->Read(&message)) starts += message.has_started() ? 1 : 0;
    EXPECT_EQ(reader->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
    EXPECT_EQ(starts, 1);
  }
  board.worker.Release();
  EXPECT_TRUE(board.Generate(request).status.ok());
}

}  // namespace
}  // namespace withy::orchestrator
