#include "cli/client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/config.h"
#include "base/config/defaults.h"
#include "base/environment.h"
#include "base/files.h"
#include "base/status.h"
#include "cli/config/service_address.h"
#include "cli/models/token_files.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "rpc/tls_credentials.h"
#include "withy/v1/context_store.grpc.pb.h"
#include "withy/v1/llm_service.grpc.pb.h"
#include "withy/v1/model_worker.grpc.pb.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::cli {
namespace {

struct Deadline {
  absl::Duration timeout;
  const char* remedy;
};

constexpr Deadline kUnaryDeadline = {absl::Seconds(30),
                                     "`withyctl status` shows what withy is doing; then try again"};
constexpr char kUnix[] = "unix:";

// The called process.
struct Peer {
  Peer() = default;
  Peer(const char* name, std::string where, const rpc::ClientTls* tls = nullptr)
      : process(name), address(std::move(where)), channel(rpc::Connect(address, tls)) {}

  const char* process = "";
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
};

// What --ca, --cert and --key say; nullopt: no TLS. Errors: INVALID_ARGUMENT, those of the files.
absl::StatusOr<std::optional<rpc::ClientTls>> TlsOf(const Args& args, const std::string& address) {
  constexpr size_t kMostPemBytes = 1 << 20;
  const std::string ca = args.Get("ca", Environment("WITHY_CA"));
  if (args.Has("cert") != args.Has("key") || (args.Has("cert") && ca.empty())) {
    return absl::InvalidArgumentError("give --ca, --cert and --key together, or --ca alone");
  }
  if (ca.empty()) return std::nullopt;
  if (address.starts_with(kUnix)) {
    if (!args.Has("ca")) return std::nullopt;  // WITHY_CA is for other commands
    return absl::InvalidArgumentError(absl::StrCat("--ca is for TCP, and ", address,
                                                   " is a unix socket: give --address HOST:PORT"));
  }
  rpc::ClientTls tls;
  WITHY_ASSIGN_OR_RETURN(tls.ca_pem, ReadRegularFile(ca, kMostPemBytes));
  if (!args.Has("cert")) return tls;
  WITHY_ASSIGN_OR_RETURN(tls.certificate_pem, ReadRegularFile(args.Get("cert"), kMostPemBytes));
  WITHY_ASSIGN_OR_RETURN(tls.key_pem, ReadRegularFile(args.Get("key"), kMostPemBytes));
  return tls;
}

// Messages of gRPC servers for an unknown method: C++ none, Go and Python those below, a plain
// HTTP/2 server the last. withy's own UNIMPLEMENTED errors name a field of the request.
bool SaysMethodIsUnknown(absl::string_view message) {
  return message.empty() || absl::StartsWithIgnoreCase(message, "unknown service") ||
         absl::StartsWithIgnoreCase(message, "unknown method") ||
         absl::StartsWithIgnoreCase(message, "method not found") ||
         absl::StartsWithIgnoreCase(message, "received http2 header");
}

// Where a process listens: as configured, or, if only the orchestrator's address is known, at the
// socket `name` beside that one.
std::string Beside(const std::string& address, const v1::Config& config,
                   const std::string& configured, const char* name) {
  const std::vector<std::string> own = AppAddresses(config);
  if (!address.starts_with(kUnix) || std::find(own.begin(), own.end(), address) != own.end())
    return configured;
  const std::filesystem::path socket(address.substr(sizeof(kUnix) - 1));
  return kUnix + (socket.parent_path() / name).string();
}

}  // namespace

struct AnswerCancel::State {
  std::mutex mutex;
  bool cancelled = false;
  grpc::ClientContext* context = nullptr;  // of the running answer
  std::string call_id = {};                // likewise; empty: no message received yet
  std::function<bool(const std::string& call_id)> ask = nullptr;  // false: the request failed

  void BreakOff() {
    const std::lock_guard lock(mutex);
    if (context != nullptr) context->TryCancel();
  }
};

AnswerCancel::AnswerCancel() : state_(std::make_shared<State>()) {}
AnswerCancel::~AnswerCancel() = default;

void AnswerCancel::Cancel() {
  std::function<bool(const std::string&)> ask;
  std::string call_id;
  {
    const std::lock_guard lock(state_->mutex);
    if (!state_->cancelled) call_id = state_->call_id;
    ask = state_->ask;
    state_->cancelled = true;
  }
  if (call_id.empty() || !ask(call_id)) state_->BreakOff();
}

struct Client::Impl {
  Peer orchestrator;
  Peer store;
  Peer worker;
  Peer profiler;
  std::string token;
  std::string token_source;
  bool encrypted = false;
  bool certified = false;  // the app has a certificate
  std::unique_ptr<v1::LlmService::Stub> stub;
  std::unique_ptr<v1::ContextStore::Stub> store_stub;
  std::unique_ptr<v1::ModelWorker::Stub> worker_stub;
  std::unique_ptr<v1::Profiler::Stub> profiler_stub;

  void Prepare(grpc::ClientContext* context, absl::Duration timeout) const {
    rpc::SetTimeout(context, timeout);
    if (!token.empty()) context->AddMetadata("authorization", "Bearer " + token);
  }

  absl::Status ExplainUnauthenticated() const {
    if (token.empty()) {
      return absl::UnauthenticatedError(
          "no token: `withyctl apps bind NAME` gets and stores one; give a token from elsewhere "
          "with --token or WITHY_TOKEN");
    }
    return absl::UnauthenticatedError(
        absl::StrCat("the token (from ", token_source,
                     ") was refused: `withyctl apps bind NAME` gets one for a new app; for an app "
                     "whose token is lost the "
                     "operator's `withyctl apps renew NAME` does"));
  }

  // The status with its remedy.
  absl::Status Explain(const grpc::Status& status, const grpc::ClientContext& context,
                       const Peer& peer, const Deadline& deadline) const {
    absl::Status plain = rpc::FromGrpc(status);
    const bool connected = peer.channel->GetState(false) == GRPC_CHANNEL_READY;
    if (absl::IsUnavailable(plain) && !connected && MayNotConnect(peer.address)) {
      return absl::PermissionDeniedError(
          absl::StrCat("no permission for ", peer.address,
                       ": the service is for root and members of its group; "
                       "`usermod -aG withy USER` as root adds one, from the next login on"));
    }
    if (absl::IsUnavailable(plain) && !connected && encrypted && &peer == &orchestrator) {
      return absl::UnavailableError(absl::StrCat(
          "no TLS with withy at ", peer.address, " (", plain.message(),
          "): --ca must name the CA of its certificate, the certificate must name the host of "
          "--address, and a service that asks for certificates needs --cert and --key"));
    }
    if (absl::IsUnavailable(plain) && !connected) {
      return absl::UnavailableError(
          absl::StrCat("withy does not answer at ", peer.address,
                       ": is it running? Start it with `./withy up` or "
                       "`systemctl start withy.target`, or give its "
                       "address with --address or WITHY_ADDRESS",
                       peer.address.starts_with(kUnix) ? "" : "; where it speaks TLS, give --ca"));
    }
    if (absl::IsDeadlineExceeded(plain)) {
      return absl::DeadlineExceededError(
          absl::StrCat("withy at ", peer.address,
                       connected ? " had not finished after " : " was not reached in ",
                       absl::ToDoubleSeconds(deadline.timeout),
                       " s, the deadline of this call: ", deadline.remedy));
    }
    if (absl::IsUnimplemented(plain) && SaysMethodIsUnknown(plain.message())) {
      return absl::UnimplementedError(absl::StrCat(
          "the server at ", peer.address, " is not withy's ", peer.process,
          ", or has another version: give its address with --address or WITHY_ADDRESS"));
    }
    if (absl::IsUnauthenticated(plain) && !certified) return ExplainUnauthenticated();
    const auto& trailing = context.GetServerTrailingMetadata();
    if (const auto hint = trailing.find(rpc::kRetryAfterKey); hint != trailing.end()) {
      return absl::Status(
          plain.code(),
          absl::StrCat(plain.message(), " (retry after ",
                       std::string(hint->second.data(), hint->second.size()), " ms)"));
    }
    return plain;
  }

  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(grpc::Status (v1::LlmService::Stub::*method)(grpc::ClientContext*,
                                                                             const Request&,
                                                                             Response*),
                                const Request& request) const {
    grpc::ClientContext context;
    Prepare(&context, kUnaryDeadline.timeout);
    Response response;
    const grpc::Status status = (stub.get()->*method)(&context, request, &response);
    if (!status.ok()) return Explain(status, context, orchestrator, kUnaryDeadline);
    return response;
  }

  template <typename Response, typename Request>
  absl::StatusOr<Response> CallProfiler(
      grpc::Status (v1::Profiler::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
      const Request& request) const {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kUnaryDeadline.timeout);
    Response response;
    const grpc::Status status = (profiler_stub.get()->*method)(&context, request, &response);
    if (!status.ok()) return Explain(status, context, profiler, kUnaryDeadline);
    return response;
  }

  template <typename Response, typename Request>
  absl::StatusOr<Response> CallStore(grpc::Status (v1::ContextStore::Stub::*method)(
                                         grpc::ClientContext*, const Request&, Response*),
                                     const Request& request) const {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, kUnaryDeadline.timeout);
    Response response;
    const grpc::Status status = (store_stub.get()->*method)(&context, request, &response);
    if (!status.ok()) return Explain(status, context, store, kUnaryDeadline);
    return response;
  }

  // Reads a stream of profiler_agent to its end, or until `take` returns false. `endless`: only the
  // deadline ends it, which is no error.
  template <typename Response, typename Reader>
  absl::Status ReadProfiler(grpc::ClientContext* context, Reader reader, const Deadline& deadline,
                            bool endless, const std::function<bool(const Response&)>& take) const {
    Response response;
    bool left = false;
    while (reader->Read(&response)) {
      if (take(response) || left) continue;
      left = true;
      context->TryCancel();
    }
    const grpc::Status status = reader->Finish();
    const bool over = endless && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED &&
                      profiler.channel->GetState(false) == GRPC_CHANNEL_READY;
    if (status.ok() || over || left) return absl::OkStatus();
    return Explain(status, *context, profiler, deadline);
  }
};

Client::Client() : impl_(std::make_unique<Impl>()) {}
Client::~Client() = default;

absl::StatusOr<std::unique_ptr<Client>> Client::Open(const Args& args) {
  if (args.Has("token") && args.Has("app"))
    return absl::InvalidArgumentError("give --token or --app, not both");
  WITHY_ASSIGN_OR_RETURN(const v1::Config config, LoadConfig(args.Get("config")));
  std::unique_ptr<Client> client(new Client);
  Impl& impl = *client->impl_;
  std::string address = args.Get("address", Environment("WITHY_ADDRESS"));
  if (address.empty()) address = ServiceAddress(config, args.Has("config"));
  impl.store = {"context_store",
                Beside(address, config, config.store().listen(), "context_store.sock")};
  impl.worker = {"model_worker",
                 Beside(address, config, config.model().listen(), "model_worker.sock")};
  impl.profiler = {"profiler_agent",
                   Beside(address, config, config.profiler().listen(), "profiler_agent.sock")};
  WITHY_ASSIGN_OR_RETURN(const std::optional<rpc::ClientTls> tls, TlsOf(args, address));
  impl.encrypted = tls.has_value();
  impl.certified = args.Has("cert");
  impl.orchestrator = {"orchestrator", address, tls.has_value() ? &*tls : nullptr};
  impl.stub = v1::LlmService::NewStub(impl.orchestrator.channel);
  impl.store_stub = v1::ContextStore::NewStub(impl.store.channel);
  impl.worker_stub = v1::ModelWorker::NewStub(impl.worker.channel);
  impl.profiler_stub = v1::Profiler::NewStub(impl.profiler.channel);
  if (args.Has("token")) {
    WITHY_RETURN_IF_ERROR(client->UseToken(args.Get("token"), "--token"));
  } else if (args.Has("app")) {
    WITHY_ASSIGN_OR_RETURN(const std::string token, ReadToken(args.Get("app")));
    WITHY_RETURN_IF_ERROR(client->UseToken(token, "--app"));
  } else if (const std::string given = Environment("WITHY_TOKEN"); !given.empty()) {
    WITHY_RETURN_IF_ERROR(client->UseToken(given, "WITHY_TOKEN"));
  } else {
    WITHY_RETURN_IF_ERROR(client->UseToken(ReadDefaultToken(), "the app bound last"));
  }
  return client;
}

absl::Status Client::UseToken(const std::string& token, const std::string& source) {
  // gRPC aborts the process for metadata that is not printable ASCII.
  if (!std::all_of(token.begin(), token.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the token (from ", source,
                     ") has invalid characters: give another with --token or --app"));
  }
  impl_->token = token;
  impl_->token_source = source;
  return absl::OkStatus();
}

using Stub = v1::LlmService::Stub;

absl::StatusOr<v1::BindAppResponse> Client::BindApp(const v1::BindAppRequest& request) {
  return impl_->Call(&Stub::BindApp, request);
}
absl::StatusOr<v1::CreateContextResponse> Client::CreateContext(
    const v1::CreateContextRequest& request) {
  return impl_->Call(&Stub::CreateContext, request);
}
absl::StatusOr<v1::GetContextResponse> Client::GetContext(const v1::GetContextRequest& request) {
  return impl_->Call(&Stub::GetContext, request);
}
absl::StatusOr<v1::ListContextsResponse> Client::ListContexts(
    const v1::ListContextsRequest& request) {
  return impl_->Call(&Stub::ListContexts, request);
}
absl::StatusOr<v1::DeleteContextResponse> Client::DeleteContext(
    const v1::DeleteContextRequest& request) {
  return impl_->Call(&Stub::DeleteContext, request);
}
absl::StatusOr<v1::CountTokensResponse> Client::CountTokens(const v1::CountTokensRequest& request) {
  return impl_->Call(&Stub::CountTokens, request);
}
absl::StatusOr<v1::PlanResponse> Client::Plan(const v1::GenerateRequest& request) {
  return impl_->Call(&Stub::Plan, request);
}
absl::StatusOr<v1::CancelResponse> Client::Cancel(const v1::CancelRequest& request) {
  return impl_->Call(&Stub::Cancel, request);
}
absl::StatusOr<v1::ListModelsResponse> Client::ListModels() {
  return impl_->Call(&Stub::ListModels, v1::ListModelsRequest());
}
absl::StatusOr<v1::GetStatusResponse> Client::GetStatus() {
  return impl_->Call(&Stub::GetStatus, v1::GetStatusRequest());
}
absl::StatusOr<v1::GetStoreInfoResponse> Client::GetStoreInfo() {
  return impl_->CallStore(&v1::ContextStore::Stub::GetStoreInfo, v1::GetStoreInfoRequest());
}

absl::StatusOr<v1::ListAppsResponse> Client::ListApps() {
  return impl_->CallStore(&v1::ContextStore::Stub::ListApps, v1::ListAppsRequest());
}
absl::StatusOr<v1::BindAppResponse> Client::RenewApp(const std::string& app) {
  v1::StoreBindAppRequest request;
  request.set_app(app);
  request.set_operator_renewal(true);
  return impl_->CallStore(&v1::ContextStore::Stub::BindApp, request);
}
absl::StatusOr<v1::RemoveAppResponse> Client::RemoveApp(const v1::RemoveAppRequest& request) {
  return impl_->CallStore(&v1::ContextStore::Stub::RemoveApp, request);
}

absl::StatusOr<v1::RotateMasterKeyResponse> Client::RotateMasterKey() {
  return impl_->CallStore(&v1::ContextStore::Stub::RotateMasterKey, v1::RotateMasterKeyRequest());
}
absl::StatusOr<v1::BeginBackupResponse> Client::BeginBackup(const v1::BeginBackupRequest& request) {
  return impl_->CallStore(&v1::ContextStore::Stub::BeginBackup, request);
}
absl::StatusOr<v1::EndBackupResponse> Client::EndBackup(const v1::EndBackupRequest& request) {
  return impl_->CallStore(&v1::ContextStore::Stub::EndBackup, request);
}

absl::StatusOr<v1::GetPhasesResponse> Client::GetPhases(const v1::GetPhasesRequest& request) {
  return impl_->CallProfiler(&v1::Profiler::Stub::GetPhases, request);
}
absl::StatusOr<v1::GetSpansResponse> Client::GetSpans(const v1::GetSpansRequest& request) {
  return impl_->CallProfiler(&v1::Profiler::Stub::GetSpans, request);
}
absl::StatusOr<v1::ListCallsResponse> Client::ListCalls(const v1::ListCallsRequest& request) {
  return impl_->CallProfiler(&v1::Profiler::Stub::ListCalls, request);
}
absl::StatusOr<v1::ExplainCallResponse> Client::ExplainCall(const v1::ExplainCallRequest& request) {
  return impl_->CallProfiler(&v1::Profiler::Stub::ExplainCall, request);
}

absl::Status Client::UseModel(const v1::UseModelRequest& request,
                              const std::function<void(const v1::UseModelResponse&)>& on_progress) {
  const Deadline deadline = {absl::Hours(6), "`withyctl models import FILE` packs it beforehand"};
  grpc::ClientContext context;
  rpc::SetTimeout(&context, deadline.timeout);
  const auto reader = impl_->worker_stub->UseModel(&context, request);
  v1::UseModelResponse response;
  while (reader->Read(&response)) on_progress(response);
  const grpc::Status status = reader->Finish();
  if (status.ok()) return absl::OkStatus();
  return impl_->Explain(status, context, impl_->worker, deadline);
}

absl::StatusOr<v1::GetWorkerInfoResponse> Client::GetWorkerInfo() {
  const Deadline deadline = {absl::Seconds(5), "`withyctl status` shows what withy is doing"};
  grpc::ClientContext context;
  rpc::SetTimeout(&context, deadline.timeout);
  v1::GetWorkerInfoResponse response;
  const grpc::Status status =
      impl_->worker_stub->GetWorkerInfo(&context, v1::GetWorkerInfoRequest(), &response);
  if (!status.ok()) return impl_->Explain(status, context, impl_->worker, deadline);
  return response;
}

absl::Status Client::CaptureTimeline(
    const v1::CaptureTimelineRequest& request,
    const std::function<bool(const v1::CaptureTimelineResponse&)>& take) {
  const Deadline deadline = {absl::Seconds(request.seconds()) + kUnaryDeadline.timeout,
                             "the trace was not sent in time; take a shorter one"};
  grpc::ClientContext context;
  rpc::SetTimeout(&context, deadline.timeout);
  return impl_->ReadProfiler<v1::CaptureTimelineResponse>(
      &context, impl_->profiler_stub->CaptureTimeline(&context, request), deadline, false, take);
}

absl::Status Client::WatchSpans(const v1::WatchSpansRequest& request, absl::Duration length,
                                const std::function<bool(const v1::WatchSpansResponse&)>& take) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, length);
  return impl_->ReadProfiler<v1::WatchSpansResponse>(
      &context, impl_->profiler_stub->WatchSpans(&context, request), {length, ""}, true, take);
}

absl::Status Client::Generate(const v1::GenerateRequest& request, absl::Duration timeout,
                              AnswerCancel* cancel,
                              const std::function<void(const v1::GenerateResponse&)>& on_message) {
  const Deadline deadline = {timeout, "raise it with --timeout-s"};
  grpc::ClientContext context;
  impl_->Prepare(&context, timeout);
  const std::shared_ptr<AnswerCancel::State> state = cancel == nullptr ? nullptr : cancel->state_;
  const auto reader = impl_->stub->Generate(&context, request);
  if (state != nullptr) {
    const std::lock_guard lock(state->mutex);
    state->context = &context;
    state->ask = [this](const std::string& call_id) {
      v1::CancelRequest wish;
      wish.set_call_id(call_id);
      return Cancel(wish).ok();
    };
    if (state->cancelled) context.TryCancel();
  }
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
    if (state != nullptr && message.has_started()) {
      const std::lock_guard lock(state->mutex);
      state->call_id = message.started().call_id();
    }
    on_message(message);
  }
  const grpc::Status status = reader->Finish();
  if (state != nullptr) {
    const std::lock_guard lock(state->mutex);
    state->context = nullptr;
    state->call_id.clear();
  }
  if (!status.ok()) return impl_->Explain(status, context, impl_->orchestrator, deadline);
  return absl::OkStatus();
}

absl::Status Client::Score(const v1::ScoreRequest& request, absl::Duration timeout,
                           const std::function<void(const v1::ScoreResponse&)>& on_message) {
  grpc::ClientContext context;
  impl_->Prepare(&context, timeout);
  const auto reader = impl_->stub->Score(&context, request);
  for (v1::ScoreResponse message; reader->Read(&message);) on_message(message);
  const grpc::Status status = reader->Finish();
  if (status.ok()) return absl::OkStatus();
  return impl_->Explain(status, context, impl_->orchestrator,
                        {timeout, "raise it with --timeout-s"});
}

absl::Status Client::Embed(const v1::EmbedRequest& request, absl::Duration timeout,
                           const std::function<void(const v1::EmbedResponse&)>& on_message) {
  grpc::ClientContext context;
  impl_->Prepare(&context, timeout);
  const auto reader = impl_->stub->Embed(&context, request);
  for (v1::EmbedResponse message; reader->Read(&message);) on_message(message);
  const grpc::Status status = reader->Finish();
  if (status.ok()) return absl::OkStatus();
  return impl_->Explain(status, context, impl_->orchestrator,
                        {timeout, "raise it with --timeout-s"});
}

}  // namespace withy::cli
