// Watching and capturing, with the rings of real recorders.
#include "profiler_agent/agent.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "telemetry/test_directory.h"

namespace withy::profiler_agent {
namespace {

using telemetry::Phase;
using telemetry::RecordDuration;
using telemetry::SpanKind;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class AgentTest : public ::testing::Test {
 protected:
  // An agent that drains when the test says so: its thread has done so once and sleeps.
  void SetUp() override {
    constexpr uint32_t kHourMs = 3'600'000;
    auto agent =
        Agent::Start({.rings_directory = directory_.path(), .poll_ms = kHourMs}, *own_, clock_);
    ASSERT_TRUE(agent.ok()) << agent.status();
    agent_ = *std::move(agent);
    const telemetry::Counter& polls = own_->counter({.name = "withy_ring_polls_total"});
    while (polls.value() == 0) std::this_thread::yield();
  }
  void Kernel(uint64_t call = 0) {
    RecordDuration(*worker_, worker_->Name("attention", SpanKind::kKernel), call, 1, 2);
  }

  telemetry::TestDirectory directory_;
  FakeClock clock_;
  std::unique_ptr<telemetry::Recorder> own_ = telemetry::Recorder::Disabled();
  std::unique_ptr<telemetry::Recorder> worker_ =
      *telemetry::Recorder::Open(directory_.path(), "model_worker", {.ring_capacity = 65536});
  std::unique_ptr<Agent> agent_;
};

TEST_F(AgentTest, AWatcherGetsWhatItAskedForUntilItLeaves) {
  std::vector<std::string> names;
  bool stay = true;
  ASSERT_TRUE(agent_
                  ->Watch({.call_id = 4},
                          [&](const std::vector<SpanRow>& rows, uint64_t left_out) {
                            EXPECT_EQ(left_out, 0u);
                            for (const SpanRow& row : rows) names.push_back(row.name);
                            return stay;
                          })
                  .ok());
  RecordDuration(*worker_, Phase::kPrefill, 4, 1, 2);
  RecordDuration(*worker_, Phase::kDecode, 5, 1, 2);
  Kernel(4);
  agent_->Poll();
  EXPECT_THAT(names, ::testing::ElementsAre("prefill"));
  stay = false;
  agent_->Poll();
  RecordDuration(*worker_, Phase::kDecode, 4, 1, 2);
  agent_->Poll();
  EXPECT_THAT(names, SizeIs(1));
}

TEST_F(AgentTest, SpansThatAreTooManyForAWatcherAreCounted) {
  size_t taken = 0;
  uint64_t left_out = 0;
  ASSERT_TRUE(agent_
                  ->Watch({.kernels = true},
                          [&](const std::vector<SpanRow>& rows, uint64_t more) {
                            taken += rows.size();
                            left_out += more;
                            return true;
                          })
                  .ok());
  constexpr size_t kSpans = Agent::kWatchedSpans + 500;
  for (size_t i = 0; i < kSpans; ++i) Kernel();
  agent_->Poll();
  EXPECT_EQ(taken + left_out, kSpans);
  EXPECT_GE(left_out, 1u);
}

TEST_F(AgentTest, WatchersAreBounded) {
  for (size_t i = 0; i < Agent::kWatchers; ++i) {
    ASSERT_TRUE(agent_->Watch({}, [](const auto&, uint64_t) { return true; }).ok());
  }
  const absl::Status refused = agent_->Watch({}, [](const auto&, uint64_t) { return true; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("8 streams"));
}

TEST_F(AgentTest, ACaptureHasWhatCameBetweenItsBeginningAndItsEnd) {
  RecordDuration(*worker_, Phase::kPrefill, 1, 1, 2);
  ASSERT_TRUE(agent_->BeginCapture(absl::Seconds(5)).ok());
  RecordDuration(*worker_, Phase::kDecode, 1, 1, 2);
  Kernel();
  clock_.Advance(3 * kNanosPerSecond);
  const Captured captured = agent_->EndCapture();
  ASSERT_THAT(captured.set.spans, SizeIs(2));
  EXPECT_EQ(captured.set.texts[captured.set.spans[0].name], "decode");
  EXPECT_EQ(captured.ended_ns - captured.started_ns, 3 * kNanosPerSecond);
  EXPECT_EQ(captured.left_out, 0u);
  EXPECT_EQ(captured.lost, 0u);
}

TEST_F(AgentTest, OneCaptureRunsAtATimeAndTheErrorSaysForHowLong) {
  ASSERT_TRUE(agent_->BeginCapture(absl::Seconds(5)).ok());
  clock_.Advance(2 * kNanosPerSecond);
  const absl::Status second = agent_->BeginCapture(absl::Seconds(5));
  EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.message()), HasSubstr("for 3 s more"));
  agent_->EndCapture();
  EXPECT_TRUE(agent_->BeginCapture(absl::Seconds(5)).ok());
}

TEST_F(AgentTest, SpansLostDuringACaptureAreCounted) {
  ASSERT_TRUE(agent_->BeginCapture(absl::Seconds(5)).ok());
  // The agent's thread is asleep, so the ring overflows.
  for (int i = 0; i < 70'000; ++i) Kernel();
  const Captured captured = agent_->EndCapture();
  EXPECT_EQ(captured.set.spans.size() + captured.lost, 70'000u);
}

}  // namespace
}  // namespace withy::profiler_agent
