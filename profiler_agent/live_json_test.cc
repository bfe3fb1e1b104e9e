#include "profiler_agent/live_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "telemetry/test_directory.h"

namespace withy::profiler_agent {
namespace {

using nlohmann::json;
using telemetry::Phase;
using telemetry::RecordDuration;
using telemetry::Recorder;
using ::testing::HasSubstr;
using ::testing::Not;

class LiveJsonTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto agent = Agent::Start({.rings_directory = directory_.path(), .poll_ms = 1000}, *own_);
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
  }
  json Live() {
    agent_->Poll();
    return json::parse(LiveJson(*agent_, 0.99));
  }

  telemetry::TestDirectory directory_;
  std::unique_ptr<Recorder> own_ = Recorder::Disabled();
  std::unique_ptr<Recorder> worker_ = *Recorder::Open(directory_.path(), "model_worker");
  std::unique_ptr<Recorder> orchestrator_ = *Recorder::Open(directory_.path(), "orchestrator");
  std::unique_ptr<Agent> agent_;
};

TEST_F(LiveJsonTest, WithoutCallsItIsEmptyButWhole) {
  const json live = Live();
  EXPECT_TRUE(live["calls"].empty());
  EXPECT_TRUE(live["last_pass"]["kernels"].empty());
  ASSERT_EQ(live["processes"].size(), 5u);
  EXPECT_EQ(live["processes"][0]["name"], "context_store");
  EXPECT_FALSE(live["processes"][0]["up"]);
  EXPECT_TRUE(live["processes"][3]["up"]);
}

TEST_F(LiveJsonTest, ACallItsSloAndItsPhases) {
  const int64_t now = SteadyNowNs();
  RecordDuration(*orchestrator_, Phase::kTtft, 3, now - 50 * kNanosPerMilli,
                 now - 20 * kNanosPerMilli, 40);
  RecordDuration(*orchestrator_, Phase::kEndToEnd, 3, now - 50 * kNanosPerMilli, now, 6);
  RecordDuration(*orchestrator_, orchestrator_->Name("slo_ttft"), 3, now - 50 * kNanosPerMilli,
                 now - 10 * kNanosPerMilli, 1);
  orchestrator_
      ->counter({.name = "withy_slo_app_calls_total", .label_key = "app", .label_value = "mail"})
      .Add(200);
  orchestrator_
      ->counter({.name = "withy_slo_app_missed_total", .label_key = "app", .label_value = "mail"})
      .Add(1);
  RecordDuration(*worker_, Phase::kDecode, 3, now - 20 * kNanosPerMilli, now - 5 * kNanosPerMilli,
                 1);
  const json live = Live();
  ASSERT_EQ(live["calls"].size(), 1u);
  const json& call = live["calls"][0];
  EXPECT_EQ(call["ttft_ms"], 30);
  EXPECT_EQ(call["slo_ttft_ms"], 40);
  EXPECT_EQ(call["prompt"], 40);
  EXPECT_EQ(call["answer"], 6);
  EXPECT_EQ(call["met"], true);
  EXPECT_EQ(live["apps"][0]["app"], "mail");
  EXPECT_EQ(live["apps"][0]["attainment"], 0.995);
  EXPECT_EQ(live["apps"][0]["budget"], 0.5);
  const json& rows = live["recent"]["rows"];
  const auto decode =
      std::find_if(rows.begin(), rows.end(), [](const json& row) { return row[1] == "decode"; });
  ASSERT_NE(decode, rows.end());
  EXPECT_EQ((*decode)[7], 0.3) << "15 of 50 ms";
  EXPECT_THAT(live["recent"].dump(), Not(HasSubstr("slo_ttft")));
  EXPECT_EQ(live["timeline"]["spans"].size(), 3u) << "without the SLO";
}

TEST_F(LiveJsonTest, CallsHaveTheirAppsAndLevelsAndFailedOnesAreThere) {
  RecordDuration(*orchestrator_, Phase::kEndToEnd, 3, SteadyNowNs() - 50 * kNanosPerMilli,
                 SteadyNowNs(), 6);
  v1::CallReport answered;
  answered.set_call_id(3);
  answered.set_app("mail");
  answered.mutable_decision()->set_model_level_percent(80);
  answered.add_model_levels_percent(80);
  answered.add_model_levels_percent(40);
  agent_->calls().Add(answered);
  v1::CallReport failed;
  failed.set_call_id(4);
  failed.set_app("maps");
  failed.set_status_code(static_cast<uint32_t>(absl::StatusCode::kResourceExhausted));
  failed.set_error("the queue is full");
  failed.set_reason("QUEUE_FULL");
  failed.set_method("Score");
  failed.set_refusals(12);
  failed.set_ended_ns(SteadyNowNs() + kNanosPerSecond);
  agent_->calls().Add(failed);
  const json calls = Live()["calls"];
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_EQ(calls[0]["app"], "mail");
  EXPECT_EQ(calls[0]["level"], 40);
  EXPECT_EQ(calls[0]["error"], "");
  EXPECT_EQ(calls[1]["app"], "maps");
  EXPECT_EQ(calls[1]["error"], "RESOURCE_EXHAUSTED");
  EXPECT_EQ(calls[1]["error_text"], "the queue is full");
  EXPECT_EQ(calls[1]["reason"], "QUEUE_FULL");
  EXPECT_EQ(calls[1]["method"], "Score");
  EXPECT_EQ(calls[1]["refusals"], 12);
  EXPECT_EQ(calls[0]["refusals"], 0);
}

TEST_F(LiveJsonTest, TheLastWholePassHasItsKernels) {
  const auto name = worker_->Name("attention", telemetry::SpanKind::kKernel);
  for (uint32_t pass = 1; pass <= 3; ++pass) {
    for (uint64_t layer = 0; layer < 4; ++layer) {
      telemetry::Span span;
      span.started_ns = SteadyNowNs();
      span.ended_ns = span.started_ns + 2000;
      span.sequence = pass;
      span.value = layer;
      span.name = name.id;
      span.kind = name.kind;
      worker_->Record(span);
    }
  }
  const json pass = Live()["last_pass"];
  EXPECT_EQ(pass["process"], "model_worker");
  EXPECT_EQ(pass["sequence"], 2);
  ASSERT_EQ(pass["kernels"].size(), 4u);
  EXPECT_EQ(pass["kernels"][0][0], "attention");
  EXPECT_EQ(pass["kernels"][0][4], 2.0);
}

TEST_F(LiveJsonTest, ThePageIsOneFileThatNeedsNothingElse) {
  const std::string page = kLivePage;
  EXPECT_THAT(page, HasSubstr("</html>"));
  // No address of another site but the name of SVG's elements.
  for (const char* foreign : {"https://", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(foreign)));
  }
  const size_t first = page.find("http://");
  EXPECT_EQ(page.compare(first, 25, "http://www.w3.org/2000/sv"), 0);
}

}  // namespace
}  // namespace withy::profiler_agent
