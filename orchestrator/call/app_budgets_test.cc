#include "orchestrator/call/app_budgets.h"

#include <grpcpp/grpcpp.h>

#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/openai/rate_limits.h"
#include "orchestrator/testing.h"
#include "rpc/error_reason.h"
#include "rpc/status.h"
#include "telemetry/reader.h"
#include "telemetry/test_directory.h"

namespace withy::orchestrator {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kHourNanos = 3600 * kNanosPerSecond;

class AppBudgetsTest : public ::testing::Test {
 protected:
  AppBudgetsTest() {
    config_.set_state_dir(directory_.path());
    v1::AppBudget& mail = *config_.mutable_orchestrator()->add_app_budgets();
    mail.set_app("mail");
    mail.set_tokens_per_hour(100);
    mail.set_joules_per_day(10);
    mail.set_concurrent_calls(2);
  }
  void Open() {
    budgets_.reset();  // writes
    budgets_.emplace(config_, *recorder_, clock_);
  }
  std::string Refusal(const std::string& app) {
    return std::string(budgets_->Begin(app).status().message());
  }

  telemetry::TestDirectory directory_;
  std::unique_ptr<telemetry::Recorder> recorder_ =
      *telemetry::Recorder::Open(directory_.path(), "orchestrator");
  v1::Config config_;
  FakeClock clock_{500'000 * kHourNanos};
  std::optional<AppBudgets> budgets_;
};

TEST_F(AppBudgetsTest, AUsedUpBudgetRefusesUntilItsHourEnds) {
  Open();
  clock_.Advance(kHourNanos / 4);
  EXPECT_EQ(Refusal("mail"), "");
  const auto left = budgets_->Spend("mail", 130, 0.5);
  ASSERT_EQ(left.size(), 2u);
  EXPECT_EQ(left[0].budget(), "tokens_per_hour");
  EXPECT_EQ(left[0].left(), 0u);
  EXPECT_EQ(left[1].left(), 9u);
  const absl::Status refused = budgets_->Begin("mail").status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(NamedReason(refused), "BUDGET_REACHED");
  EXPECT_EQ(rpc::RetryAfterMs(refused), 45 * 60 * 1000);
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("app mail"), HasSubstr("100 tokens"), HasSubstr("45m")));
  clock_.Advance(kHourNanos);
  EXPECT_EQ(Refusal("mail"), "");
}

TEST_F(AppBudgetsTest, CallsAtTheSameTimeAreCountedAndGivenBack) {
  Open();
  {
    const auto first = budgets_->Begin("mail"), second = budgets_->Begin("mail");
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_THAT(Refusal("mail"), HasSubstr("concurrent_calls"));
    EXPECT_EQ(budgets_->LeftOf("mail").running_calls, 2u);
    EXPECT_EQ(Refusal("other"), "");  // has no budgets
  }
  EXPECT_EQ(Refusal("mail"), "");
  EXPECT_EQ(budgets_->LeftOf("mail").running_calls, 0u);
}

TEST_F(AppBudgetsTest, OthersShareLimitsButNotWhatIsLeft) {
  v1::AppBudget& others = *config_.mutable_orchestrator()->add_app_budgets();
  others.set_app("*");
  others.set_tokens_per_day(10);
  Open();
  budgets_->Spend("maps", 10, 0);
  EXPECT_THAT(Refusal("maps"), HasSubstr("tokens_per_day"));
  EXPECT_EQ(Refusal("news"), "");
  EXPECT_EQ(Refusal("mail"), "");
}

TEST_F(AppBudgetsTest, WhatWasUsedOutlivesTheProcess) {
  Open();
  budgets_->Spend("mail", 60, 2.5);
  Open();
  EXPECT_EQ(budgets_->LeftOf("mail").budgets[0].left, 40u);
  EXPECT_EQ(budgets_->LeftOf("mail").budgets[1].left, 7u);
  budgets_->Spend("mail", 60, 0);
  Open();
  EXPECT_THAT(Refusal("mail"), HasSubstr("tokens_per_hour"));
}

TEST_F(AppBudgetsTest, ADamagedFileIsReadAsFarAsItGoes) {
  std::ofstream(directory_.path() + "/budgets")
      << "mail tokens_per_hour 500000 70\nmail nonsense 1 2\nmail joules_per_day x 5\n\nx\n";
  Open();
  EXPECT_EQ(budgets_->LeftOf("mail").budgets[0].left, 30u);
  EXPECT_EQ(budgets_->LeftOf("mail").budgets[1].left, 10u);
}

TEST_F(AppBudgetsTest, MetricsAreByApp) {
  Open();
  budgets_->Spend("mail", 60, 2.6);
  budgets_->Spend("mail", 60, 0.6);
  EXPECT_NE(Refusal("mail"), "");
  auto reader = *telemetry::Reader::Open(directory_.path());
  EXPECT_TRUE(reader->Drain([](const telemetry::SpanEvent&) {}).empty());
  std::map<std::string, uint64_t> values;
  for (const telemetry::SourceInfo& source : reader->Sources()) {
    for (const telemetry::MetricSample& sample : source.metrics) {
      if (sample.label_value == "mail") values[sample.name] = sample.bits;
    }
  }
  EXPECT_EQ(values["withy_app_tokens_total"], 120u);
  EXPECT_EQ(values["withy_app_joules_total"], 3u);
  EXPECT_EQ(values["withy_app_budget_refusals_total"], 1u);
  EXPECT_EQ(values["withy_app_budget_tokens_left"], 0u);
  EXPECT_EQ(values["withy_app_budget_joules_left"], 6u);
}

TEST_F(AppBudgetsTest, HeadersSayWhatOpenAiClientsRead) {
  Open();
  budgets_->Spend("mail", 30, 0);
  const auto place = budgets_->Begin("mail");
  EXPECT_EQ(RateLimitHeaders(budgets_->LeftOf("mail")),
            "x-ratelimit-limit-tokens: 100\r\nx-ratelimit-remaining-tokens: 70\r\n"
            "x-ratelimit-reset-tokens: 1h\r\nx-ratelimit-limit-requests: 2\r\n"
            "x-ratelimit-remaining-requests: 1\r\n");
  EXPECT_EQ(RateLimitHeaders(budgets_->LeftOf("other")), "");
}

// Calls through the whole orchestrator.
TEST(BudgetedCallTest, IsChargedToldAndRefused) {
  v1::Config config;
  v1::AppBudget& budget = *config.mutable_orchestrator()->add_app_budgets();
  budget.set_app("one");
  budget.set_tokens_per_day(12);
  Board board(config);
  Outcome first = board.Generate(Ask("hello"));
  ASSERT_TRUE(first.status.ok()) << first.status.error_message();
  ASSERT_EQ(first.finished.budgets_size(), 1);
  const v1::Usage& usage = first.finished.usage();
  const uint32_t used = usage.context_tokens() + usage.prompt_tokens() + usage.completion_tokens();
  EXPECT_GT(used, 0u);
  EXPECT_EQ(first.finished.budgets(0).left(), used >= 12 ? 0 : 12 - used);
  Outcome last = first;
  for (int i = 0; i < 12 && last.status.ok(); ++i) last = board.Generate(Ask("hello"));
  EXPECT_EQ(last.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(last.status.error_message(), HasSubstr("tokens_per_day"));
  EXPECT_NE(last.retry_after_ms, "");
}

TEST(BudgetedCallTest, ACallThatBreaksOffIsChargedToo) {
  v1::Config config;
  v1::AppBudget& budget = *config.mutable_orchestrator()->add_app_budgets();
  budget.set_app("*");
  budget.set_tokens_per_day(1);
  Board board(config);
  EXPECT_FALSE(board.Generate(Ask("die late")).status.ok());
  EXPECT_THAT(board.Generate(Ask("hello")).status.error_message(), HasSubstr("tokens_per_day"));
}

// The methods beside Generate.
class OtherBudgetedCallsTest : public ::testing::Test {
 protected:
  static v1::Config With(uint64_t tokens_per_day, uint32_t concurrent_calls) {
    v1::Config config;
    v1::AppBudget& budget = *config.mutable_orchestrator()->add_app_budgets();
    budget.set_app("one");
    budget.set_tokens_per_day(tokens_per_day);
    budget.set_concurrent_calls(concurrent_calls);
    return config;
  }
  // Each with a context of its own, whose metadata of the end are kept.
  grpc::Status Score(Board& board, const std::string& text) {
    Renew();
    v1::ScoreRequest request;
    request.set_text(text);
    const auto reader = board.stub().Score(context_.get(), request);
    v1::ScoreResponse message;
    while (reader->Read(&message)) continue;
    return reader->Finish();
  }
  grpc::Status Count(Board& board) {
    Renew();
    v1::CountTokensRequest request;
    request.mutable_prompt()->set_text("hello");
    v1::CountTokensResponse response;
    return board.stub().CountTokens(context_.get(), request, &response);
  }
  grpc::Status Plan(Board& board) {
    Renew();
    v1::PlanResponse response;
    return board.stub().Plan(context_.get(), Ask("hello"), &response);
  }
  // That all methods are refused for `cause`, and how.
  void ExpectAllRefused(Board& board, const std::string& cause) {
    const auto expect = [&](const grpc::Status& status, const char* method) {
      EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << method;
      EXPECT_THAT(status.error_message(), HasSubstr(cause)) << method;
      const absl::Status refused = rpc::FromGrpc(status);
      EXPECT_EQ(NamedReason(refused), "BUDGET_REACHED") << method;
      EXPECT_TRUE(rpc::RetryAfterMs(refused).has_value()) << method;
      EXPECT_EQ(context_->GetServerTrailingMetadata().count("retry-after-ms"), 1u) << method;
    };
    expect(Count(board), "CountTokens");
    expect(Plan(board), "Plan");
    expect(Score(board, "hello"), "Score");
    EXPECT_THAT(board.Generate(Ask("hello")).status.error_message(), HasSubstr(cause));
  }
  // "withy_app_budget_tokens_left" and the like, of the app "one".
  static std::map<std::string, uint64_t> Metrics(const Board& board) {
    auto reader = *telemetry::Reader::Open(board.config().run_dir() + "/rings");
    EXPECT_TRUE(reader->Drain([](const telemetry::SpanEvent&) {}).empty());
    std::map<std::string, uint64_t> values;
    for (const telemetry::SourceInfo& source : reader->Sources()) {
      for (const telemetry::MetricSample& sample : source.metrics) {
        if (sample.label_value == "one") values[sample.name] = sample.bits;
      }
    }
    return values;
  }

 private:
  void Renew() {
    context_ = std::make_unique<grpc::ClientContext>();
    Authorise(context_.get());
  }

  std::unique_ptr<grpc::ClientContext> context_;
};

TEST_F(OtherBudgetedCallsTest, AScoreIsChargedWithWhatItComputesAndOthersWithNothing) {
  Board board(With(12, 0));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Count(board).ok());
    EXPECT_TRUE(Plan(board).ok());
  }
  EXPECT_TRUE(Score(board, "hello").ok());
  EXPECT_EQ(Metrics(board)["withy_app_budget_tokens_left"], 7u);
  EXPECT_FALSE(Score(board, "die late").ok());
  EXPECT_EQ(Metrics(board)["withy_app_budget_tokens_left"], 3u) << "half of its eight tokens";
  EXPECT_TRUE(Score(board, "hello").ok()) << "the one that uses it up";
  ExpectAllRefused(board, "tokens_per_day");
  std::map<std::string, uint64_t> metrics = Metrics(board);
  EXPECT_EQ(metrics["withy_app_budget_tokens_left"], 0u);
  EXPECT_EQ(metrics["withy_app_tokens_total"], 14u);
  EXPECT_EQ(metrics["withy_app_budget_refusals_total"], 4u);
}

TEST_F(OtherBudgetedCallsTest, EachIsOneOfTheConcurrentCalls) {
  Board board(With(0, 1));
  EXPECT_TRUE(Count(board).ok());
  EXPECT_TRUE(Plan(board).ok());
  EXPECT_TRUE(Score(board, "hello").ok());
  OpenCall call(board, Ask("hold"));
  ExpectAllRefused(board, "concurrent_calls");
  board.worker.Release();
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_TRUE(Count(board).ok()) << "each has given its place back";
}

TEST_F(OtherBudgetedCallsTest, ATextThatIsScoredHoldsAPlace) {
  Board board(With(0, 1));
  ScoreCall scored(board, TextRequest("hold"));
  ASSERT_TRUE(scored.HasBegun());
  EXPECT_THAT(Count(board).error_message(), HasSubstr("concurrent_calls"));
  board.worker.Release();
  EXPECT_TRUE(scored.Finish().ok());
  EXPECT_TRUE(Count(board).ok());
}

}  // namespace
}  // namespace withy::orchestrator
