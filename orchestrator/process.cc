#include "orchestrator/process.h"

#include <grpcpp/impl/service_type.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "base/contract_limits.h"
#include "base/executor.h"
#include "base/status.h"
#include "orchestrator/gateway.h"
#include "orchestrator/openai/http_door.h"
#include "orchestrator/service.h"
#include "rpc/open_streams.h"
#include "rpc/open_tls.h"
#include "rpc/server.h"
#include "telemetry/about.h"
#include "telemetry/recorder.h"

namespace withy::orchestrator {
namespace {

constexpr size_t kShortThreads = 8;
constexpr size_t kShortQueue = 512;
// Beside those of calls that are admitted: for vectors of texts; for models, and for calls that are
// refused.
constexpr uint32_t kHttpThreads = TextEmbeddings::kMostCalls + 8;
constexpr uint32_t kMaxHttpCalls = 1024;
// A task that no thread took for so long means that the threads hang.
constexpr int64_t kStallNs = 60 * kNanosPerSecond;
// For the last messages of calls that have ended; what still runs then is cancelled.
constexpr absl::Duration kLastWords = absl::Milliseconds(500);
// Apps of other users in the socket's group may connect.
constexpr unsigned kSocketMode = 0660;

// Members are destroyed from the last to the first: the server goes before what its calls use.
class Orchestrator final : public rpc::Process {
 public:
  Orchestrator(const v1::Config& config, std::unique_ptr<telemetry::Recorder> recorder, TcpTls tls)
      : recorder_(std::move(recorder)),
        tls_(std::move(tls)),
        gateway_(config, *recorder_, Clock::Real()),
        calls_(config.orchestrator().queue_limit(), config.orchestrator().queue_limit(),
               Clock::Real()),
        shorts_(kShortThreads, kShortQueue, Clock::Real()),
        service_(MakeLlmService(gateway_, {calls_, shorts_}, Clock::Real(), answers_,
                                {.bind_app_over_tcp = config.orchestrator().bind_app_over_tcp(),
                                 .certificates_name_apps = tls_.source != nullptr &&
                                                           tls_.source->asks_for_certificates()})) {
  }

  // From here on the gateway tells the server nothing.
  ~Orchestrator() override { gateway_.readiness().Drain(); }

  absl::Status Serve(const v1::Config& config) {
    const rpc::ServerOptions options{.name = "orchestrator",
                                     .listen = AppAddresses(config),
                                     .socket_mode = kSocketMode,
                                     .max_request_bytes = kMaxRequestBytes,
                                     .answers = &answers_,
                                     .tls = tls_};
    WITHY_ASSIGN_OR_RETURN(server_, rpc::Server::Start(options, {service_.get()}));
    if (!config.orchestrator().http_listen().empty()) {
      const auto& origins = config.orchestrator().http_web_origins();
      const HttpDoorOptions door{
          .listen = config.orchestrator().http_listen(),
          .threads = std::min(config.orchestrator().queue_limit(), kMaxHttpCalls) + kHttpThreads,
          .web_origins = {origins.begin(), origins.end()},
          .tls = tls_.Covers(config.orchestrator().http_listen()) ? tls_.source : nullptr};
      WITHY_ASSIGN_OR_RETURN(http_, HttpDoor::Start(door, gateway_, Clock::Real()));
      spdlog::info("OpenAI-compatible API on {}/v1", http_->address());
    }
    gateway_.readiness().Start([this](bool ready) { server_->SetServing(ready); });
    return absl::OkStatus();
  }

  void Drain(absl::Duration grace) override {
    // The server stays up meanwhile: a gRPC server that shuts down answers new calls with
    // CANCELLED, which no app retries.
    gateway_.Drain(grace);
    if (http_ != nullptr) http_->Stop();
    server_->Shutdown(kLastWords);
  }

  std::vector<std::string> addresses() const override {
    std::vector<std::string> addresses = server_->addresses();
    if (http_ != nullptr) addresses.push_back(http_->address());
    return addresses;
  }

  std::string WhyNotReady() override { return gateway_.readiness().Why(); }

  bool MakesProgress() override {
    return calls_.StalledNanos() < kStallNs && shorts_.StalledNanos() < kStallNs;
  }

 private:
  std::unique_ptr<telemetry::Recorder> recorder_;
  const TcpTls tls_;
  Gateway gateway_;
  Executor calls_;
  Executor shorts_;
  rpc::OpenStreams answers_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<HttpDoor> http_;  // null: no HTTP
};

}  // namespace

absl::StatusOr<std::unique_ptr<rpc::Process>> StartOrchestrator(const v1::Config& config) {
  WITHY_ASSIGN_OR_RETURN(auto recorder,
                         telemetry::Recorder::Open(config.run_dir() + "/rings", "orchestrator"));
  telemetry::RecordBuild(*recorder);
  WITHY_ASSIGN_OR_RETURN(
      TcpTls tls,
      rpc::OpenTls(config, [raw = recorder.get()](const absl::Status& problem, absl::Time expires) {
        telemetry::RecordTls(*raw, absl::ToUnixSeconds(expires), problem.ok());
      }));
  auto orchestrator = std::make_unique<Orchestrator>(config, std::move(recorder), std::move(tls));
  WITHY_RETURN_IF_ERROR(orchestrator->Serve(config));
  return orchestrator;
}

}  // namespace withy::orchestrator
