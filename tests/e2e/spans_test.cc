// Spans through the five processes: every phase that has a name is recorded where it happens, and
// kernels belong to the passes that are phases.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "rpc/channel.h"
#include "tests/e2e/board.h"
#include "tests/e2e/test_model.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::e2e {
namespace {

using Named = std::pair<std::string, std::string>;  // process, span
using Pass = std::pair<std::string, uint32_t>;      // process, number of the pass

class SpansTest : public ::testing::Test {
 protected:
  void StartBoard(std::vector<std::string> overrides, bool speculate_always = false) {
    board_ = std::make_unique<Board>(std::move(overrides));
    if (speculate_always) board_->SpeculateAlways();
    board_->StartAll();
    ASSERT_TRUE(board_->WaitUntilServing()) << board_->Log("model_worker");
    stub_ = board_->NewStub();
    profiler_ =
        v1::Profiler::NewStub(rpc::Connect("unix:" + board_->dir() + "/run/profiler_agent.sock"));
    token_ = board_->BindApp("app");
  }

  std::vector<v1::Span> Spans() {
    grpc::ClientContext context;
    v1::GetSpansRequest request;
    request.set_limit(100'000);
    v1::GetSpansResponse response;
    const grpc::Status status = profiler_->GetSpans(&context, request, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {response.spans().begin(), response.spans().end()};
  }
  static std::set<Named> Names(const std::vector<v1::Span>& spans, const std::string& kind) {
    std::set<Named> names;
    for (const v1::Span& span : spans) {
      if (span.kind() == kind) names.emplace(span.process(), span.name());
    }
    return names;
  }
  // The agent reads the rings now and then: waits until it has read all of `wanted`, and until it
  // has read the phases of all passes whose kernels it has.
  std::vector<v1::Span> AwaitPhases(const std::set<Named>& wanted) {
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (true) {
      std::vector<v1::Span> spans = Spans();
      const std::set<Named> names = Names(spans, "phase");
      const bool all = std::includes(names.begin(), names.end(), wanted.begin(), wanted.end());
      if ((all && PassesWithoutPhase(spans).empty()) || absl::Now() > end) {
        for (const Named& name : wanted) {
          EXPECT_TRUE(names.contains(name)) << name.first << " records no " << name.second;
        }
        return spans;
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  // Calls' passes, of target and draft, whose kernels did not start in one of the phases that
  // compute. When a kernel ends says nothing: its thread may be interrupted before it reads the
  // clock.
  static std::set<Pass> PassesWithoutPhase(const std::vector<v1::Span>& spans) {
    std::vector<const v1::Span*> phases;
    std::map<Pass, std::pair<int64_t, int64_t>> starts;  // first and last by pass
    for (const v1::Span& span : spans) {
      if (span.name() == "prefill" || span.name() == "decode" || span.name() == "verify" ||
          span.name() == "recompute" || span.name() == "draft") {
        phases.push_back(&span);
      }
      if (span.kind() != "kernel" || span.call_id() == 0) continue;
      const auto [pass, made] = starts.try_emplace({span.process(), span.sequence()},
                                                   span.started_ns(), span.started_ns());
      pass->second.first = std::min(pass->second.first, span.started_ns());
      pass->second.second = std::max(pass->second.second, span.started_ns());
    }
    std::set<Pass> without;
    for (const auto& [pass, times] : starts) {
      const bool held = std::any_of(
          phases.begin(), phases.end(), [&, &pass = pass, &times = times](const v1::Span* phase) {
            return phase->process() == pass.first && phase->started_ns() <= times.first &&
                   times.second <= phase->ended_ns();
          });
      if (!held) without.insert(pass);
    }
    return without;
  }

  std::unique_ptr<Board> board_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::unique_ptr<v1::Profiler::Stub> profiler_;
  std::string token_;
};

TEST_F(SpansTest, EveryPhaseIsRecordedWhereItHappens) {
  StartBoard({"model.path=" + TestElasticPath(), "draft.path=" + TestElasticPath(),
              "orchestrator.tlm_path=" + TestTlmPath(), "model.tree_rows=9",
              "profiler.kernel_spans_per_mille=1000"},
             /*speculate_always=*/true);
  ASSERT_TRUE(WaitUntilDrafted(*board_)) << board_->Log("model_worker");
  const std::string context_id = CreateContext(*stub_, token_);
  for (const v1::Speculation source :
       {v1::SPECULATION_DRAFT, v1::SPECULATION_PREFIX, v1::SPECULATION_OFF}) {
    v1::GenerateRequest request = UserRequest(context_id, "tell me about the weather", 20);
    request.mutable_sampling()->set_temperature(0.9f);
    request.mutable_sampling()->set_repetition_penalty(1.2f);
    request.mutable_sampling()->set_seed(5);
    request.mutable_slo()->set_ttft_ms(60'000);
    request.set_speculation(source);
    const Answer answer = Generate(*stub_, token_, request);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
  }
  const std::vector<v1::Span> spans = AwaitPhases(
      {{"orchestrator", "queue"},    {"orchestrator", "stream"},     {"orchestrator", "ttft"},
       {"orchestrator", "tpot"},     {"orchestrator", "end_to_end"}, {"model_worker", "queue"},
       {"model_worker", "lease"},    {"model_worker", "load"},       {"model_worker", "embedding"},
       {"model_worker", "prefill"},  {"model_worker", "decode"},     {"model_worker", "draft"},
       {"model_worker", "verify"},   {"model_worker", "softmax"},    {"model_worker", "copy_probs"},
       {"model_worker", "sampling"}, {"model_worker", "commit"},     {"draft_worker", "draft"},
       {"context_store", "load"},    {"context_store", "commit"}});
  // A pass of a call holds its kernels, and each of them its times in order.
  std::set<Pass> passes;
  for (const v1::Span& span : spans) {
    if (span.kind() != "kernel") continue;
    EXPECT_GT(span.sequence(), 0u) << span.process() << " has a pass without a number";
    EXPECT_NE(span.call_id(), 0u) << "calls came one after the other";
    EXPECT_LE(span.queued_ns(), span.started_ns());
    EXPECT_LE(span.submitted_ns(), span.started_ns());
    EXPECT_LE(span.started_ns(), span.ended_ns());
    passes.emplace(span.process(), span.sequence());
  }
  for (const char* process : {"model_worker", "draft_worker"}) {
    EXPECT_GT(std::count_if(passes.begin(), passes.end(),
                            [&](const Pass& pass) { return pass.first == process; }),
              3)
        << process;
  }
  EXPECT_EQ(PassesWithoutPhase(spans), std::set<Pass>{});
}

TEST_F(SpansTest, KvThatIsLostIsRecordedAsRecomputed) {
  StartBoard({"model.path=" + TestTargetPath(), "draft.path=" + TestDraftPath()});
  const std::string context_id = CreateContext(*stub_, token_);
  const std::string text(200, 'x');
  ASSERT_TRUE(Generate(*stub_, token_, UserRequest(context_id, text, 4)).status.ok());
  // Without its arena, and without what it wrote, the store has the text alone.
  board_->Kill("context_store");
  std::filesystem::remove_all(board_->dir() + "/state/kv");
  board_->Start("context_store");
  ASSERT_TRUE(board_->WaitUntilServing());
  v1::GenerateRequest again = UserRequest(context_id, "go on", 4);
  again.set_request_id("again");
  ASSERT_TRUE(GenerateWithRetry(*stub_, token_, again).status.ok());
  AwaitPhases({{"model_worker", "recompute"}});
}

TEST_F(SpansTest, KernelSpansCanBeTurnedOff) {
  StartBoard({"model.path=" + TestTargetPath(), "draft.path=" + TestDraftPath(),
              "profiler.kernel_spans_off=true"});
  ASSERT_TRUE(Generate(*stub_, token_, UserRequest("", "hello", 4)).status.ok());
  const std::vector<v1::Span> spans =
      AwaitPhases({{"model_worker", "decode"}, {"orchestrator", "end_to_end"}});
  EXPECT_TRUE(Names(spans, "kernel").empty());
}

}  // namespace
}  // namespace withy::e2e
