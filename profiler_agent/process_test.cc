// The complete agent in one process: spans written with a Recorder appear in /metrics and in the
// Profiler service.
#include "profiler_agent/process.h"

#include <arpa/inet.h>
#include <grpcpp/create_channel.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "base/config.h"
#include "base/unique_fd.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "telemetry/recorder.h"
#include "telemetry/test_directory.h"
#include "withy/v1/profiler.grpc.pb.h"
#include "withy/v1/timeline.pb.h"

namespace withy::profiler_agent {
namespace {

using telemetry::Recorder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Performs GET over its own socket.
std::string Scrape(const std::string& address, const std::string& path = "/metrics") {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) return "cannot connect";
  const std::string request = "GET " + path + " HTTP/1.0\r\nHost: localhost\r\n\r\n";
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
                    HasSubstr("withy_running_calls{process=\"model_worker\"} 3"),
                    HasSubstr("withy_build_info{process=\"profiler_agent\",version=")));

  const std::string lean = Scrape(process->metrics_address(), "/metrics/lean");
  EXPECT_THAT(lean, AllOf(HasSubstr("withy_ttft_seconds_sum{process=\"model_worker\"} 0.03"),
                          HasSubstr("withy_up{process=\"model_worker\"} 1"),
                          Not(HasSubstr("withy_phase_duration_seconds"))));

  for (const bool of_lean : {false, true}) {
    proto::GetMetricsRequest wanted;
    wanted.set_lean(of_lean);
    proto::GetMetricsResponse told;
    grpc::ClientContext metrics_context;
    SetDeadline(&metrics_context);
    ASSERT_TRUE(stub->GetMetrics(&metrics_context, wanted, &told).ok());
    EXPECT_THAT(told.text(), HasSubstr("withy_up{process=\"model_worker\"} 1"));
    EXPECT_EQ(told.text().find("withy_phase_duration_seconds") == std::string::npos, of_lean);
  }

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

TEST_F(ProcessTest, SummariesSayKindAndShare) {
  auto process = Start();
  ASSERT_NE(process, nullptr);
  auto stub = Connect(*process);
  auto worker = *Recorder::Open(directory_.path() + "/rings", "model_worker");
  auto orchestrator = *Recorder::Open(directory_.path() + "/rings", "orchestrator");
  RecordDuration(*orchestrator, telemetry::Phase::kEndToEnd, 5, 0, 8'000'000);
  RecordDuration(*worker, telemetry::Phase::kDecode, 5, 0, 2'000'000);
  RecordDuration(*worker, worker->Name("norm", telemetry::SpanKind::kKernel), 0, 0, 1000);
  RecordDuration(*worker, worker->Name("head", telemetry::SpanKind::kKernel), 0, 0, 3000);
  ASSERT_EQ(AwaitSpans(*stub, 4), 4u);
  const auto shares = [&](const std::string& kind) {
    proto::GetPhasesRequest request;
    request.set_kind(kind);
    proto::GetPhasesResponse phases;
    grpc::ClientContext context;
    SetDeadline(&context);
    EXPECT_TRUE(stub->GetPhases(&context, request, &phases).ok());
    EXPECT_GT(phases.covered_s(), 0);
    std::map<std::string, double> by_name;
    for (const proto::PhaseSummary& phase : phases.phases()) {
      if (phase.process() != "profiler_agent") by_name[phase.name()] = phase.share();
    }
    return by_name;
  };
  using ::testing::Pair;
  using ::testing::UnorderedElementsAre;
  EXPECT_THAT(shares("kernel"), UnorderedElementsAre(Pair("norm", 0.25), Pair("head", 0.75)));
  EXPECT_THAT(shares("phase"), UnorderedElementsAre(Pair("end_to_end", 1), Pair("decode", 0.25)));
  EXPECT_EQ(shares("").size(), 4u);

  proto::GetPhasesRequest request;
  request.set_kind("kernels");
  proto::GetPhasesResponse phases;
  grpc::ClientContext context;
  SetDeadline(&context);
  const grpc::Status status = stub->GetPhases(&context, request, &phases);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), HasSubstr("\"kernels\""));
}

TEST_F(ProcessTest, SpansAreStreamedAsTheyCome) {
  auto process = Start();
  ASSERT_NE(process, nullptr);
  auto stub = Connect(*process);
  auto recorder = *Recorder::Open(directory_.path() + "/rings", "model_worker");
  grpc::ClientContext context;
  SetDeadline(&context);
  proto::WatchSpansRequest request;
  request.set_call_id(5);
  const auto reader = stub->WatchSpans(&context, request);
  proto::WatchSpansResponse message;
  ASSERT_TRUE(reader->Read(&message)) << "the stream has begun";
  EXPECT_EQ(message.spans_size(), 0);
  RecordDuration(*recorder, telemetry::Phase::kDecode, 6, 1, 2);
  RecordDuration(*recorder, telemetry::Phase::kPrefill, 5, 1, 2, 64);
  ASSERT_TRUE(reader->Read(&message));
  ASSERT_EQ(message.spans_size(), 1);
  EXPECT_EQ(message.spans(0).name(), "prefill");
  EXPECT_EQ(message.spans(0).value(), 64u);
  context.TryCancel();
  reader->Finish();
}

TEST_F(ProcessTest, ATimelineIsCapturedOneAtATime) {
  auto process = Start();
  ASSERT_NE(process, nullptr);
  auto stub = Connect(*process);
  auto recorder = *Recorder::Open(directory_.path() + "/rings", "model_worker");
  grpc::ClientContext context;
  SetDeadline(&context);
  proto::CaptureTimelineRequest request;
  request.set_seconds(1);
  const auto reader = stub->CaptureTimeline(&context, request);
  proto::CaptureTimelineResponse piece;
  ASSERT_TRUE(reader->Read(&piece)) << "recording has begun";
  grpc::ClientContext second_context;
  SetDeadline(&second_context);
  const auto second = stub->CaptureTimeline(&second_context, request);
  EXPECT_FALSE(second->Read(&piece));
  const grpc::Status refused = second->Finish();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(refused.error_message(), HasSubstr("another capture"));
  RecordDuration(*recorder, telemetry::Phase::kPrefill, 5, 1'000'000, 4'000'000, 64);

  std::string bytes;
  proto::TimelineSummary summary;
  while (reader->Read(&piece)) {
    bytes += piece.trace();
    if (piece.has_summary()) summary = piece.summary();
  }
  ASSERT_TRUE(reader->Finish().ok());
  EXPECT_GE(summary.spans(), 1u);
  EXPECT_GE(summary.seconds(), 1);
  EXPECT_EQ(summary.dropped() + summary.lost(), 0u);
  proto::timeline::Trace trace;
  ASSERT_TRUE(trace.ParseFromString(bytes));
  EXPECT_THAT(bytes, AllOf(HasSubstr("model_worker"), HasSubstr("prefill"),
                           HasSubstr("call 0000000000000005")));
}

TEST_F(ProcessTest, ACaptureOfTheWrongLengthIsRefused) {
  auto process = Start();
  ASSERT_NE(process, nullptr);
  grpc::ClientContext context;
  SetDeadline(&context);
  proto::CaptureTimelineRequest request;
  request.set_seconds(61);
  const auto reader = Connect(*process)->CaptureTimeline(&context, request);
  proto::CaptureTimelineResponse unused;
  EXPECT_FALSE(reader->Read(&unused));
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), AllOf(HasSubstr("61"), HasSubstr("60")));
}

TEST_F(ProcessTest, ADrainEndsStreamsAndSendsWhatACaptureHas) {
  auto process = Start();
  ASSERT_NE(process, nullptr);
  auto stub = Connect(*process);
  grpc::ClientContext capture_context, watch_context;
  SetDeadline(&capture_context);
  SetDeadline(&watch_context);
  proto::CaptureTimelineRequest request;
  request.set_seconds(60);
  const auto capture = stub->CaptureTimeline(&capture_context, request);
  const auto watch = stub->WatchSpans(&watch_context, {});
  proto::WatchSpansResponse message;
  proto::CaptureTimelineResponse piece;
  ASSERT_TRUE(watch->Read(&message));
  ASSERT_TRUE(capture->Read(&piece));
  std::thread drain([&] { process->Drain(absl::Seconds(20)); });
  while (watch->Read(&message)) {
  }
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  bool summary = false;
  while (capture->Read(&piece)) summary = summary || piece.has_summary();
  EXPECT_TRUE(capture->Finish().ok());
  EXPECT_TRUE(summary);
  drain.join();
}

TEST_F(ProcessTest, TheLivePageIsServedBesideTheMetrics) {
  auto process = Start();
  ASSERT_NE(process, nullptr);
  EXPECT_THAT(Scrape(process->metrics_address(), "/"),
              AllOf(HasSubstr("200 OK"), HasSubstr("text/html"), HasSubstr("<title>withy</title>"),
                    HasSubstr("Content-Security-Policy: default-src 'none'")));
  EXPECT_THAT(Scrape(process->metrics_address(), "/live.json"),
              AllOf(HasSubstr("application/json"), HasSubstr("\"slo_objective\":0.99")));
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
