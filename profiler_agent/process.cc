#include "profiler_agent/process.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "profiler_agent/agent.h"
#include "profiler_agent/exporter.h"
#include "profiler_agent/live_json.h"
#include "profiler_agent/service.h"
#include "rpc/open_tls.h"
#include "rpc/server.h"
#include "telemetry/about.h"
#include "telemetry/recorder.h"

namespace withy::profiler_agent {
namespace {

class Running final : public ProfilerProcess {
 public:
  absl::Status Start(const v1::Config& config) {
    const std::string rings = config.run_dir() + "/rings";
    // With its own ring the agent is one of the processes it reports.
    auto recorder = telemetry::Recorder::Open(rings, "profiler_agent");
    if (!recorder.ok()) return recorder.status();
    recorder_ = *std::move(recorder);
    telemetry::RecordBuild(*recorder_);
    WITHY_ASSIGN_OR_RETURN(agent_, Agent::Start({.rings_directory = rings,
                                                 .poll_ms = config.profiler().poll_ms(),
                                                 .state_dir = config.state_dir()},
                                                *recorder_));
    const double objective = config.profiler().slo_objective_per_mille() / 1000.0;
    exporter_ = std::make_shared<Exporter>(*agent_, *recorder_, objective);
    if (config.profiler().metrics_listen() != "off") {
      WITHY_ASSIGN_OR_RETURN(
          const TcpTls tls,
          rpc::OpenTls(config, [this](const absl::Status& problem, absl::Time expires) {
            telemetry::RecordTls(*recorder_, absl::ToUnixSeconds(expires), problem.ok());
          }));
      http::ServerOptions options = PageOptions();
      if (tls.Covers(config.profiler().metrics_listen())) options.tls = tls.source;
      WITHY_ASSIGN_OR_RETURN(metrics_,
                             MetricsServer::Start(config.profiler().metrics_listen(), exporter_,
                                                  LivePages(*agent_, objective), options));
      metrics_address_ = metrics_->address();
      spdlog::info("metrics on {0}://{1}/metrics, live page on {0}://{1}/",
                   options.tls == nullptr ? "http" : "https", metrics_address_);
    }
    service_ = MakeProfilerServer(
        *agent_, metrics_address_,
        [exporter = exporter_](bool lean) { return MetricsText(*exporter, lean); }, answers_);
    WITHY_ASSIGN_OR_RETURN(server_, rpc::Server::Start({.name = "profiler_agent",
                                                        .listen = {config.profiler().listen()},
                                                        .answers = &answers_},
                                                       {service_->service()}));
    server_->SetServing(true);
    return absl::OkStatus();
  }

  void Drain(absl::Duration grace) override {
    service_->Stop();
    server_->Shutdown(grace);
  }
  std::vector<std::string> addresses() const override { return server_->addresses(); }
  bool MakesProgress() override { return agent_->MakesProgress(); }
  std::function<void(size_t errors)> ConfigErrorSink() override {
    telemetry::Gauge& gauge = recorder_->gauge(
        {.name = "withy_config_errors",
         .help =
             "Errors of the configuration as its file is now, which the next start would have."});
    return [&gauge](size_t errors) { gauge.Set(static_cast<int64_t>(errors)); };
  }
  const std::string& metrics_address() const override { return metrics_address_; }

 private:
  // Each member borrows from those above it.
  std::unique_ptr<telemetry::Recorder> recorder_;
  std::unique_ptr<Agent> agent_;
  std::shared_ptr<Exporter>
      exporter_;  // with the pages and the service, as prometheus-cpp wants it
  std::unique_ptr<MetricsServer> metrics_;
  std::string metrics_address_;
  rpc::OpenStreams answers_;
  std::unique_ptr<ProfilerServer> service_;
  std::unique_ptr<rpc::Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ProfilerProcess>> StartProfiler(const v1::Config& config) {
  auto process = std::make_unique<Running>();
  WITHY_RETURN_IF_ERROR(process->Start(config));
  return process;
}

}  // namespace withy::profiler_agent
