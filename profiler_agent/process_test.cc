// The complete agent in one process: spans written with a Recorder appear in /metrics and in the
// Profiler service.
#include "profiler_agent/process.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <fstream>
#include <string>

#include "base/config.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "telemetry/recorder.h"
#include "telemetry/test_directory.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::profiler_agent {
namespace {

using telemetry::Recorder;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Performs GET /metrics over its own socket.
std::string Scrape(const std::string& address) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return "cannot connect";
  const std::string request = "GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
  if (send(fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) return "cannot send";
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = recv(fd.get(), buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  return answer;
}

class ProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    config_.set_run_dir(directory_.path());
    config_.set_state_dir(directory_.path());
    config_.mutable_profiler()->set_metrics_listen("127.0.0.1:0");
    config_.mutable_profiler()->set_poll_ms(1);
    ASSERT_TRUE(FillDefaults(&config_).ok());
  }
  std::unique_ptr<ProfilerProcess> Start() {
    auto process = StartProfiler(config_);
    EXPECT_TRUE(process.ok()) << process.status();
    return process.ok() ? *std::move(process) : nullptr;
  }
  // A stub with a deadline of 20 s per call.
  static std::unique_ptr<proto::Profiler::Stub> Connect(const ProfilerProcess& process) {
    return proto::Profiler::NewStub(
        grpc::CreateChannel(process.addresses().front(), grpc::InsecureChannelCredentials()));
  }
  static void SetDeadline(grpc::ClientContext* context) {
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  }
  // Waits until the agent has read `wanted` spans.
  static uint64_t AwaitSpans(proto::Profiler::Stub& stub, uint64_t wanted) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    proto::GetProfilerInfoResponse info;
    while (info.spans() < wanted && std::chrono::steady_clock::now() < end) {
      grpc::ClientContext context;
      SetDeadline(&context);
      if (!stub.GetProfilerInfo(&context, {}, &info).ok()) break;
    }
    return info.spans();
  }

  telemetry::TestDirectory directory_;
  proto::Config config_;
};

TEST_F(ProcessTest, SpansComeOutOfMetricsAndService) {
  auto process = Start();
  ASSERT_NE(process, nullptr);
  auto stub = Connect(*process);
  auto recorder = *Recorder::Open(directory_.path() + "/rings", "model_worker");
  RecordDuration(*recorder, telemetry::Phase::kPrefill, 5, 1'000'000, 4'000'000, 64);
  RecordDuration(*recorder, telemetry::Phase::kTtft, 5, 0, 30'000'000);
  recorder->counter({.name = "withy_generated_tokens_total", .help = "Tokens."}).Add(12);
  recorder->gauge({.name = "withy_running_calls", .help = "Calls."}).Set(3);
  ASSERT_EQ(AwaitSpans(*stub, 2), 2u);

  const std::string metrics = Scrape(process->metrics_address());
  EXPECT_THAT(metrics,
              AllOf(HasSubstr("200 OK"), HasSubstr("withy_up{process=\"model_worker\"} 1"),
                    HasSubstr("withy_up{process=\"profiler_agent\"} 1"),
                    HasSubstr("withy_up{process=\"context_store\"} 0"),
                    HasSubstr("withy_phase_duration_seconds_count{process=\"model_worker\","
                              "phase=\"prefill\"} 1"),
                    HasSubstr("withy_ttft_seconds_sum{process=\"model_worker\"} 0.03"),
                    HasSubstr("withy_generated_tokens_total{process=\"model_worker\"} 12"),
                    HasSubstr("withy_running_calls{process=\"model_worker\"} 3")));

  proto::GetSpansRequest request;
  request.set_call_id(5);
  proto::GetSpansResponse spans;
  grpc::ClientContext spans_context;
  SetDeadline(&spans_context);
  ASSERT_TRUE(stub->GetSpans(&spans_context, request, &spans).ok());
  ASSERT_EQ(spans.spans_size(), 2);
  EXPECT_EQ(spans.spans(1).name(), "prefill");
  EXPECT_EQ(spans.spans(1).kind(), "phase");
  EXPECT_EQ(spans.spans(1).process(), "model_worker");
  EXPECT_EQ(spans.spans(1).value(), 64u);
  EXPECT_EQ(spans.spans(1).ended_ns(), 4'000'000);

  proto::GetPhasesResponse phases;
  grpc::ClientContext phases_context;
  SetDeadline(&phases_context);
  ASSERT_TRUE(stub->GetPhases(&phases_context, {}, &phases).ok());
  ASSERT_GE(phases.phases_size(), 2);  // plus the scrape, once it is drained
  EXPECT_EQ(phases.phases(0).name(), "prefill");
  EXPECT_DOUBLE_EQ(phases.phases(0).mean_ms(), 3.0);
  EXPECT_DOUBLE_EQ(phases.phases(0).p99_ms(), 3.0);
  EXPECT_TRUE(process->MakesProgress());
}

TEST_F(ProcessTest, InfoNamesTheMetricsAddress) {
  auto process = Start();
  ASSERT_NE(process, nullptr);
  proto::GetProfilerInfoResponse info;
  grpc::ClientContext context;
  SetDeadline(&context);
  ASSERT_TRUE(Connect(*process)->GetProfilerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.metrics_address(), process->metrics_address());
  EXPECT_EQ(info.status().process(), "profiler_agent");
  EXPECT_GT(info.status().resident_bytes(), 0u);
}

TEST_F(ProcessTest, TooManySpansAtOnceAreRefused) {
  auto process = Start();
  ASSERT_NE(process, nullptr);
  proto::GetSpansRequest request;
  request.set_limit(100'001);
  proto::GetSpansResponse spans;
  grpc::ClientContext context;
  SetDeadline(&context);
  const grpc::Status status = Connect(*process)->GetSpans(&context, request, &spans);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("100001"));
}

TEST_F(ProcessTest, ATakenMetricsPortIsNamedWithTheRemedy) {
  auto first = Start();
  ASSERT_NE(first, nullptr);
  telemetry::TestDirectory other;
  config_.set_run_dir(other.path());
  config_.mutable_profiler()->set_listen("unix:" + other.path() + "/profiler.sock");
  config_.mutable_profiler()->set_metrics_listen(first->metrics_address());
  const auto second = StartProfiler(config_);
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr(first->metrics_address()), HasSubstr("profiler.metrics_listen")));
}

TEST_F(ProcessTest, ASecondAgentOnTheSameRingsIsRefused) {
  auto first = Start();
  ASSERT_NE(first, nullptr);
  const auto second = StartProfiler(config_);
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("another profiler agent"));
}

TEST_F(ProcessTest, MetricsMayBeOff) {
  config_.mutable_profiler()->set_metrics_listen("off");
  auto process = Start();
  ASSERT_NE(process, nullptr);
  EXPECT_EQ(process->metrics_address(), "");
}

TEST_F(ProcessTest, ABrokenRingFileDoesNotStopTheOthers) {
  std::filesystem::create_directories(directory_.path() + "/rings");
  std::ofstream(directory_.path() + "/rings/model_worker.1.ring") << "noise";
  auto process = Start();
  ASSERT_NE(process, nullptr);
  auto recorder = *Recorder::Open(directory_.path() + "/rings", "orchestrator");
  RecordDuration(*recorder, telemetry::Phase::kQueue, 1, 1, 2);
  EXPECT_EQ(AwaitSpans(*Connect(*process), 1), 1u);
}

}  // namespace
}  // namespace withy::profiler_agent
