// What the worker tells of its board's speed, and how calls are predicted by it.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "orchestrator/testing.h"

namespace withy::orchestrator {
namespace {

// The worker notices within a few passes that its board has become slow; the next call is decided
// by that.
TEST(BoardSpeedTest, WhatTheWorkerTellsOfItsBoardScalesTheNextPrediction) {
  Board board;
  const auto plan = [&] {
    grpc::ClientContext context;
    Authorise(&context);
    v1::PlanResponse response;
    const grpc::Status status = board.stub().Plan(&context, Ask(std::string(400, 'x')), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return response.decision().predicted().ttft_ms();
  };
  const double before = plan();
  // A call that is cancelled teaches nothing by its own times.
  int calls = 0;
  const auto tell = [&](double slowdown) {
    board.worker.SetSlowdown(slowdown);
    OpenCall call(board, Ask("hold"));
    call.context.TryCancel();
    call.Finish();
    ASSERT_TRUE(board.worker.AwaitCancelled(++calls));
    board.AwaitCalls(0);  // one that runs is counted in the next prediction
  };
  tell(2);
  const double slow = plan();
  EXPECT_NEAR(slow / before, 2, 0.1);
  for (const double useless : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    tell(useless);
    EXPECT_NEAR(plan() / slow, 1, 0.1);
  }
  tell(1e9);
  EXPECT_LE(plan() / before, 8.1) << "bounded";
}

}  // namespace
}  // namespace withy::orchestrator
