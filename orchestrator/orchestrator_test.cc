// The orchestrator over real sockets, with scripted processes behind it.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "orchestrator/testing.h"

namespace withy::orchestrator {
namespace {

using grpc::StatusCode;

using ::testing::HasSubstr;

// A TCP port that is free now.
int FreePort() {
  const UniqueFd socket_fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  bind(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), size);
  getsockname(socket_fd.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin_port);
}

TEST(OrchestratorTest, AnswersAndReports) {
  Board board;
  v1::GenerateRequest request = Ask("hello");
  request.mutable_slo()->set_ttft_ms(5000);
  request.set_priority(3);
  const Outcome outcome = board.Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.text, "abc");
  EXPECT_EQ(outcome.finished.text(), "abc");
  EXPECT_EQ(outcome.started.model(), "fake");
  EXPECT_FALSE(outcome.started.replayed());
  const v1::Decision& decision = outcome.started.decision();
  EXPECT_EQ(decision.model_level_percent(), 100u);
  EXPECT_TRUE(decision.predicted_to_meet_slo());
  EXPECT_NEAR(decision.predicted().ttft_ms(), 6,
              0.01);  // five tokens and one millisecond of overhead
  EXPECT_NEAR(decision.predicted().tpot_ms(), 10, 0.01);
  EXPECT_NEAR(decision.predicted().end_to_end_ms(), 6 + 63 * 10, 0.1)
      << "of an answer as answers are, since the call does not say how long";
  EXPECT_EQ(decision.predicted_prompt_tokens(), 5u);
  const v1::LatencyReport& latency = outcome.finished.latency();
  EXPECT_GT(latency.measured().ttft_ms(), 0);
  EXPECT_GE(latency.measured().end_to_end_ms(), latency.measured().ttft_ms());
  EXPECT_TRUE(latency.slo_met());

  ASSERT_EQ(board.worker.runs().size(), 1u);
  const v1::RunRequest run = board.worker.runs()[0];
  EXPECT_EQ(run.app_id(), "app_1");
  EXPECT_EQ(run.priority(), 3);
  EXPECT_EQ(run.limits().max_tokens(), 0u) << "the worker knows its default";
  EXPECT_EQ(run.expected_tokens(), 64u);
  EXPECT_GT(run.deadline_steady_ns(), 0);
  EXPECT_EQ(run.decision().model_level_percent(), 100u);
  EXPECT_NE(run.call_id(), 0u);
}

// A call that does not say how long its answer may be gets all of the window, which no end-to-end
// time would be enough for.
TEST(OrchestratorTest, ALengthThatNobodySetIsAsAnswersHaveBeen) {
  Board board;
  v1::GenerateRequest request = Ask("hello");
  request.mutable_slo()->set_end_to_end_ms(2000);
  request.mutable_slo()->set_strict(true);
  EXPECT_TRUE(board.Generate(request).status.ok());
  EXPECT_GT(board.worker.runs()[0].targets().end_to_end_ms(), 0);
  EXPECT_EQ(board.worker.runs()[0].expected_tokens(), 64u);
  // Three tokens long, all of them.
  for (int i = 0; i < 40; ++i) ASSERT_TRUE(board.Generate(Ask("hello")).status.ok());
  request.mutable_slo()->set_end_to_end_ms(100);
  EXPECT_TRUE(board.Generate(request).status.ok());
  request.mutable_limits()->set_max_tokens(300);
  EXPECT_EQ(board.Generate(request).status.error_code(), StatusCode::FAILED_PRECONDITION);
}

TEST(OrchestratorTest, SamplingIsForwardedAsItWasAskedFor) {
  Board board;
  v1::GenerateRequest request = Ask("hello");
  ASSERT_TRUE(board.Generate(request).status.ok());
  EXPECT_FALSE(board.worker.runs()[0].sampling().has_temperature()) << "the worker's default";
  EXPECT_TRUE(board.worker.runs()[0].sampling().has_seed());
  request.mutable_sampling()->set_temperature(0);
  ASSERT_TRUE(board.Generate(request).status.ok());
  EXPECT_TRUE(board.worker.runs()[1].sampling().has_temperature()) << "greedy";
}

TEST(OrchestratorTest, ProgressReachesWhoeverAskedForIt) {
  Board board;
  for (const bool asked : {true, false}) {
    v1::GenerateRequest request = Ask("progress");
    request.set_report_progress(asked);
    grpc::ClientContext context;
    Authorise(&context);
    const auto reader = board.stub().Generate(&context, request);
    std::vector<int> events;
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      events.push_back(message.event_case());
      if (!message.has_progress()) continue;
      EXPECT_EQ(message.progress().computed_tokens(), 3u);
      EXPECT_EQ(message.progress().prefill_tokens(), 5u);
    }
    EXPECT_TRUE(reader->Finish().ok());
    const auto told = std::count(events.begin(), events.end(), v1::GenerateResponse::kProgress);
    EXPECT_EQ(told, asked ? 1 : 0);
    if (asked) {
      EXPECT_EQ(events[1], v1::GenerateResponse::kProgress) << "before the first delta";
    }
  }
}

TEST(OrchestratorTest, ATokenIsRequiredAndRememberedForAMoment) {
  Board board;
  for (const char* token : {"", "bad"}) {
    grpc::ClientContext context;
    Authorise(&context, token);
    EXPECT_EQ(board.Generate(Ask("hello"), &context).status.error_code(),
              StatusCode::UNAUTHENTICATED);
  }
  const int before = board.store.authentications();
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(board.Generate(Ask("hello")).status.ok());
  EXPECT_EQ(board.store.authentications(), before + 1);
}

// Before its token is looked at: nobody can fill the memory without one.
TEST(OrchestratorTest, ARequestBeyondEveryLimitIsNotRead) {
  Board board;
  EXPECT_EQ(board.Generate(Ask(std::string(2 << 20, 'x'))).status.error_code(),
            StatusCode::OUT_OF_RANGE);
  EXPECT_EQ(board.Generate(Ask(std::string(5 << 20, 'x'))).status.error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
}

TEST(OrchestratorTest, PlanRefusesWhatGenerateWould) {
  Board board;
  v1::PlanResponse response;
  grpc::ClientContext context;
  Authorise(&context);
  const grpc::Status status = board.stub().Plan(&context, Ask(std::string(40'000, 'x')), &response);
  EXPECT_EQ(status.error_code(), StatusCode::OUT_OF_RANGE);
  EXPECT_THAT(status.error_message(), HasSubstr("needs 40000 tokens and the window has 32768"));
}

TEST(OrchestratorTest, TheDecisionSaysThatTheContextWasAdapted) {
  Board board;
  v1::GenerateRequest request = Ask("adapted");
  request.set_context_id("ctx_of_app_1");
  const Outcome outcome = board.Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_THAT(outcome.started.decision().explanation(),
              HasSubstr("2 of its messages were merged or added"));
  request.mutable_prompt()->set_text("hello");
  EXPECT_THAT(board.Generate(request).started.decision().explanation(),
              testing::Not(HasSubstr("merged")));
}

TEST(OrchestratorTest, AStrictSloIsRefusedWithFiguresElseTold) {
  Board board;
  v1::GenerateRequest request = Ask(std::string(100, 'x'));
  request.mutable_slo()->set_ttft_ms(20);
  request.mutable_slo()->set_strict(true);
  const Outcome refused = board.Generate(request);
  EXPECT_EQ(refused.status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("TTFT 101 ms"));
  EXPECT_TRUE(board.worker.runs().empty());
  request.mutable_slo()->set_strict(false);
  const Outcome told = board.Generate(request);
  ASSERT_TRUE(told.status.ok());
  EXPECT_EQ(told.started.decision().reason(), v1::DECISION_REASON_BEST_EFFORT);
  EXPECT_FALSE(told.started.decision().predicted_to_meet_slo());
}

// The worker says 10 ms for each token and takes none: nobody would find out.
TEST(OrchestratorTest, ARefusedStrictCallHasTheBoardMeasuredAndIsThenAccepted) {
  Board board{v1::Config()};
  v1::GenerateRequest request = Ask("be quick");
  request.mutable_slo()->set_tpot_ms(5);
  request.mutable_slo()->set_strict(true);
  size_t refusals = 0;
  Outcome outcome;
  for (;; ++refusals) {
    const size_t before = board.worker.runs().size();
    outcome = board.Generate(request);
    if (outcome.status.ok() || refusals == 100) break;
    ASSERT_EQ(outcome.status.error_code(), StatusCode::FAILED_PRECONDITION)
        << outcome.status.error_message();
    ASSERT_TRUE(board.worker.AwaitRuns(before + 1)) << "nothing is measured";
    for (const v1::RunRequest& run : board.worker.runs()) {
      ASSERT_NE(run.prompt().text(), "be quick") << "it was refused";
      ASSERT_TRUE(run.context_id().empty() && run.request_id().empty());
    }
  }
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_GT(refusals, 0u);
  EXPECT_LE(board.worker.runs().size(), 25u);
}

TEST(OrchestratorTest, ACallThatRunsStopsTheMeasurement) {
  Board board{v1::Config()};
  board.worker.Hold("one");
  v1::GenerateRequest request = Ask("be quick");
  request.mutable_slo()->set_tpot_ms(5);
  request.mutable_slo()->set_strict(true);
  EXPECT_EQ(board.Generate(request).status.error_code(), StatusCode::FAILED_PRECONDITION);
  ASSERT_TRUE(board.worker.AwaitRuns(1));
  EXPECT_EQ(board.worker.runs()[0].prompt().text().substr(0, 3), "one");
  // Another one that is refused does not.
  EXPECT_EQ(board.Generate(request).status.error_code(), StatusCode::FAILED_PRECONDITION);
  EXPECT_TRUE(board.Generate(Ask("abc")).status.ok());
  EXPECT_TRUE(board.worker.AwaitCancelled(1));
}

TEST(OrchestratorTest, AFullQueueRefusesWithAdvice) {
  Board board(/*queue_limit=*/2);
  OpenCall first(board, Ask("hold"));
  OpenCall second(board, Ask("hold"));
  const Outcome refused = board.Generate(Ask("hello"));
  EXPECT_EQ(refused.status.error_code(), StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(refused.status.error_message(), HasSubstr("queue"));
  EXPECT_GE(std::stoi(refused.retry_after_ms), 50);
  board.worker.Release();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
  EXPECT_TRUE(board.Generate(Ask("hello")).status.ok());
}

TEST(OrchestratorTest, CallsBeyondTheBatchWaitForASlot) {
  Board board(/*queue_limit=*/8, /*max_batch=*/1);
  OpenCall first(board, Ask("hold"));
  Outcome second;
  std::thread caller([&] { second = board.Generate(Ask("hello")); });
  board.AwaitCalls(2);
  EXPECT_EQ(board.worker.runs().size(), 1u);
  board.worker.Release();
  caller.join();
  EXPECT_TRUE(second.status.ok());
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_EQ(board.worker.runs().size(), 2u);
}

// What runs has half a second a token, 10 ms of which it takes: 7.8 s of slack in its next tokens.
TEST(OrchestratorTest, APrefillThatARunningSloCannotBearWaits) {
  Board board;
  v1::GenerateRequest promised = Ask("hold");
  promised.mutable_slo()->set_tpot_ms(500);
  OpenCall first(board, promised);
  Outcome second;
  std::thread caller([&] { second = board.Generate(Ask(std::string(20'000, 'x'))); });
  board.AwaitCalls(2);
  EXPECT_TRUE(board.Generate(Ask("hello")).status.ok()) << "a short one passes";
  EXPECT_EQ(board.AwaitCalls(2).queued_calls(), 1u) << "the long one waits";
  EXPECT_EQ(board.worker.runs().size(), 2u);
  board.worker.Release();
  EXPECT_TRUE(first.Finish().ok());
  caller.join();
  EXPECT_TRUE(second.status.ok()) << second.status.error_message();
  EXPECT_EQ(board.worker.runs().size(), 3u);
}

TEST(OrchestratorTest, TheWorkerIsToldTheLimitsThatItsPaceHasToKeep) {
  Board board;
  v1::GenerateRequest request = Ask("hello");
  request.mutable_slo()->set_tpot_ratio(1);
  ASSERT_TRUE(board.Generate(request).status.ok());
  request.set_model_level_percent(100);
  ASSERT_TRUE(board.Generate(request).status.ok());
  request = Ask("hello");
  request.mutable_slo()->set_end_to_end_ms(60'000);
  ASSERT_TRUE(board.Generate(request).status.ok());
  ASSERT_TRUE(board.Generate(Ask("hello")).status.ok());
  const std::vector<v1::RunRequest> runs = board.worker.runs();
  EXPECT_GT(runs[0].targets().tpot_ms(), 0) << "with the tolerance of a ratio";
  EXPECT_EQ(runs[0].targets().end_to_end_ms(), 0);
  EXPECT_FALSE(runs[0].level_fixed());
  EXPECT_GT(runs[1].targets().tpot_ms(), 0) << "others leave it its time";
  EXPECT_TRUE(runs[1].level_fixed()) << "a level that the caller fixed stays";
  EXPECT_EQ(runs[2].targets().tpot_ms(), 0);
  EXPECT_GT(runs[2].targets().end_to_end_ms(), 0);
  EXPECT_EQ(runs[3].targets().tpot_ms(), 0);
  EXPECT_EQ(runs[3].targets().end_to_end_ms(), 0);
}

TEST(OrchestratorTest, WithoutATlmTheLatencyModelAloneDecides) {
  Board board;
  board.worker.SetLevels({20, 60, 100});
  v1::GenerateRequest request = Ask(std::string(100, 'x'));
  request.mutable_slo()->set_ttft_ratio(0.7);
  const Outcome outcome = board.Generate(request);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  const v1::Decision& decision = outcome.started.decision();
  EXPECT_EQ(decision.model_level_percent(), 60u);
  EXPECT_EQ(decision.prompt_level_percent(), 100u);
  EXPECT_EQ(decision.reason(), v1::DECISION_REASON_LATENCY_MODEL);
  EXPECT_THAT(decision.explanation(),
              HasSubstr("The latency model alone decided: no TLM is loaded."));
  EXPECT_EQ(outcome.finished.latency().tlm_ms(), 0);
  EXPECT_TRUE(board.worker.runs()[0].kept().empty());
  request.set_prompt_level_percent(50);
  const Outcome refused = board.Generate(request);
  EXPECT_EQ(refused.status.error_code(), StatusCode::UNIMPLEMENTED);
  EXPECT_THAT(refused.status.error_message(),
              HasSubstr("prompt_level_percent is 50, but no TLM is loaded"));
}

TEST(OrchestratorTest, CancellingAndDeadlinesReachTheWorker) {
  Board board;
  OpenCall call(board, Ask("hold"));
  call.context.TryCancel();
  EXPECT_TRUE(board.worker.AwaitCancelled(1));
  EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);

  // On a busy machine a deadline may pass before its call has come to the worker.
  using std::chrono::milliseconds;
  bool reached = false;
  for (milliseconds deadline(50); !reached && deadline < milliseconds(10'000); deadline *= 2) {
    grpc::ClientContext context;
    Authorise(&context);
    context.set_deadline(std::chrono::system_clock::now() + deadline);
    EXPECT_EQ(board.Generate(Ask("hold"), &context).status.error_code(),
              StatusCode::DEADLINE_EXCEEDED);
    reached = board.worker.AwaitCancelled(2, deadline);
  }
  EXPECT_TRUE(reached);
  EXPECT_TRUE(board.Generate(Ask("hello")).status.ok());
}

TEST(OrchestratorTest, AWorkerThatDiesBeforeTheFirstTokenIsTriedAgain) {
  Board board;
  const Outcome outcome = board.Generate(Ask("die early"));
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(outcome.text, "abc");
  EXPECT_EQ(board.worker.runs().size(), 2u);
}

TEST(OrchestratorTest, AWorkerThatDiesInMidAnswerIsNamed) {
  Board board;
  const Outcome outcome = board.Generate(Ask("die late"));
  EXPECT_EQ(outcome.status.error_code(), StatusCode::UNAVAILABLE);
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("model_worker"));
  EXPECT_THAT(outcome.status.error_message(), HasSubstr("after 1 tokens"));
  EXPECT_FALSE(outcome.retry_after_ms.empty());
  EXPECT_EQ(outcome.text, "a");
}

TEST(OrchestratorTest, WaitsForAWorkerThatRestarts) {
  Board board;
  board.StopWorker();
  Outcome outcome;
  std::thread caller([&] { outcome = board.Generate(Ask("hello")); });
  board.StartWorker();
  caller.join();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
}

TEST(OrchestratorTest, ACallSeesThatTheWorkerIsAnotherOne) {
  Board board;
  ASSERT_TRUE(board.Generate(Ask("hello")).status.ok());
  board.worker.SetLevels({40, 100});
  ASSERT_TRUE(board.Generate(Ask("hello")).status.ok());
  v1::GenerateRequest request = Ask("hello");
  request.set_model_level_percent(40);
  const Outcome outcome = board.Generate(request);
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
}

TEST(OrchestratorTest, AWorkerThatStopsUnderARunningCallIsUnavailableNotCancelled) {
  Board board;
  OpenCall call(board, Ask("hold"));
  board.StopWorker();
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
  EXPECT_THAT(status.error_message(), HasSubstr("model_worker"));
}

TEST(OrchestratorTest, BadRequestsAreInvalidArgument) {
  Board board;
  v1::GenerateRequest request = Ask("x");
  request.mutable_sampling()->set_temperature(-1);
  EXPECT_THAT(board.Generate(request).status.error_message(), HasSubstr("sampling.temperature"));
  request = Ask("x");
  request.mutable_limits()->set_max_tokens(32'769);
  EXPECT_THAT(board.Generate(request).status.error_message(),
              HasSubstr("limits.max_tokens is 32769"));
  request = Ask("x");
  request.set_model("nobody");
  EXPECT_EQ(board.Generate(request).status.error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(board.Generate(Ask("\xff\xfe")).status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_TRUE(board.worker.runs().empty());
}

TEST(OrchestratorTest, PlansCountsListsAndKeepsContexts) {
  Board board;
  {
    grpc::ClientContext context;
    Authorise(&context);
    v1::PlanResponse plan;
    ASSERT_TRUE(board.stub().Plan(&context, Ask("hello"), &plan).ok());
    EXPECT_EQ(plan.prompt_tokens(), 5u);
    EXPECT_GT(plan.decision().predicted().ttft_ms(), 0);
  }
  {
    grpc::ClientContext context;
    Authorise(&context);
    v1::CountTokensRequest request;
    request.mutable_prompt()->set_text("1234567");
    v1::CountTokensResponse counted;
    ASSERT_TRUE(board.stub().CountTokens(&context, request, &counted).ok());
    EXPECT_EQ(counted.tokens(), 7u);
  }
  {
    grpc::ClientContext context;
    Authorise(&context);
    v1::ListModelsResponse models;
    ASSERT_TRUE(board.stub().ListModels(&context, {}, &models).ok());
    ASSERT_EQ(models.models_size(), 1);
    EXPECT_EQ(models.models(0).name(), "fake");
  }
  {
    grpc::ClientContext context;
    Authorise(&context);
    v1::GetContextRequest request;
    request.set_context_id("ctx_of_somebody");
    v1::GetContextResponse response;
    EXPECT_EQ(board.stub().GetContext(&context, request, &response).error_code(),
              StatusCode::NOT_FOUND);
  }
  for (const StatusCode expected : {StatusCode::OK, StatusCode::RESOURCE_EXHAUSTED}) {
    grpc::ClientContext context;
    Authorise(&context);
    v1::CreateContextResponse created;
    EXPECT_EQ(board.stub().CreateContext(&context, {}, &created).error_code(), expected);
    board.store.RefuseContexts();
  }
}

// An answer without a byte is an answer, too.
TEST(OrchestratorTest, EmptyMessagesArrive) {
  Board board;
  grpc::ClientContext listing;
  Authorise(&listing);
  v1::ListContextsResponse none;
  EXPECT_TRUE(board.stub().ListContexts(&listing, {}, &none).ok());
  grpc::ClientContext deleting;
  Authorise(&deleting);
  v1::DeleteContextRequest request;
  request.set_context_id("ctx_of_app_1");
  v1::DeleteContextResponse deleted;
  EXPECT_TRUE(board.stub().DeleteContext(&deleting, request, &deleted).ok());
}

TEST(OrchestratorTest, TheWorkerForgetsAContextThatIsDeleted) {
  Board board;
  grpc::ClientContext deleting;
  Authorise(&deleting);
  v1::DeleteContextRequest request;
  request.set_context_id("ctx_of_app_1");
  v1::DeleteContextResponse deleted;
  ASSERT_TRUE(board.stub().DeleteContext(&deleting, request, &deleted).ok());
  EXPECT_THAT(board.worker.forgotten(), testing::ElementsAre("app_1/ctx_of_app_1"));
}

grpc::Status Bind(Board& board, const std::string& app, const std::string& token) {
  grpc::ClientContext context;
  Authorise(&context, token);
  v1::BindAppRequest request;
  request.set_app(app);
  v1::BindAppResponse bound;
  return board.stub().BindApp(&context, request, &bound);
}

TEST(OrchestratorTest, ARegisteredAppIsRenewedOnlyWithItsToken) {
  Board board;
  EXPECT_TRUE(Bind(board, "two", "").ok());
  EXPECT_EQ(Bind(board, "one", "").error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_EQ(Bind(board, "one", "bad").error_code(), StatusCode::ALREADY_EXISTS);
  EXPECT_TRUE(Bind(board, "one", "good").ok());
}

TEST(OrchestratorTest, BindAppIsServedOverTcpOnlyWhereConfigured) {
  for (const bool allowed : {false, true}) {
    v1::Config config;
    config.mutable_orchestrator()->set_listen("127.0.0.1:" + std::to_string(FreePort()));
    config.mutable_orchestrator()->set_bind_app_over_tcp(allowed);
    Board board(config);
    const grpc::Status status = Bind(board, "two", "");
    EXPECT_EQ(status.error_code(), allowed ? StatusCode::OK : StatusCode::PERMISSION_DENIED)
        << status.error_message();
    if (!allowed) {
      EXPECT_THAT(status.error_message(), HasSubstr("orchestrator.bind_app_over_tcp"));
    }
    EXPECT_TRUE(board.Generate(Ask("hello")).status.ok()) << "the rest is served";
  }
}

// Many calls of all kinds at once, cancelled at any moment or left to run out of time, while others
// are answered: every one of them ends, and the process lives.
TEST(OrchestratorTest, ManyCallsEndedAtAnyMoment) {
  constexpr unsigned kSeed = 11;
  constexpr int kThreads = 6, kRounds = 60;
  Board board(/*queue_limit=*/64, /*max_batch=*/4);
  std::vector<std::thread> callers;
  for (unsigned t = 0; t < kThreads; ++t) {
    callers.emplace_back([&board, t] {
      std::mt19937 random(kSeed + t);
      for (int i = 0; i < kRounds; ++i) {
        grpc::ClientContext context;
        Authorise(&context, random() % 8 == 0 ? "bad" : "good");
        if (random() % 4 == 0) {
          context.set_deadline(std::chrono::system_clock::now() +
                               std::chrono::microseconds(random() % 3000));
        }
        v1::ListContextsResponse contexts;
        v1::GetStatusResponse status;
        switch (random() % 3) {
          case 0:
            board.stub().ListContexts(&context, {}, &contexts);
            break;
          case 1:
            board.stub().GetStatus(&context, {}, &status);
            break;
          default:
            const auto reader = board.stub().Generate(&context, Ask("hello"));
            v1::GenerateResponse message;
            unsigned left = random() % 6;
            while (reader->Read(&message)) {
              if (left-- == 0) context.TryCancel();
            }
            reader->Finish();
        }
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_TRUE(board.Generate(Ask("hello")).status.ok()) << "seed " << kSeed;
}

TEST(OrchestratorTest, StatusTellsOfAllFive) {
  Board board;
  grpc::ClientContext context;  // without a token
  v1::GetStatusResponse status;
  ASSERT_TRUE(board.stub().GetStatus(&context, {}, &status).ok());
  std::map<std::string, v1::ProcessState> states;
  for (const v1::ProcessState& state : status.processes()) states[state.process()] = state;
  ASSERT_EQ(states.size(), 5u);
  EXPECT_EQ(states["orchestrator"].health(), "serving");
  EXPECT_EQ(states["orchestrator"].status().queue_limit(), 8u);
  EXPECT_EQ(states["model_worker"].health(), "serving");
  EXPECT_EQ(states["model_worker"].status().model_bytes(), 123u);
  EXPECT_EQ(states["context_store"].status().arena_bytes(), 77u);
  EXPECT_EQ(states["draft_worker"].health(), "unreachable");
  EXPECT_FALSE(states["draft_worker"].has_status());
  EXPECT_EQ(states["profiler_agent"].health(), "unreachable");
}

TEST(OrchestratorTest, DrainingFinishesWhatRuns) {
  Board board;
  OpenCall running(board, Ask("hold"));
  std::thread drain([&] { board.Drain(); });
  Outcome refused;
  do {  // until draining has begun
    refused = board.Generate(Ask("hello"));
  } while (refused.status.ok());
  EXPECT_EQ(refused.status.error_code(), StatusCode::UNAVAILABLE);
  board.worker.Release();
  const grpc::Status finished = running.Finish();
  EXPECT_TRUE(finished.ok()) << finished.error_message();
  drain.join();
}

}  // namespace
}  // namespace withy::orchestrator
