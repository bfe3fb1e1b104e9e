#include "orchestrator/http_door.h"

#include <civetweb.h>
#include <spdlog/spdlog.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/ids.h"
#include "base/listen_address.h"
#include "base/status.h"
#include "orchestrator/app_records.h"
#include "orchestrator/conversations.h"
#include "orchestrator/openai_answer.h"
#include "orchestrator/openai_request.h"
#include "orchestrator/peer_watch.h"
#include "rpc/status.h"

namespace withy::orchestrator {
namespace {

// As gRPC's: above every limit of the contract.
constexpr long long kMaxBodyBytes = 4 << 20;
constexpr absl::Duration kStoreTime = absl::Seconds(10);

absl::string_view ReasonOf(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 429:
      return "Too Many Requests";
    case 503:
      return "Service Unavailable";
    default:
      return status < 500 ? "Error" : "Server Error";
  }
}

// Whether the client took it.
bool Send(mg_connection* connection, std::string_view bytes) {
  return mg_write(connection, bytes.data(), bytes.size()) == static_cast<int>(bytes.size());
}

bool Respond(mg_connection* connection, int status, std::string_view body,
             std::string_view headers = "") {
  return Send(connection,
              absl::StrCat("HTTP/1.1 ", status, " ", ReasonOf(status),
                           "\r\nContent-Type: application/json\r\nContent-Length: ", body.size(),
                           "\r\nConnection: close\r\n", ToAbsl(headers), "\r\n", ToAbsl(body)));
}

void RespondError(mg_connection* connection, const absl::Status& status, int http_status = 0) {
  std::string headers;
  if (const std::optional<int64_t> retry_ms = rpc::RetryAfterMs(status)) {
    headers = absl::StrCat("Retry-After: ", (*retry_ms + 999) / 1000,
                           "\r\nretry-after-ms: ", *retry_ms, "\r\n");
  }
  if (absl::IsUnauthenticated(status)) headers += "WWW-Authenticate: Bearer\r\n";
  Respond(connection, http_status != 0 ? http_status : HttpStatusOf(status), OpenAiError(status),
          headers);
}

std::optional<std::string> HeaderOfRequest(const mg_connection* connection, const char* name) {
  const char* value = mg_get_header(connection, name);
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

std::string TokenOf(const mg_connection* connection) {
  const std::optional<std::string> header = HeaderOfRequest(connection, "authorization");
  if (!header) return "";
  constexpr absl::string_view kBearer = "bearer ";
  if (!absl::StartsWithIgnoreCase(*header, kBearer)) return "";
  return std::string(absl::StripAsciiWhitespace(absl::string_view(*header).substr(kBearer.size())));
}

// An answer as server-sent events in chunks of HTTP. The head waits for the first event, so that a
// call that fails before has a status of its own.
class EventStream {
 public:
  explicit EventStream(mg_connection* connection) : connection_(connection) {}

  bool open() const { return open_; }

  bool SendEvent(std::string_view document, std::string_view call_id) {
    std::string bytes;
    if (!std::exchange(open_, true)) {
      bytes = absl::StrCat(
          "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
          "Transfer-Encoding: chunked\r\nConnection: close\r\nx-withy-call-id: ",
          ToAbsl(call_id), "\r\n\r\n");
    }
    const std::string event = absl::StrCat("data: ", ToAbsl(document), "\n\n");
    absl::StrAppend(&bytes, absl::Hex(event.size()), "\r\n", event, "\r\n");
    return Send(connection_, bytes);
  }
  void End() { Send(connection_, "0\r\n\r\n"); }

 private:
  mg_connection* const connection_;
  bool open_ = false;
};

// Around a call that was admitted.
class AdmittedScope {
 public:
  AdmittedScope(Gateway& gateway, uint64_t id) : gateway_(gateway), id_(id) {}
  ~AdmittedScope() { gateway_.Leave(id_, status); }
  AdmittedScope(const AdmittedScope&) = delete;
  AdmittedScope& operator=(const AdmittedScope&) = delete;

  absl::Status status;

 private:
  Gateway& gateway_;
  const uint64_t id_;
};

absl::StatusOr<std::string> ReadBody(mg_connection* connection) {
  std::string body;
  char piece[16 << 10];
  while (true) {
    const int got = mg_read(connection, piece, sizeof piece);
    if (got < 0) return absl::CancelledError("the request's body did not arrive in time");
    if (got == 0) return body;
    body.append(piece, static_cast<size_t>(got));
    if (static_cast<long long>(body.size()) > kMaxBodyBytes) break;
  }
  return absl::OutOfRangeError(
      absl::StrCat("the request's body is longer than ", kMaxBodyBytes, " bytes"));
}

}  // namespace

class HttpDoor::Server {
 public:
  Server(Gateway& gateway, const Clock& clock)
      : gateway_(gateway), clock_(clock), conversations_(gateway.apps()) {}
  ~Server() { Stop(); }

  absl::StatusOr<std::string> Start(const HttpDoorOptions& options);
  void Stop() {
    if (context_ == nullptr) return;
    watch_.CancelAll();
    mg_stop(std::exchange(context_, nullptr));
  }

 private:
  static int OnRequest(mg_connection* connection, void* self) {
    static_cast<Server*>(self)->Handle(connection, *mg_get_request_info(connection));
    return 200;
  }
  // Requests that are not HTTP, or too slow.
  static int OnHttpError(mg_connection* connection, int status, const char* message) {
    RespondError(connection, absl::InvalidArgumentError(message == nullptr ? "" : message), status);
    return 0;
  }
  static int OnLog(const mg_connection* connection, const char* message) {
    spdlog::debug("http: {}", message);
    if (connection == nullptr) last_error_ = message;
    return 1;
  }

  void Handle(mg_connection* connection, const mg_request_info& info);
  absl::Status Models(mg_connection* connection, std::string_view name);
  void Answer(mg_connection* connection, const mg_request_info& info, OpenAiKind kind);
  absl::Status Run(mg_connection* connection, const IncomingCall& incoming, OpenAiCall& call,
                   const std::string& app_id, const std::shared_ptr<CallControl>& control,
                   EventStream& stream);
  absl::Status Generate(mg_connection* connection, const IncomingCall& incoming,
                        const OpenAiCall& call, const v1::GenerateRequest& request,
                        const std::shared_ptr<CallControl>& control, EventStream& stream,
                        std::optional<v1::Message>* answer);
  static int64_t UnixSeconds() { return absl::ToUnixSeconds(absl::Now()); }

  // Of the thread that starts a server: civetweb tells why it does not start in its log only.
  static thread_local std::string last_error_;

  Gateway& gateway_;
  const Clock& clock_;
  Conversations conversations_;
  PeerWatch watch_;
  mg_context* context_ = nullptr;
};

thread_local std::string HttpDoor::Server::last_error_;

absl::StatusOr<std::string> HttpDoor::Server::Start(const HttpDoorOptions& options) {
  const std::string threads = absl::StrCat(options.threads);
  const std::string timeout = absl::StrCat(options.timeout_ms);
  const char* settings[] = {"listening_ports", options.listen.c_str(), "num_threads",
                            threads.c_str(), "request_timeout_ms", timeout.c_str(),
                            // A connection holds a thread for as long as it is open.
                            "enable_keep_alive", "no", "tcp_nodelay", "1", nullptr};
  mg_callbacks callbacks{};
  callbacks.log_message = &OnLog;
  callbacks.http_error = &OnHttpError;
  last_error_.clear();
  context_ = mg_start(&callbacks, this, settings);
  if (context_ == nullptr) {
    return absl::AlreadyExistsError(
        absl::StrCat("orchestrator.http_listen \"", options.listen,
                     "\": ", last_error_.empty() ? "cannot listen" : last_error_,
                     "; set it to a free HOST:PORT, or leave it out for no HTTP"));
  }
  mg_set_request_handler(context_, "/", &OnRequest, this);
  mg_server_port port{};
  mg_get_server_ports(context_, 1, &port);
  return absl::StrCat(options.listen.substr(0, options.listen.rfind(':')), ":", port.port);
}

void HttpDoor::Server::Handle(mg_connection* connection, const mg_request_info& info) {
  const std::string_view method = info.request_method;
  const std::string_view path = info.local_uri == nullptr ? "" : info.local_uri;
  const auto refuse_method = [&](std::string_view wanted) {
    RespondError(connection,
                 absl::InvalidArgumentError(absl::StrCat(ToAbsl(path), " takes ", ToAbsl(wanted),
                                                         ", not ", ToAbsl(method))),
                 405);
  };
  constexpr std::string_view kModels = "/v1/models";
  if (path == "/health") {
    Respond(connection, 200, "{\"status\":\"ok\"}");
  } else if (path == kModels || path.starts_with("/v1/models/")) {
    if (method != "GET") return refuse_method("GET");
    const absl::Status status =
        Models(connection, path.size() > kModels.size() ? path.substr(kModels.size() + 1) : "");
    if (!status.ok()) RespondError(connection, status);
  } else if (path == "/v1/chat/completions" || path == "/v1/completions") {
    if (method != "POST") return refuse_method("POST");
    Answer(connection, info,
           path == "/v1/completions" ? OpenAiKind::kCompletion : OpenAiKind::kChat);
  } else {
    RespondError(connection, absl::NotFoundError(absl::StrCat(
                                 ToAbsl(path),
                                 " is not served: there are /v1/models, /v1/chat/completions, "
                                 "/v1/completions and /health")));
  }
}

absl::Status HttpDoor::Server::Models(mg_connection* connection, std::string_view name) {
  const absl::Time deadline = absl::Now() + kStoreTime;
  WITHY_RETURN_IF_ERROR(gateway_.apps().Authenticate(TokenOf(connection), deadline).status());
  WITHY_ASSIGN_OR_RETURN(const v1::ListModelsResponse models, gateway_.ListModels(deadline));
  if (name.empty()) {
    Respond(connection, 200, OpenAiModels(models, UnixSeconds()));
    return absl::OkStatus();
  }
  for (const v1::ModelDescription& model : models.models()) {
    if (model.name() != name || model.role() == "tlm") continue;
    Respond(connection, 200, OpenAiModel(model, UnixSeconds()));
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("there is no model \"", ToAbsl(name), "\": /v1/models lists those there are"));
}

void HttpDoor::Server::Answer(mg_connection* connection, const mg_request_info& info,
                              OpenAiKind kind) {
  IncomingCall incoming{
      .id = RandomId64(), .arrived_ns = clock_.SteadyNanos(), .token = TokenOf(connection)};
  // Before the body: only apps may send a large one.
  const absl::StatusOr<std::string> app_id =
      gateway_.apps().Authenticate(incoming.token, absl::Now() + kStoreTime);
  if (!app_id.ok()) return RespondError(connection, app_id.status());
  if (info.content_length > kMaxBodyBytes) {
    return RespondError(
        connection,
        absl::InvalidArgumentError(absl::StrCat("the request's body has ", info.content_length,
                                                " bytes: at most ", kMaxBodyBytes, " are read")),
        413);
  }
  const absl::StatusOr<std::string> body = ReadBody(connection);
  if (!body.ok()) {
    return RespondError(connection, body.status(), absl::IsOutOfRange(body.status()) ? 413 : 408);
  }
  absl::StatusOr<OpenAiCall> call = ParseOpenAiCall(
      kind, *body, [&](const char* name) { return HeaderOfRequest(connection, name); });
  if (!call.ok()) return RespondError(connection, call.status());
  if (const absl::Status admitted = gateway_.Arrive(incoming.id); !admitted.ok()) {
    return RespondError(connection, absl::IsResourceExhausted(admitted)
                                        ? rpc::WithRetryAfter(admitted, gateway_.RetryAfterMs())
                                        : admitted);
  }
  AdmittedScope scope(gateway_, incoming.id);
  const auto control = std::make_shared<CallControl>(absl::InfiniteFuture());
  incoming.over = [control] { return !control->Check().ok(); };
  const uint64_t watched =
      watch_.Enter(FindSocket(info.remote_addr, info.remote_port, info.server_port), control);
  EventStream stream(connection);
  scope.status = Run(connection, incoming, *call, *app_id, control, stream);
  watch_.Leave(watched);
  if (scope.status.ok()) return;
  if (!stream.open()) return RespondError(connection, scope.status);
  // An error in mid-answer: the stream ends without [DONE].
  stream.SendEvent(OpenAiError(scope.status), "");
  stream.End();
}

// A chat goes on in a context of its own, if there is one for it.
absl::Status HttpDoor::Server::Run(mg_connection* connection, const IncomingCall& incoming,
                                   OpenAiCall& call, const std::string& app_id,
                                   const std::shared_ptr<CallControl>& control,
                                   EventStream& stream) {
  std::optional<v1::Message> answer;
  const v1::GenerateRequest& asked = call.request;
  const bool keeps = call.kind == OpenAiKind::kChat && asked.context_id().empty() &&
                     asked.request_id().empty() &&
                     gateway_.AnsweredByTarget(asked.model(), absl::Now() + kStoreTime);
  const v1::Messages& messages = asked.prompt().messages();
  for (int tries = 0;; ++tries) {
    std::optional<Conversations::Place> place;
    if (keeps) place = conversations_.Take(app_id, messages, absl::Now() + kStoreTime);
    if (!place) return Generate(connection, incoming, call, asked, control, stream, &answer);
    v1::GenerateRequest request = asked;
    request.set_context_id(place->context_id);
    request.mutable_prompt()->mutable_messages()->mutable_messages()->DeleteSubrange(
        0, static_cast<int>(place->known_messages));
    // What the conversation had before and this call does not repeat holds no longer.
    v1::Messages& sent = *request.mutable_prompt()->mutable_messages();
    if (sent.tools_json().empty()) sent.set_tools_json("[]");
    if (sent.template_arguments_json().empty()) sent.set_template_arguments_json("{}");
    const absl::Status status =
        Generate(connection, incoming, call, request, control, stream, &answer);
    conversations_.Return(*place, messages, answer ? &*answer : nullptr, absl::Now() + kStoreTime);
    // The app deleted it: once more, with a new one.
    if (absl::IsNotFound(status) && !stream.open() && tries == 0) continue;
    return status;
  }
}

absl::Status HttpDoor::Server::Generate(mg_connection* connection, const IncomingCall& incoming,
                                        const OpenAiCall& call, const v1::GenerateRequest& request,
                                        const std::shared_ptr<CallControl>& control,
                                        EventStream& stream, std::optional<v1::Message>* answer) {
  OpenAiAnswer builder(call, UnixSeconds());
  const absl::Status status =
      gateway_.Generate(incoming, request, control, [&](const v1::GenerateResponse& event) {
        const std::vector<std::string> documents = builder.OnEvent(event);
        if (event.has_finished()) *answer = builder.Said();
        if (!call.stream) return true;
        for (const std::string& document : documents) {
          if (!stream.SendEvent(document, builder.started().call_id())) return false;
        }
        return true;
      });
  WITHY_RETURN_IF_ERROR(status);
  if (call.stream) {
    stream.End();
  } else {
    Respond(connection, 200, builder.Document(),
            absl::StrCat("x-withy-call-id: ", builder.started().call_id(), "\r\n"));
  }
  return absl::OkStatus();
}

HttpDoor::HttpDoor() = default;
HttpDoor::~HttpDoor() = default;

void HttpDoor::Stop() { server_->Stop(); }

absl::StatusOr<std::unique_ptr<HttpDoor>> HttpDoor::Start(const HttpDoorOptions& options,
                                                          Gateway& gateway, const Clock& clock) {
  std::unique_ptr<HttpDoor> door(new HttpDoor);
  door->server_ = std::make_unique<Server>(gateway, clock);
  WITHY_ASSIGN_OR_RETURN(door->address_, door->server_->Start(options));
  return door;
}

}  // namespace withy::orchestrator
