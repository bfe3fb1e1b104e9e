#include "orchestrator/board/readiness.h"

#include <grpcpp/grpcpp.h>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/testing.h"

namespace withy::orchestrator {
namespace {

using ::testing::HasSubstr;

TEST(ReadinessTest, SaysWhichProcessIsAwayAndWhenItIsBack) {
  Board board;
  const auto recorder = telemetry::Recorder::Disabled();
  Backends backends(board.config());
  FakeClock clock;
  Readiness readiness(backends, clock, *recorder);
  EXPECT_EQ(readiness.Why(), "");
  readiness.Look();
  EXPECT_EQ(readiness.Why(), "");
  board.StopWorker();
  readiness.Look();
  EXPECT_THAT(readiness.Why(), HasSubstr("model_worker"));
  board.StartWorker();
  while (!readiness.Why().empty()) readiness.Look();
  readiness.Drain();
  readiness.Look();
  EXPECT_THAT(readiness.Why(), HasSubstr("draining"));
}

// A process that restarts is waited for; one that is away for longer is not.
TEST(ReadinessTest, CallsDoNotWaitForAProcessThatStaysAway) {
  Board board;
  const auto recorder = telemetry::Recorder::Disabled();
  Backends backends(board.config());
  FakeClock clock;
  Readiness readiness(backends, clock, *recorder);
  board.StopWorker();
  readiness.Look();
  clock.Advance(10 * kNanosPerSecond);
  readiness.Look();
  const absl::Time began = absl::Now();
  const auto info = backends.WorkerInfo(policy::Lane::kTarget, absl::InfiniteFuture(), true);
  EXPECT_EQ(info.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - began, absl::Seconds(8)) << "ten seconds, if it waited";
}

TEST(ReadinessTest, TheServiceItselfSaysSo) {
  Board board;
  while (!board.IsServing()) {
  }
  board.StopWorker();
  while (board.IsServing()) {
  }
  grpc::ClientContext context;
  v1::GetStatusResponse response;
  ASSERT_TRUE(board.stub().GetStatus(&context, {}, &response).ok());
  EXPECT_EQ(response.processes(0).health(), "not serving");
  EXPECT_THAT(response.processes(0).status().detail(), HasSubstr("model_worker"));
}

}  // namespace
}  // namespace withy::orchestrator
