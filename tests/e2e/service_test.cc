// The service from an app's point of view: five real processes, one contract.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <regex>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/e2e/board.h"
#include "tests/e2e/test_model.h"

namespace withy::e2e {
namespace {

using ::testing::HasSubstr;

class ServiceTest : public ::testing::Test {
 protected:
  void StartBoard(std::vector<std::string> overrides = {}) {
    board_ = std::make_unique<Board>(std::move(overrides));
    board_->StartAll();
    ASSERT_TRUE(board_->WaitUntilServing())
        << board_->Log("orchestrator") << board_->Log("model_worker");
    stub_ = board_->NewStub();
    token_ = board_->BindApp("test.app");
    ASSERT_FALSE(token_.empty());
  }

  std::unique_ptr<Board> board_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
};

TEST_F(ServiceTest, AnswersStreamAndAreKept) {
  StartBoard();
  const std::string context = CreateContext(*stub_, token_, "You are brief.");
  const Answer answer = Generate(*stub_, token_, UserRequest(context, "Good morning to you", 24));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.text, answer.finished.text());
  EXPECT_GT(answer.started.decision().predicted().ttft_ms(), 0);
  EXPECT_EQ(answer.started.decision().model_level_percent(), 100u);
  EXPECT_GT(answer.finished.latency().measured().ttft_ms(), 0);
  EXPECT_EQ(answer.finished.usage().completion_tokens(), 24u);

  v1::GetContextResponse kept;
  ASSERT_TRUE(GetContext(*stub_, token_, context, &kept).ok());
  ASSERT_EQ(kept.messages_size(), 3);
  EXPECT_EQ(kept.messages(0).message().role(), "system");
  EXPECT_EQ(kept.messages(1).message().content(), "Good morning to you");
  EXPECT_EQ(kept.messages(2).message().content(), answer.text);

  // The next turn reuses the KV of this one.
  const Answer next = Generate(*stub_, token_, UserRequest(context, "And again", 8));
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_GT(next.finished.usage().reused_tokens(), 16u);
  EXPECT_LT(next.finished.usage().prefilled_tokens(), answer.finished.usage().prefilled_tokens());
}

TEST_F(ServiceTest, StartsInAnyOrder) {
  board_ = std::make_unique<Board>();
  for (auto it = kProcesses.rbegin(); it != kProcesses.rend(); ++it) board_->Start(*it);
  ASSERT_TRUE(board_->WaitUntilServing());
  stub_ = board_->NewStub();
  EXPECT_TRUE(Generate(*stub_, board_->BindApp("a"), UserRequest("", "hello", 4)).status.ok());
}

TEST_F(ServiceTest, ARetryWithItsRequestIdGetsTheStoredResult) {
  StartBoard();
  v1::GenerateRequest request = UserRequest(CreateContext(*stub_, token_, ""), "once only", 12);
  request.mutable_sampling()->set_temperature(1);
  request.set_request_id("r1");
  const Answer first = Generate(*stub_, token_, request);
  ASSERT_TRUE(first.status.ok()) << first.status;
  EXPECT_FALSE(first.started.replayed());
  const Answer second = Generate(*stub_, token_, request);
  ASSERT_TRUE(second.status.ok()) << second.status;
  EXPECT_TRUE(second.started.replayed());
  EXPECT_EQ(second.text, first.text);
  v1::GetContextResponse kept;
  ASSERT_TRUE(GetContext(*stub_, token_, request.context_id(), &kept).ok());
  EXPECT_EQ(kept.messages_size(), 2) << "a retry must not add to the context";

  request.mutable_prompt()->mutable_messages()->mutable_messages(0)->set_content("something else");
  EXPECT_EQ(Generate(*stub_, token_, request).status.code(), absl::StatusCode::kAlreadyExists);
}

TEST_F(ServiceTest, AnAppSeesOnlyItsOwn) {
  StartBoard();
  const std::string context = CreateContext(*stub_, token_, "secret");
  const std::string stranger = board_->BindApp("stranger");
  v1::GetContextResponse kept;
  EXPECT_EQ(GetContext(*stub_, stranger, context, &kept).error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Generate(*stub_, stranger, UserRequest(context, "hi", 4)).status.code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Generate(*stub_, "wrong", UserRequest("", "hi", 4)).status.code(),
            absl::StatusCode::kUnauthenticated);
}

// A system prompt of some hundred tokens.
std::string HouseRules() {
  std::string rules = "These are the rules of the house:";
  for (int i = 1; i <= 15; ++i) rules += " rule " + std::to_string(i) + " is to be kind;";
  return rules;
}

TEST_F(ServiceTest, ContextsOfAnAppShareTheirSystemPromptAndNoOtherAppDoes) {
  StartBoard();
  const auto ask = [&](const std::string& token) {
    const std::string context = CreateContext(*stub_, token, HouseRules());
    Answer answer = Generate(*stub_, token, UserRequest(context, "Good morning to you", 12));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return std::pair(context, answer);
  };
  const auto [first, computed] = ask(token_);
  EXPECT_EQ(computed.finished.usage().reused_tokens(), 0u);
  const uint32_t all = computed.finished.usage().prefilled_tokens();
  ASSERT_GT(all, 100u);
  for (int i = 0; i < 3; ++i) {
    const auto [context, answer] = ask(token_);
    EXPECT_LE(answer.finished.usage().prefilled_tokens(), 16u) << "the last token's chunk";
    EXPECT_EQ(answer.finished.usage().reused_tokens() + answer.finished.usage().prefilled_tokens(),
              all);
    v1::GetContextResponse kept;
    ASSERT_TRUE(GetContext(*stub_, token_, context, &kept).ok());
    ASSERT_GT(kept.chunks_size(), 0);
    EXPECT_TRUE(kept.chunks(0).shared());
  }
  const auto [foreign, stranger] = ask(board_->BindApp("stranger"));
  EXPECT_EQ(stranger.finished.usage().reused_tokens(), 0u);
  EXPECT_EQ(stranger.finished.usage().prefilled_tokens(), all);
  // The prompt outlives the context that computed it.
  grpc::ClientContext call;
  Authorise(&call, token_);
  v1::DeleteContextRequest request;
  request.set_context_id(first);
  v1::DeleteContextResponse deleted;
  ASSERT_TRUE(stub_->DeleteContext(&call, request, &deleted).ok());
  EXPECT_LE(ask(token_).second.finished.usage().prefilled_tokens(), 16u);
}

TEST_F(ServiceTest, APublicSystemPromptIsSharedByAllApps) {
  StartBoard({"store.public_system_prompts=" + HouseRules()});
  const auto ask = [&](const std::string& token, const std::string& text) {
    const std::string context = CreateContext(*stub_, token, HouseRules());
    const Answer answer = Generate(*stub_, token, UserRequest(context, text, 4));
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    return answer.finished.usage();
  };
  const std::string secret = "The key lies under the third stone of the path behind the house";
  const uint32_t all = ask(token_, secret).prefilled_tokens();
  const auto stranger = ask(board_->BindApp("stranger"), secret);
  EXPECT_GT(stranger.reused_tokens(), all / 2) << "the prompt";
  EXPECT_GT(stranger.prefilled_tokens(), 16u) << "and nothing of what the other app has asked";
  EXPECT_LE(ask(token_, secret).prefilled_tokens(), 16u);
}

TEST_F(ServiceTest, CancellingKeepsThePartialAnswerMarked) {
  StartBoard();
  const std::string context = CreateContext(*stub_, token_, "");
  int deltas = 0;
  const Answer answer = Generate(*stub_, token_, UserRequest(context, "talk for long", 400),
                                 [&](const Answer&) { return ++deltas < 5; });
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kCancelled);
  // The partial answer is committed after the cancelled call has ended; the next call on the
  // context waits for that.
  const Answer next = Generate(*stub_, token_, UserRequest(context, "go on", 4));
  ASSERT_TRUE(next.status.ok()) << next.status;
  v1::GetContextResponse kept;
  ASSERT_TRUE(GetContext(*stub_, token_, context, &kept).ok());
  ASSERT_EQ(kept.messages_size(), 4);
  EXPECT_TRUE(kept.messages(1).cancelled());
  EXPECT_THAT(kept.messages(1).message().content(), ::testing::StartsWith(answer.text));
  EXPECT_FALSE(kept.messages(3).cancelled());
}

TEST_F(ServiceTest, ADeadlineEndsTheCallAndTheBoardGoesOn) {
  StartBoard();
  const Answer late = Generate(*stub_, token_, UserRequest("", "talk for long", 400), nullptr,
                               absl::Milliseconds(5));
  EXPECT_EQ(late.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Generate(*stub_, token_, UserRequest("", "short", 4)).status.ok());
}

TEST_F(ServiceTest, OverloadIsRefusedWithAdvice) {
  StartBoard({"orchestrator.queue_limit=2"});
  std::vector<std::thread> callers;
  std::atomic<int> refused = 0, answered = 0, advised = 0;
  for (int i = 0; i < 12; ++i) {
    callers.emplace_back([&] {
      const Answer answer = Generate(*stub_, token_, UserRequest("", "many at once", 60));
      if (answer.status.ok()) ++answered;
      if (answer.status.code() == absl::StatusCode::kResourceExhausted) {
        ++refused;
        if (answer.retry_after_ms >= 0) ++advised;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(answered + refused, 12);
  EXPECT_GE(answered, 2);
  EXPECT_GT(refused, 0);
  EXPECT_EQ(advised, refused.load());
}

TEST_F(ServiceTest, BatchedCallsGetTheTextTheyGetAlone) {
  StartBoard();
  const std::vector<std::string> prompts = {"first prompt",
                                            "the second prompt is longer than the first", "3",
                                            "one more prompt with yet other words in it"};
  std::vector<std::string> alone(prompts.size()), together(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    alone[i] = Generate(*stub_, token_, UserRequest("", prompts[i], 40)).text;
  }
  std::vector<std::thread> callers;
  for (size_t i = 0; i < prompts.size(); ++i) {
    callers.emplace_back(
        [&, i] { together[i] = Generate(*stub_, token_, UserRequest("", prompts[i], 40)).text; });
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(together, alone);
  EXPECT_FALSE(alone[0].empty());
}

TEST_F(ServiceTest, AStrictSloThatCannotBeMetIsRefusedWithFigures) {
  StartBoard();
  v1::GenerateRequest request = UserRequest("", "be quick", 8);
  request.mutable_slo()->set_ttft_ms(0.0001);
  request.mutable_slo()->set_strict(true);
  const Answer refused = Generate(*stub_, token_, request);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("ms"));
  request.mutable_slo()->set_strict(false);
  const Answer told = Generate(*stub_, token_, request);
  ASSERT_TRUE(told.status.ok()) << told.status;
  EXPECT_FALSE(told.started.decision().predicted_to_meet_slo());
  EXPECT_FALSE(told.finished.latency().slo_met());
}

// The response to a Prometheus scrape.
std::string Metrics(const std::string& address) {
  const size_t colon = address.find(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return "";
  const std::string request =
      "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  if (write(fd.get(), request.data(), request.size()) < 0) return "";
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(fd.get(), buffer, sizeof buffer)) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

// Scrapes until `text` appears, for at most half a minute.
std::string MetricsWith(const std::string& address, const std::string& text) {
  std::string metrics;
  for (int i = 0; i < 600 && metrics.find(text) == std::string::npos; ++i) {
    absl::SleepFor(absl::Milliseconds(50));  // the agent drains periodically
    metrics = Metrics(address);
  }
  return metrics;
}

// 40 words that the test's TLM can read.
std::string LongPrompt() {
  std::string text;
  for (int i = 0; i < 10; ++i) text += "the cat sat unable ";
  return text;
}

TEST_F(ServiceTest, AShortenedPromptIsAnsweredAndStaysWholeInTheContext) {
  StartBoard({"model.path=" + TestElasticPath(), "orchestrator.tlm_path=" + TestTlmPath()});
  const std::string context = CreateContext(*stub_, token_, "");
  const Answer whole = Generate(*stub_, token_, UserRequest("", LongPrompt(), 8));
  ASSERT_TRUE(whole.status.ok()) << whole.status;
  v1::GenerateRequest request = UserRequest(context, LongPrompt(), 8);
  request.set_prompt_level_percent(50);
  const Answer answer = Generate(*stub_, token_, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const v1::Usage& usage = answer.finished.usage();
  EXPECT_EQ(usage.pruned_words(), 20u);
  EXPECT_LT(usage.prompt_tokens(), whole.finished.usage().prompt_tokens());
  EXPECT_EQ(usage.prompt_tokens(), answer.started.decision().predicted_prompt_tokens());
  EXPECT_GT(answer.finished.latency().tlm_ms(), 0);
  EXPECT_THAT(MetricsWith(board_->metrics_address(), "phase=\"tlm\""), HasSubstr("phase=\"tlm\""));

  v1::GetContextResponse kept;
  ASSERT_TRUE(GetContext(*stub_, token_, context, &kept).ok());
  EXPECT_EQ(kept.messages(0).message().content(), LongPrompt());
  const Answer next = Generate(*stub_, token_, UserRequest(context, "and on", 8));
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_EQ(next.finished.usage().reused_tokens(), next.finished.usage().context_tokens() - 1)
      << "the history is rendered as its KV was made";
}

// Worked examples dropped from a prompt remain in the record. The context continues without them,
// both with resident KV and after all processes were killed.
TEST_F(ServiceTest, ExamplesLeftOutStayInTheRecord) {
  StartBoard({"model.path=" + TestElasticPath(), "orchestrator.tlm_path=" + TestTlmPath()});
  const std::vector<std::string> roles = {"user", "assistant", "user", "assistant", "user"};
  const std::vector<std::string> texts = {LongPrompt(), "a mat", LongPrompt(), "no mat",
                                          "a cat sat"};
  const auto begin = [&] {
    v1::GenerateRequest request = UserRequest(CreateContext(*stub_, token_, "the rule"), "", 8);
    request.mutable_prompt()->mutable_messages()->clear_messages();
    for (size_t i = 0; i < roles.size(); ++i) {
      v1::Message& message = *request.mutable_prompt()->mutable_messages()->add_messages();
      message.set_role(roles[i]);
      message.set_content(texts[i]);
    }
    request.set_prompt_level_percent(10);
    const Answer answer = Generate(*stub_, token_, request);
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.finished.usage().pruned_words(), 84u) << "all but the last message's 3 words";
    EXPECT_LT(answer.finished.usage().prompt_tokens(), 60u);
    return request.context_id();
  };
  const std::string first = begin();
  const std::string second = begin();
  v1::GetContextResponse kept;
  ASSERT_TRUE(GetContext(*stub_, token_, first, &kept).ok());
  ASSERT_GE(kept.messages_size(), 6);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(kept.messages(static_cast<int>(i) + 1).message().content(), texts[i]);
  }
  const Answer before = Generate(*stub_, token_, UserRequest(first, "and on", 8));
  ASSERT_TRUE(before.status.ok()) << before.status;
  EXPECT_EQ(before.finished.usage().reused_tokens(), before.finished.usage().context_tokens() - 1);
  for (const std::string& process : kProcesses) board_->Kill(process);
  board_->StartAll();
  ASSERT_TRUE(board_->WaitUntilServing());
  const Answer after = GenerateWithRetry(*stub_, token_, UserRequest(second, "and on", 8));
  ASSERT_TRUE(after.status.ok()) << after.status;
  EXPECT_EQ(after.finished.usage().context_tokens(), before.finished.usage().context_tokens());
  EXPECT_EQ(after.text, before.text);
}

TEST_F(ServiceTest, AnSloBendsPromptAndModelAndSaysSo) {
  StartBoard({"model.path=" + TestElasticPath(), "orchestrator.tlm_path=" + TestTlmPath()});
  v1::GenerateRequest request = UserRequest("", LongPrompt(), 8);
  request.mutable_slo()->set_tpot_ratio(0.05);  // no level is that fast
  const Answer answer = Generate(*stub_, token_, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  const v1::Decision& decision = answer.started.decision();
  EXPECT_EQ(decision.reason(), v1::DECISION_REASON_BEST_EFFORT);
  EXPECT_EQ(decision.model_level_percent(), 20u) << decision.explanation();
  EXPECT_EQ(answer.finished.usage().pruned_words(),
            decision.prompt_level_percent() == 100 ? 0u : 20u);
  ASSERT_EQ(answer.finished.model_levels_percent_size(), 1);
  EXPECT_EQ(answer.finished.model_levels_percent(0), 20u);
  request.mutable_slo()->set_strict(true);
  EXPECT_EQ(Generate(*stub_, token_, request).status.code(), absl::StatusCode::kFailedPrecondition);
  request.set_model_level_percent(30);
  EXPECT_THAT(std::string(Generate(*stub_, token_, request).status.message()),
              HasSubstr("20, 60, 100"));
}

// A context computed at a lower level is recomputed at the full one after an idle second, and
// continues from there.
TEST_F(ServiceTest, AQuietMomentBringsAContextBackToTheFullLevel) {
  StartBoard({"model.path=" + TestElasticPath(), "model.idle_upgrade_s=1"});
  const std::string context = CreateContext(*stub_, token_, "");
  v1::GenerateRequest request = UserRequest(context, LongPrompt(), 8);
  request.set_model_level_percent(20);
  ASSERT_TRUE(Generate(*stub_, token_, request).status.ok());
  const std::string upgraded = "withy_upgraded_contexts_total{process=\"model_worker\"} 1";
  EXPECT_THAT(MetricsWith(board_->metrics_address(), upgraded), HasSubstr(upgraded));
  const Answer next = Generate(*stub_, token_, UserRequest(context, "and on", 8));
  ASSERT_TRUE(next.status.ok()) << next.status;
  EXPECT_GE(next.finished.usage().reused_tokens(), next.finished.usage().context_tokens() - 1);
}

TEST_F(ServiceTest, AConversationThatOutgrowsItsWindowGoesOn) {
  StartBoard({"model.context_length=160"});
  const std::string context = CreateContext(*stub_, token_, "You are brief.");
  int number = 0;
  uint32_t dropped = 0;
  const auto ask = [&](uint32_t max_tokens) {
    const std::string text = "Question number " + std::to_string(number++);
    const Answer answer = GenerateWithRetry(*stub_, token_, UserRequest(context, text, max_tokens));
    EXPECT_TRUE(answer.status.ok()) << text << ": " << answer.status;
    const v1::Decision& decision = answer.started.decision();
    EXPECT_EQ(decision.explanation().find("no room for the oldest") != std::string::npos,
              decision.dropped_messages() > 0)
        << decision.explanation();
    EXPECT_EQ(answer.finished.usage().prompt_tokens(), decision.predicted_prompt_tokens() +
                                                           decision.predicted_reused_tokens() -
                                                           answer.finished.usage().context_tokens())
        << "the decision counts what the worker then sees";
    dropped = decision.dropped_messages();
    return answer;
  };
  for (int i = 0; i < 9; ++i) ask(12);
  EXPECT_GT(dropped, 0u);
  // An answer may end by itself before the window does.
  bool full = false;
  for (int i = 0; i < 20 && !full; ++i) {
    full = ask(160).finished.reason() == v1::FINISH_REASON_CONTEXT_FULL;
  }
  EXPECT_TRUE(full);
  ask(12);
  const auto plan = [&] {
    grpc::ClientContext client;
    Authorise(&client, token_);
    v1::PlanResponse response;
    const grpc::Status status =
        stub_->Plan(&client, UserRequest(context, "What would come", 12), &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_GT(response.decision().dropped_messages(), 0u);
  };
  plan();

  v1::GetContextResponse kept;
  ASSERT_TRUE(GetContext(*stub_, token_, context, &kept).ok());
  EXPECT_EQ(kept.messages_size(), 1 + 2 * number) << "nothing of the text is lost";
  EXPECT_EQ(kept.context().dropped_messages(), dropped);
  for (int i = 0; i < kept.messages_size(); ++i) {
    EXPECT_EQ(kept.messages(i).dropped(), i > 0 && i <= static_cast<int>(dropped)) << i;
  }

  for (const std::string process : {"context_store", "model_worker", "orchestrator"}) {
    board_->Kill(process);
    board_->Start(process);
  }
  ASSERT_TRUE(board_->WaitUntilServing());
  ask(12);
  plan();

  // A model with a smaller window than the one the context was made for.
  board_->Stop("model_worker");
  Board smaller({"run_dir=" + board_->dir() + "/run", "state_dir=" + board_->dir() + "/state",
                 "model.context_length=96"});
  smaller.Start("model_worker");
  const uint32_t before = dropped;
  ask(12);
  EXPECT_GT(dropped, before);
  for (int i = 0; i < 4; ++i) ask(12);
}

TEST_F(ServiceTest, BadRequestsNameTheFieldAndHarmNobody) {
  StartBoard();
  v1::GenerateRequest request = UserRequest("", "x", 8);
  request.mutable_sampling()->set_temperature(-1);
  Answer answer = Generate(*stub_, token_, request);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("temperature"));
  answer = Generate(*stub_, token_, UserRequest("ctx_nope", "x", 8));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kNotFound);
  std::string long_text;
  for (int i = 0; i < 20000; ++i) long_text += "word ";
  answer = Generate(*stub_, token_, UserRequest("", long_text, 8));
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kOutOfRange) << answer.status;
  EXPECT_TRUE(Generate(*stub_, token_, UserRequest("", "fine", 4)).status.ok());
}

TEST_F(ServiceTest, ASecondInstanceIsToldWhoHoldsTheSocket) {
  StartBoard();
  for (const std::string& process : kProcesses) {
    Board twin({"run_dir=" + board_->dir() + "/run", "state_dir=" + board_->dir() + "/state2"});
    twin.Start(process);
    EXPECT_EQ(twin.WaitForExit(process), 1) << process;
    EXPECT_THAT(twin.Log(process),
                ::testing::AnyOf(HasSubstr("already serves on"),
                                 HasSubstr("another profiler agent reads these rings")))
        << process;
  }
  Board elsewhere({"run_dir=" + board_->dir() + "/run", "state_dir=" + board_->dir() + "/state2",
                   "store.listen=unix:" + board_->dir() + "/other.sock"});
  elsewhere.Start("context_store");
  EXPECT_EQ(elsewhere.WaitForExit("context_store"), 1);
  board_->Kill("model_worker");
  board_->Start("model_worker");
  const Answer answer =
      GenerateWithRetry(*stub_, token_, UserRequest("", "hello", 4), absl::Seconds(30));
  EXPECT_TRUE(answer.status.ok()) << "the refused ones took something: " << answer.status;
}

TEST_F(ServiceTest, AServiceOnTcpRegistersItsAppsOnTheUnixSocket) {
  StartBoard({"orchestrator.listen=127.0.0.1:0"});
  ASSERT_NE(token_, "");
  const std::string log = board_->Log("orchestrator");
  std::smatch tcp;
  ASSERT_TRUE(std::regex_search(log, tcp, std::regex("serves on (127[0-9.:]*)"))) << log;
  const auto stub = v1::LlmService::NewStub(rpc::Connect(tcp[1]));
  const Answer answer = Generate(*stub, token_, UserRequest("", "hello", 4));
  EXPECT_TRUE(answer.status.ok()) << answer.status;
}

TEST_F(ServiceTest, AConfigurationThatCannotBeServedEndsWithItsOwnCode) {
  struct Wrong {
    const char* setting;
    const char* named;
    int code = 2;
  };
  for (const Wrong& wrong :
       {Wrong{"model.context_length=1000000", "set that or less"},
        Wrong{"model.path=/nonexistent.gguf", "/nonexistent.gguf", 1},  // its disk may come later
        Wrong{"model.kernel_target=avx512", "kernel target \"avx512\""},
        Wrong{"model.device=tpu", "device \"tpu\" is not known"},
        Wrong{"model.chat_template=odd", "odd"}}) {
    Board board({wrong.setting});
    board.Start("model_worker");
    EXPECT_EQ(board.WaitForExit("model_worker"), wrong.code) << wrong.setting;
    EXPECT_THAT(board.Log("model_worker"), HasSubstr(wrong.named));
  }
}

// Weights that do not fit into their budget are read from the disk for every step.
TEST_F(ServiceTest, AnswersUnderAWeightBudgetAreTheSame) {
  const std::string model = "model.path=" + TestSlowPath();
  std::vector<std::string> answers;
  for (const std::string budget : {"0", "16000000"}) {
    StartBoard({model, "model.weight_budget_bytes=" + budget});
    const std::string context = CreateContext(*stub_, token_);
    for (const std::string text : {"hello you", "and again"}) {
      const Answer answer = Generate(*stub_, token_, UserRequest(context, text, 12));
      ASSERT_TRUE(answer.status.ok()) << answer.status;
      answers.push_back(answer.text);
    }
    if (budget != "0") {
      EXPECT_THAT(board_->Log("model_worker"), HasSubstr("are read for each pass"));
      const std::string read = "withy_weights_streamed_bytes_total";
      EXPECT_THAT(MetricsWith(board_->metrics_address(), read), HasSubstr(read));
    }
  }
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_EQ(answers[2], answers[0]);
  EXPECT_EQ(answers[3], answers[1]);
}

TEST_F(ServiceTest, TheDraftAnswersOnItsOwn) {
  StartBoard();
  v1::GenerateRequest request = UserRequest("", "hello", 6);
  request.set_model("draft");
  const Answer answer = Generate(*stub_, token_, request);
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.finished.usage().completion_tokens(), 6u);
}

TEST_F(ServiceTest, APythonClientGetsTheAnswerThatACppClientGets) {
  if (std::system("/usr/bin/python3 -c 'import grpc, google.protobuf' 2>/dev/null") != 0) {
    GTEST_SKIP() << "python3-grpcio is not installed (./withy setup test installs it)";
  }
  StartBoard();
  const std::string out = board_->dir() + "/python.txt";
  const std::string command =
      "WITHY_TOKEN=" + token_ + " /usr/bin/python3 examples/python/generate.py --address " +
      board_->address() + " --temperature 0 --max-tokens 16 'hello from python' >" + out;
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::stringstream text;
  text << std::ifstream(out).rdbuf();
  const Answer answer = Generate(*stub_, token_, UserRequest("", "hello from python", 16));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_THAT(text.str(), ::testing::StartsWith(answer.text));
}

TEST_F(ServiceTest, DrainsOnSigterm) {
  StartBoard();
  absl::Notification runs;
  std::thread caller([&] {
    const Answer answer =
        Generate(*stub_, token_, UserRequest("", "before the end", 200), [&](const Answer&) {
          if (!runs.HasBeenNotified()) runs.Notify();
          return true;
        });
    EXPECT_TRUE(answer.status.ok()) << answer.status;
    if (!runs.HasBeenNotified()) runs.Notify();
  });
  runs.WaitForNotification();
  EXPECT_EQ(board_->Stop("orchestrator"), 0);
  caller.join();
}

}  // namespace
}  // namespace withy::e2e
