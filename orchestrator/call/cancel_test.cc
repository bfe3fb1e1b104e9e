// Answers that their callers end on purpose, and the seeds that make a retry the same.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>

#include "orchestrator/testing.h"

namespace withy::orchestrator {
namespace {

using grpc::StatusCode;

grpc::Status Cancel(Board& board, const v1::CancelRequest& request,
                    const std::string& token = "good") {
  grpc::ClientContext context;
  Authorise(&context, token);
  v1::CancelResponse response;
  return board.stub().Cancel(&context, request, &response);
}

// What the caller ends on purpose comes to its end, in contrast to what breaks off.
TEST(CancelTest, CancelEndsAnAnswerWithItsPart) {
  Board board;
  board.StartDraft();
  for (const std::string model : {"target", "draft"}) {
    v1::GenerateRequest request = Ask("hold");
    request.set_request_id("held");
    request.set_model(model);
    OpenCall call(board, request);
    v1::CancelRequest cancel;
    cancel.set_request_id("held");
    const grpc::Status told = Cancel(board, cancel);
    EXPECT_TRUE(told.ok()) << told.error_message();
    v1::GenerateResponse message, last;
    while (call.reader->Read(&message)) last = message;
    EXPECT_TRUE(call.reader->Finish().ok());
    EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_CANCELLED);
    EXPECT_EQ(last.finished().text(), "a");
    EXPECT_EQ(Cancel(board, cancel).error_code(), StatusCode::NOT_FOUND) << "it is over";
  }
}

TEST(CancelTest, CancelByTheIdOfTheCall) {
  Board board;
  grpc::ClientContext context;
  Authorise(&context);
  const auto reader = board.stub().Generate(&context, Ask("hold"));
  v1::GenerateResponse message, last;
  v1::CancelRequest cancel;
  while (reader->Read(&message) && !message.has_delta()) {
    if (message.has_started()) cancel.set_call_id(message.started().call_id());
  }
  EXPECT_TRUE(Cancel(board, cancel).ok());
  while (reader->Read(&message)) last = message;
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(last.finished().reason(), v1::FINISH_REASON_CANCELLED);
}

TEST(CancelTest, CancelOfACallThatWaitsEndsItWithoutAnAnswer) {
  Board board(/*queue_limit=*/8, /*max_batch=*/1);
  OpenCall running(board, Ask("hold"));
  v1::GenerateRequest request = Ask("hello");
  request.set_request_id("waits");
  Outcome waiting;
  std::thread caller([&] { waiting = board.Generate(request); });
  v1::CancelRequest cancel;
  cancel.set_request_id("waits");
  while (Cancel(board, cancel).error_code() == StatusCode::NOT_FOUND) std::this_thread::yield();
  caller.join();
  EXPECT_EQ(waiting.status.error_code(), StatusCode::CANCELLED);
  EXPECT_TRUE(waiting.text.empty());
  board.worker.Release();
  EXPECT_TRUE(running.Finish().ok());
}

TEST(CancelTest, CancelNamesOneCall) {
  Board board;
  v1::CancelRequest cancel;
  EXPECT_EQ(Cancel(board, cancel).error_code(), StatusCode::INVALID_ARGUMENT);
  cancel.set_call_id("0123");
  EXPECT_EQ(Cancel(board, cancel).error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(Cancel(board, cancel, "bad").error_code(), StatusCode::UNAUTHENTICATED);
  cancel.set_request_id("r");
  EXPECT_EQ(Cancel(board, cancel).error_code(), StatusCode::INVALID_ARGUMENT);
}

TEST(CancelTest, ARetryDrawsAsTheFirstTryDid) {
  Board board;
  v1::GenerateRequest request = Ask("hello");
  const auto seed = [&] {
    const Outcome outcome = board.Generate(request);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    return outcome.finished.seed();
  };
  EXPECT_NE(seed(), seed()) << "without a request_id each call is another one";
  request.set_request_id("r");
  const uint64_t first = seed();
  EXPECT_EQ(seed(), first);
  request.set_request_id("s");
  EXPECT_NE(seed(), first);
  request.mutable_sampling()->set_seed(7);
  EXPECT_EQ(seed(), 7u);
}

}  // namespace
}  // namespace withy::orchestrator
