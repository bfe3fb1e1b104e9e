// What profiler_agent is told of calls that were refused.
#include "orchestrator/call/refusals.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "orchestrator/testing.h"
#include "rpc/error_reason.h"

namespace withy::orchestrator {
namespace {

using testing::HasSubstr;

TEST(FillErrorTest, WordsOfARequestAreNotTold) {
  const auto error_of = [](const absl::Status& status) {
    v1::CallReport report;
    FillError(status, &report);
    EXPECT_EQ(report.status_code(), static_cast<uint32_t>(status.code()));
    return report.reason() + "|" + report.error();
  };
  EXPECT_EQ(error_of(absl::OkStatus()), "|");
  EXPECT_EQ(error_of(absl::InvalidArgumentError("limits.max_tokens is 0: at least 1")),
            "INVALID_REQUEST|limits.max_tokens is not valid");
  EXPECT_EQ(error_of(absl::InvalidArgumentError("prompt.messages[3].content: secret")),
            "INVALID_REQUEST|prompt.messages.content is not valid");
  EXPECT_EQ(error_of(absl::InvalidArgumentError("secret is no JSON")), "INVALID_REQUEST|");
  EXPECT_EQ(error_of(absl::InvalidArgumentError("prompt.secret is no field")), "INVALID_REQUEST|");
  EXPECT_EQ(error_of(WithReason(absl::ResourceExhaustedError("the queue is full"), "QUEUE_FULL")),
            "QUEUE_FULL|the queue is full");
}

class RefusalsTest : public ::testing::Test {
 protected:
  // That the next report is of a refusal by `method` of the app "one" for `reason`; its message.
  static std::string Told(Board& board, const std::string& method, const std::string& reason) {
    const v1::CallReport report = board.profiler.Next();
    EXPECT_EQ(report.method(), method);
    EXPECT_EQ(report.reason(), reason);
    EXPECT_EQ(report.app(), "one");
    EXPECT_EQ(report.refusals(), 1u);
    EXPECT_NE(report.status_code(), 0u);
    EXPECT_NE(report.call_id(), 0u);
    EXPECT_GT(report.arrived_ns(), 0);
    EXPECT_GE(report.ended_ns(), report.arrived_ns());
    return report.error();
  }
  static void ExpectAnswered(Board& board) {
    const v1::CallReport report = board.profiler.Next();
    EXPECT_EQ(report.status_code(), 0u);
    EXPECT_EQ(report.refusals(), 0u);
  }
  static grpc::Status Score(Board& board, const std::string& text) {
    return ScoreCall(board, TextRequest(text)).Finish();
  }
  static grpc::Status Count(Board& board, const v1::CountTokensRequest& request) {
    grpc::ClientContext context;
    Authorise(&context);
    v1::CountTokensResponse response;
    return board.stub().CountTokens(&context, request, &response);
  }
  static grpc::Status Plan(Board& board, const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    Authorise(&context);
    v1::PlanResponse response;
    return board.stub().Plan(&context, request, &response);
  }
};

TEST_F(RefusalsTest, CallsTellWhyTheyDidNotBegin) {
  Board board(/*queue_limit=*/1);
  board.StartProfiler();
  EXPECT_TRUE(board.Generate(Ask("hello")).status.ok());
  ExpectAnswered(board);

  v1::GenerateRequest wrong = Ask("hello");
  wrong.mutable_limits()->set_max_tokens(32'769);
  wrong.set_request_id("once");
  EXPECT_FALSE(board.Generate(wrong).status.ok());
  EXPECT_EQ(Told(board, "", "INVALID_REQUEST"), "limits.max_tokens is not valid");
  EXPECT_FALSE(board.Generate(Ask("\xff\xfe")).status.ok());
  EXPECT_EQ(Told(board, "", "INVALID_REQUEST"), "") << "it cannot be read";

  v1::GenerateRequest strict = Ask("hello");
  strict.mutable_slo()->set_ttft_ms(0.001);
  strict.mutable_slo()->set_strict(true);
  EXPECT_FALSE(board.Generate(strict).status.ok());
  EXPECT_THAT(Told(board, "", "SLO_UNATTAINABLE"), HasSubstr("cannot be met"));

  {
    OpenCall first(board, Ask("hold"));
    EXPECT_FALSE(board.Generate(Ask("hello")).status.ok());
    EXPECT_THAT(Told(board, "", "QUEUE_FULL"), HasSubstr("queue"));
    board.worker.Release();
    EXPECT_TRUE(first.Finish().ok());
    ExpectAnswered(board);
  }

  grpc::ClientContext stranger;
  Authorise(&stranger, "bad");
  EXPECT_FALSE(board.Generate(Ask("hello"), &stranger).status.ok());  // is told of to nobody
  EXPECT_TRUE(board.Generate(Ask("hello")).status.ok());
  ExpectAnswered(board);
}

TEST_F(RefusalsTest, AUsedUpBudgetIsToldByEachMethod) {
  v1::Config config;
  v1::AppBudget& budget = *config.mutable_orchestrator()->add_app_budgets();
  budget.set_app("*");
  budget.set_tokens_per_day(1);
  Board board(config);
  board.StartProfiler();
  EXPECT_TRUE(board.Generate(Ask("hello")).status.ok());
  ExpectAnswered(board);
  v1::CountTokensRequest count;
  count.mutable_prompt()->set_text("hello");
  EXPECT_FALSE(board.Generate(Ask("hello")).status.ok());
  EXPECT_THAT(Told(board, "", "BUDGET_REACHED"), HasSubstr("tokens_per_day"));
  EXPECT_FALSE(Plan(board, Ask("hello")).ok());
  EXPECT_THAT(Told(board, "Plan", "BUDGET_REACHED"), HasSubstr("tokens_per_day"));
  EXPECT_FALSE(Count(board, count).ok());
  EXPECT_THAT(Told(board, "CountTokens", "BUDGET_REACHED"), HasSubstr("tokens_per_day"));
  EXPECT_FALSE(Score(board, "hello").ok());
  EXPECT_THAT(Told(board, "Score", "BUDGET_REACHED"), HasSubstr("tokens_per_day"));
}

TEST_F(RefusalsTest, OtherMethodsTellWhatTheyRefuse) {
  Board board;
  board.StartProfiler();
  EXPECT_FALSE(Score(board, "").ok());
  EXPECT_EQ(Told(board, "Score", "INVALID_REQUEST"), "text is not valid");
  EXPECT_FALSE(Count(board, {}).ok());
  EXPECT_EQ(Told(board, "CountTokens", "INVALID_REQUEST"), "prompt is not valid");
  v1::GenerateRequest foreign = Ask("hello");
  foreign.set_model("nobody");
  EXPECT_FALSE(Plan(board, foreign).ok());
  Told(board, "Plan", "NOT_FOUND");

  ScoreCall scored(board, TextRequest("hold"));
  ASSERT_TRUE(scored.HasBegun());
  EXPECT_FALSE(Score(board, "hello").ok());
  EXPECT_THAT(Told(board, "Score", "QUEUE_FULL"), HasSubstr("being scored"));
  board.worker.Release();
  EXPECT_TRUE(scored.Finish().ok());
}

TEST_F(RefusalsTest, AWorkerThatIsAwayIsNamed) {
  Board board;
  board.StartProfiler();
  board.StopWorker();
  EXPECT_FALSE(Score(board, "hello").ok());
  EXPECT_THAT(Told(board, "Score", "PROCESS_AWAY"), HasSubstr("model_worker"));
}

}  // namespace
}  // namespace withy::orchestrator
