#include "rpc/server.h"

#include <grpc/grpc.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <grpcpp/impl/server_initializer.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/listen_address.h"
#include "base/status.h"
#include "rpc/connections.h"
#include "rpc/tls_credentials.h"

namespace withy::rpc {
namespace {

// A client that lives closes its end at once.
constexpr absl::Duration kClientsClose = absl::Milliseconds(200);

using Connections = grpc::experimental::ExternalConnectionAcceptor;

}  // namespace

// Calls the server itself periodically. Threads that answer calls sleep for 100 ms after a second
// without an event, even if a call arrives (gRPC 1.51, CallbackAlternativeCQ). One event per second
// keeps one of them awake.
class Server::Waker {
 public:
  explicit Waker(std::shared_ptr<grpc::Channel> server)
      : stub_(std::move(server)), thread_([this] { Run(); }) {}
  ~Waker() {
    stop_.Notify();
    thread_.join();
  }
  Waker(const Waker&) = delete;
  Waker& operator=(const Waker&) = delete;

 private:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(500);

  void Run() {
    while (!stop_.WaitForNotificationWithTimeout(kPeriod)) {
      grpc::ClientContext context;
      context.set_deadline(absl::ToChronoTime(absl::Now() + kPeriod));
      const grpc::Slice nothing;
      const grpc::ByteBuffer request(&nothing, 1);
      grpc::ByteBuffer response;
      absl::Notification done;
      stub_.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request,
                      &response, [&done](const grpc::Status& /*any*/) { done.Notify(); });
      done.WaitForNotification();
    }
  }

  grpc::GenericStub stub_;
  absl::Notification stop_;
  std::thread thread_;  // last, because it uses the other members
};

namespace {

// Writes the names of a server's services to `*names` when it is built.
class ServiceNames final : public grpc::ServerBuilderOption {
 public:
  explicit ServiceNames(std::vector<std::string>* names) : names_(names) {}
  void UpdateArguments(grpc::ChannelArguments* /*arguments*/) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    plugins->push_back(std::make_unique<Plugin>(names_));
  }

 private:
  class Plugin final : public grpc::ServerBuilderPlugin {
   public:
    explicit Plugin(std::vector<std::string>* names) : names_(names) {}
    std::string name() override { return "withy service names"; }
    void InitServer(grpc::ServerInitializer* /*server*/) override {}
    void Finish(grpc::ServerInitializer* server) override { *names_ = *server->GetServiceList(); }
    void ChangeArguments(const std::string& /*name*/, void* /*value*/) override {}

   private:
    std::vector<std::string>* const names_;
  };

  std::vector<std::string>* const names_;
};

// Closes connections whose client is gone without a word (a cable pulled, a machine that stopped),
// and lets clients ask likewise.
void CloseDeadConnections(grpc::ServerBuilder* builder) {
  constexpr int kAskAfterMs = 60'000;  // without traffic
  constexpr int kAnswerWithinMs = 20'000;
  constexpr int kClientsAskEveryMs = 10'000;  // more often is abuse
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kAskAfterMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kAnswerWithinMs);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);  // as many as needed
  builder->AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                              kClientsAskEveryMs);
}

}  // namespace

Server::Server() = default;

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options,
                                                      const std::vector<grpc::Service*>& services) {
  static std::once_flag once;
  std::call_once(once, [] {
    // Held for the life of the process: releasing the library for the last time may wait 10 s for
    // its own poller.
    grpc_init();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
  std::unique_ptr<Server> self(new Server);
  self->answers_ = options.answers;
  grpc::ServerBuilder builder;
  CloseDeadConnections(&builder);
  std::vector<std::string> names;
  builder.SetOption(std::make_unique<ServiceNames>(&names));
  builder.SetMaxReceiveMessageSize(options.max_request_bytes);
  for (const std::string& address : options.listen) {
    WITHY_RETURN_IF_ERROR(CheckListenAddress(address));
    if (address.starts_with(kUnixPrefix)) {
      WITHY_ASSIGN_OR_RETURN(UniqueFd lock,
                             ClaimSocket(address.substr(kUnixPrefix.size()), options.name));
      self->locks_.push_back(std::move(lock));
    }
    self->credentials_.push_back(options.tls.Covers(address) ? ServerTls(options.tls.source)
                                                             : grpc::InsecureServerCredentials());
    std::shared_ptr<Connections> connections = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
        self->credentials_.back());
    WITHY_RETURN_IF_ERROR(self->acceptor_.Listen(options.name, address, options.socket_mode,
                                                 [connections](UniqueFd fd) {
                                                   Connections::NewConnectionParameters connection;
                                                   connection.fd = fd.Release();
                                                   connections->HandleNewConnection(&connection);
                                                 }));
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  if (options.all_else != nullptr) builder.RegisterCallbackGenericService(options.all_else);
  self->server_ = builder.BuildAndStart();
  if (self->server_ == nullptr) {
    return absl::InternalError(absl::StrCat("gRPC cannot start the server of ", options.name));
  }
  for (const std::string& name : names) {
    self->server_->GetHealthCheckService()->SetServingStatus(name, false);
  }
  self->SetServing(false);
  self->waker_ = std::make_unique<Waker>(self->server_->InProcessChannel(grpc::ChannelArguments()));
  self->acceptor_.Start();
  return self;
}

Server::~Server() {
  if (server_ != nullptr) Shutdown(absl::ZeroDuration());
}

void Server::SetServing(bool serving) {
  server_->GetHealthCheckService()->SetServingStatus(serving);
}

void Server::Shutdown(absl::Duration grace) {
  const bool sent = answers_ == nullptr || answers_->AwaitNone(grace);
  acceptor_.Stop();
  waker_.reset();
  server_->GetHealthCheckService()->Shutdown();
  // A server that shuts down ends calls that come now with CANCELLED, which no app retries. Apps
  // whose connection is closed get UNAVAILABLE.
  if (sent) EndConnections(acceptor_.addresses(), std::min(grace, kClientsClose));
  server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(grace));
  server_->Wait();
}

}  // namespace withy::rpc
