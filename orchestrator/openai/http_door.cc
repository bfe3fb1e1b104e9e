#include "orchestrator/openai/http_door.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/call_name.h"
#include "base/contract_limits.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/tcp_listener.h"
#include "http/server.h"
#include "orchestrator/app_records.h"
#include "orchestrator/board/peer_watch.h"
#include "orchestrator/call/validate.h"
#include "orchestrator/openai/api.h"
#include "orchestrator/openai/conversations.h"
#include "orchestrator/openai/echoed_prompt.h"
#include "orchestrator/openai/embeddings/embeddings_answer.h"
#include "orchestrator/openai/embeddings/embeddings_request.h"
#include "orchestrator/openai/http_reply.h"
#include "orchestrator/openai/messages_answer.h"
#include "orchestrator/openai/openai_answer.h"
#include "orchestrator/openai/openai_error.h"
#include "orchestrator/openai/openai_request.h"
#include "orchestrator/openai/rate_limits.h"
#include "orchestrator/openai/web_origins.h"
#include "rpc/status.h"

namespace withy::orchestrator {
namespace {

constexpr absl::Duration kStoreTime = absl::Seconds(10);
// How often health is looked at.
constexpr int64_t kReadyRetryMs = 1000;
constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kEmbeddingsPath = "/v1/embeddings";
constexpr std::string_view kMetricsPath = "/metrics";
constexpr std::string_view kLeanMetricsPath = "/metrics/lean";
constexpr std::string_view kMetricsType = "text/plain; version=0.0.4; charset=utf-8";
constexpr char kListenRemedy[] = "set it to a free HOST:PORT, or leave it out for no HTTP";

// The Messages API's clients send it in a header of its own.
std::string TokenOf(const http::RequestHead& head) {
  const std::string* header = head.Find("authorization");
  constexpr absl::string_view kBearer = "bearer ";
  if (header == nullptr || !absl::StartsWithIgnoreCase(*header, kBearer)) {
    const std::string* key = head.Find("x-api-key");
    return key == nullptr ? "" : *key;
  }
  return std::string(absl::StripAsciiWhitespace(absl::string_view(*header).substr(kBearer.size())));
}

HeaderOf HeadersOf(const http::RequestHead& head) {
  return [&head](const char* name) -> std::optional<std::string> {
    const std::string* value = head.Find(name);
    if (value == nullptr) return std::nullopt;
    return *value;
  };
}

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

}  // namespace

class HttpDoor::Server {
 public:
  Server(const HttpDoorOptions& options, Gateway& gateway, const Clock& clock)
      : options_(options),
        origins_(options.web_origins),
        gateway_(gateway),
        clock_(clock),
        conversations_(gateway.apps()) {}
  ~Server() { Stop(); }

  absl::StatusOr<std::string> Start();
  void Stop() {
    if (server_ == nullptr) return;
    watch_.CancelAll();
    server_->Stop();
  }

 private:
  // A request on its way to its answer.
  struct Request {
    HttpReply& reply;
    const Api& api;
    int64_t arrived_ns = 0;
    std::string app_id;
    std::vector<OpenAiCall> choices;
    std::unique_ptr<AnswerWriter> writer = nullptr;
  };
  // The call of one of its choices.
  struct Call {
    Request& request;
    OpenAiCall& asked;
    IncomingCall incoming;
    std::shared_ptr<CallControl> control;              // shared with those who cancel
    std::optional<v1::Message> answer = std::nullopt;  // once it is finished
    bool told = false;                                 // the gateway has it, and tells of refusals

    size_t choice() const { return static_cast<size_t>(asked.choice); }
  };

  void Handle(http::Exchange& exchange);
  void Health(HttpReply& reply) const;
  Caller CallerOf(const http::Exchange& exchange) const;
  absl::Status Models(const http::Exchange& exchange, HttpReply& reply, std::string_view name);
  absl::Status Metrics(const http::Exchange& exchange, HttpReply& reply);
  // Paths that take GET. Errors: of what they ask.
  absl::Status Get(const http::Exchange& exchange, HttpReply& reply);
  void Embeddings(http::Exchange& exchange, HttpReply& reply);
  absl::Status Embed(const http::Exchange& exchange, HttpReply& reply, const std::string& app_id,
                     const EmbeddingsCall& call);
  void Answer(http::Exchange& exchange, HttpReply& reply, const Api& api);
  absl::Status AnswerChoice(const http::Exchange& exchange, Request& request, OpenAiCall& asked);
  absl::Status CountPrompt(const Request& request);
  absl::Status Run(Call& call);
  absl::Status PreparePrompt(Call& call, const absl::StatusOr<AnsweringModel>& model);
  absl::Status ReadPromptTokens(const AnsweringModel& model, std::vector<OpenAiCall>* choices);
  absl::StatusOr<std::vector<v1::Token>> ScorePrompt(Call& call);
  absl::StatusOr<v1::CountTokensResponse> Count(const std::string& app_id,
                                                const v1::GenerateRequest& asked,
                                                const std::function<bool()>& over);
  absl::Status EchoAlone(Call& call, const AnsweringModel& model);
  absl::Status Generate(Call& call, const v1::GenerateRequest& request);
  // Sends what an event makes of the answer. False: the client did not take it.
  static bool SendEvent(Call& call, const v1::GenerateResponse& event);
  static bool Send(const Request& request, const std::vector<ServerEvent>& events);
  static void SendEnd(const Request& request);
  static int64_t UnixSeconds() { return absl::ToUnixSeconds(absl::Now()); }

  const HttpDoorOptions options_;
  const WebOrigins origins_;
  Gateway& gateway_;
  const Clock& clock_;
  Conversations conversations_;
  PeerWatch watch_;
  std::unique_ptr<http::Server> server_;  // null before Start
};

absl::StatusOr<std::string> HttpDoor::Server::Start() {
  WITHY_ASSIGN_OR_RETURN(UniqueFd listener,
                         ListenTcp(options_.listen, "orchestrator.http_listen", kListenRemedy));
  const std::string address = BoundAddress(listener, options_.listen);
  http::ServerOptions options;
  options.limits.body_bytes = kMaxRequestBytes;
  options.threads = options_.threads;
  options.tls = options_.tls;
  WITHY_ASSIGN_OR_RETURN(
      server_, http::Server::Start(
                   std::move(listener), options,
                   {.answer = [this](http::Exchange& exchange) { Handle(exchange); },
                    .refuse =
                        [this](const http::Failure& failure, const http::RequestHead& head) {
                          const Api* api = FindApi(head.path);
                          const ErrorForm& errors = api == nullptr ? kOpenAiErrors : api->errors;
                          return HttpResponse(
                              head, failure.status, errors.of_http(failure.status, failure.message),
                              absl::StrCat(ToAbsl(kConnectionCloses), origins_.ForAnswer(head)));
                        }}));
  return absl::StrCat(options_.tls == nullptr ? "http://" : "https://", address);
}

void HttpDoor::Server::Handle(http::Exchange& exchange) {
  HttpReply reply(exchange, origins_);
  const http::RequestHead& head = exchange.head();
  const std::string& path = head.path;
  const bool gets = path == "/health" || path == "/ready" || path == kModelsPath ||
                    path.starts_with("/v1/models/") || path == kMetricsPath ||
                    path == kLeanMetricsPath;
  const bool embeddings = path == kEmbeddingsPath;
  const Api* api = FindApi(path);
  if (api != nullptr) reply.TellErrorsBy(api->errors);
  if (!gets && !embeddings && api == nullptr && path != "*") {
    std::string served;
    for (const Api& one : Apis()) absl::StrAppend(&served, ToAbsl(one.path), ", ");
    return reply.RespondError(absl::NotFoundError(
        absl::StrCat(path, " is not served: there are ", served, ToAbsl(kEmbeddingsPath), ", ",
                     ToAbsl(kModelsPath), ", ", ToAbsl(kMetricsPath), ", /health and /ready")));
  }
  const std::string_view methods = gets ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
  const std::string allow = absl::StrCat("Allow: ", ToAbsl(methods), "\r\n");
  if (head.method == "OPTIONS") {
    return reply.Respond(204, "", allow + origins_.ForPreflight(head));
  }
  if (!absl::StrContains(absl::StrCat(" ", ToAbsl(methods), ","),
                         absl::StrCat(" ", head.method, ","))) {
    const ErrorForm& errors = api == nullptr ? kOpenAiErrors : api->errors;
    return reply.Respond(
        405,
        errors.of_http(405, absl::StrCat(path, " takes ", ToAbsl(methods), ", not ", head.method)),
        allow);
  }
  if (gets) {
    if (const absl::Status got = Get(exchange, reply); !got.ok()) reply.RespondError(got);
  } else if (embeddings) {
    Embeddings(exchange, reply);
  } else if (api != nullptr) {
    Answer(exchange, reply, *api);
  }
}

absl::Status HttpDoor::Server::Get(const http::Exchange& exchange, HttpReply& reply) {
  const std::string& path = exchange.head().path;
  if (path == kMetricsPath || path == kLeanMetricsPath) return Metrics(exchange, reply);
  if (!path.starts_with(kModelsPath)) {
    Health(reply);
    return absl::OkStatus();
  }
  return Models(exchange, reply,
                path.size() > kModelsPath.size() ? path.substr(kModelsPath.size() + 1) : "");
}

// Whether a call could be answered now.
void HttpDoor::Server::Health(HttpReply& reply) const {
  const std::string why = gateway_.readiness().Why();
  if (why.empty()) return reply.Respond(200, "{\"status\":\"ok\"}");
  reply.RespondError(rpc::WithRetryAfter(absl::UnavailableError(why), kReadyRetryMs));
}

Caller HttpDoor::Server::CallerOf(const http::Exchange& exchange) const {
  Caller caller{.token = TokenOf(exchange.head())};
  if (options_.tls != nullptr && options_.tls->asks_for_certificates()) {
    caller.certified_app = exchange.CertifiedName();
  }
  return caller;
}

absl::Status HttpDoor::Server::Models(const http::Exchange& exchange, HttpReply& reply,
                                      std::string_view name) {
  const absl::Time deadline = absl::Now() + kStoreTime;
  WITHY_RETURN_IF_ERROR(gateway_.apps().Authenticate(CallerOf(exchange), deadline).status());
  WITHY_ASSIGN_OR_RETURN(const v1::ListModelsResponse models, gateway_.ListModels(deadline));
  if (name.empty()) {
    reply.Respond(200, OpenAiModels(models, UnixSeconds()));
    return absl::OkStatus();
  }
  WITHY_ASSIGN_OR_RETURN(const AnsweringModel found,
                         gateway_.FindModel(std::string(name), deadline));
  const std::string_view role = found.lane == policy::Lane::kTarget ? "target" : "draft";
  for (const v1::ModelDescription& model : models.models()) {
    if (model.role() != role) continue;
    reply.Respond(200, OpenAiModel(model, UnixSeconds()));
    return absl::OkStatus();
  }
  return absl::NotFoundError(
      absl::StrCat("model is \"", ToAbsl(name), "\", which is not served now"));
}

// Metrics name apps, so that only apps may read them here.
absl::Status HttpDoor::Server::Metrics(const http::Exchange& exchange, HttpReply& reply) {
  const absl::Time deadline = absl::Now() + kStoreTime;
  WITHY_RETURN_IF_ERROR(gateway_.apps().Authenticate(CallerOf(exchange), deadline).status());
  const bool lean = exchange.head().path == kLeanMetricsPath;
  WITHY_ASSIGN_OR_RETURN(const std::string text, gateway_.MetricsText(lean, deadline));
  reply.Respond(200, text, "", kMetricsType);
  return absl::OkStatus();
}

void HttpDoor::Server::Embeddings(http::Exchange& exchange, HttpReply& reply) {
  const int64_t arrived_ns = clock_.SteadyNanos();
  const absl::StatusOr<std::string> app_id =
      gateway_.apps().Authenticate(CallerOf(exchange), absl::Now() + kStoreTime);
  if (!app_id.ok()) return reply.RespondError(app_id.status());
  reply.AddHeaders([this, app = gateway_.apps().NameOf(*app_id)] {
    return RateLimitHeaders(gateway_.budgets().LeftOf(app));
  });
  std::string body;
  if (const auto failure = exchange.ReadBody(&body)) return reply.RespondFailure(*failure);
  const absl::StatusOr<EmbeddingsCall> call = ParseEmbeddingsCall(body);
  if (!call.ok()) {
    gateway_.Refused({.method = "Embed", .arrived_ns = arrived_ns, .app_id = *app_id},
                     call.status());
    return reply.RespondError(call.status());
  }
  const absl::Status embedded = Embed(exchange, reply, *app_id, *call);
  if (!embedded.ok()) reply.RespondError(embedded, "input");
}

absl::Status HttpDoor::Server::Embed(const http::Exchange& exchange, HttpReply& reply,
                                     const std::string& app_id, const EmbeddingsCall& call) {
  const absl::StatusOr<AnsweringModel> model =
      gateway_.FindModel(call.request.model(), absl::Now() + kStoreTime);
  absl::Status good = model.status();
  if (good.ok()) good = CheckDimensions(call, model->worker->model());
  if (!good.ok()) {
    gateway_.Refused({.method = "Embed", .app_id = app_id}, good);
    return good;
  }
  EmbeddingsAnswer answer(call.base64);
  const auto control = std::make_shared<CallControl>(absl::InfiniteFuture());
  const uint64_t watched = watch_.Enter(exchange.fd(), control);
  const absl::Status embedded = gateway_.embeddings().Embed(app_id, call.request, *control,
                                                            [&](const v1::EmbedResponse& response) {
                                                              answer.Add(response);
                                                              return true;
                                                            });
  watch_.Leave(watched);
  WITHY_RETURN_IF_ERROR(embedded);
  reply.Respond(200, answer.Document(model->worker->model().name()));
  return absl::OkStatus();
}

void HttpDoor::Server::Answer(http::Exchange& exchange, HttpReply& reply, const Api& api) {
  const int64_t arrived_ns = clock_.SteadyNanos();
  // Before the body: only apps may send a large one, and none in vain.
  const absl::StatusOr<std::string> app_id =
      gateway_.apps().Authenticate(CallerOf(exchange), absl::Now() + kStoreTime);
  if (!app_id.ok()) return reply.RespondError(app_id.status());
  reply.AddHeaders([this, app = gateway_.apps().NameOf(*app_id)] {
    return RateLimitHeaders(gateway_.budgets().LeftOf(app));
  });
  const auto refuse = [&](const absl::Status& status) {
    gateway_.Refused({.method = api.answer == nullptr ? "CountTokens" : "",
                      .arrived_ns = arrived_ns,
                      .app_id = *app_id},
                     status);
    reply.RespondError(status);
  };
  const HeaderOf headers = HeadersOf(exchange.head());
  if (const absl::Status good = CheckOpenAiHeaders(headers); !good.ok()) return refuse(good);
  std::string body;
  if (const auto failure = exchange.ReadBody(&body)) return reply.RespondFailure(*failure);
  const absl::StatusOr<OpenAiCall> asked = api.read(body, headers);
  if (!asked.ok()) return refuse(asked.status());
  Request request{.reply = reply,
                  .api = api,
                  .arrived_ns = arrived_ns,
                  .app_id = *app_id,
                  .choices = ChoicesOf(*asked)};
  absl::Status status;
  if (api.answer == nullptr) {
    status = CountPrompt(request);
  } else {
    request.writer = api.answer(request.choices, UnixSeconds());
    for (OpenAiCall& choice : request.choices) {
      status = AnswerChoice(exchange, request, choice);
      if (!status.ok()) break;
    }
  }
  if (!status.ok()) {
    if (!reply.events_begun()) return reply.RespondError(status, api.prompt_field);
    Send(request, request.writer->Fail(status));
    return reply.EndEvents();
  }
  if (request.writer != nullptr) SendEnd(request);
}

absl::Status HttpDoor::Server::AnswerChoice(const http::Exchange& exchange, Request& request,
                                            OpenAiCall& asked) {
  // The others begin when those before them have ended.
  const int64_t arrived_ns = asked.choice == 0 ? request.arrived_ns : clock_.SteadyNanos();
  IncomingCall incoming{.id = RandomId64(), .arrived_ns = arrived_ns, .caller = CallerOf(exchange)};
  WITHY_RETURN_IF_ERROR(gateway_.Arrive(incoming));
  AdmittedScope scope(gateway_, incoming.id);
  const auto control = std::make_shared<CallControl>(absl::InfiniteFuture());
  incoming.over = [control] { return !control->Check().ok(); };
  Call call{
      .request = request, .asked = asked, .incoming = std::move(incoming), .control = control};
  const uint64_t watched = watch_.Enter(exchange.fd(), control);
  scope.status = Run(call);
  if (!call.told) {
    gateway_.Refused({.id = call.incoming.id,
                      .arrived_ns = arrived_ns,
                      .app_id = request.app_id,
                      .request_id = asked.request.request_id()},
                     scope.status);
  }
  watch_.Leave(watched);
  return scope.status;
}

absl::StatusOr<v1::CountTokensResponse> HttpDoor::Server::Count(const std::string& app_id,
                                                                const v1::GenerateRequest& asked,
                                                                const std::function<bool()>& over) {
  v1::CountTokensRequest count;
  *count.mutable_prompt() = asked.prompt();
  count.set_model(asked.model());
  return gateway_.CountTokens(app_id, count, absl::Now() + kStoreTime, over);
}

absl::Status HttpDoor::Server::CountPrompt(const Request& request) {
  const v1::GenerateRequest& asked = request.choices.front().request;
  if (!asked.context_id().empty()) {
    return absl::InvalidArgumentError(
        "x-withy-context is set: what a context holds is not counted; leave it out");
  }
  WITHY_ASSIGN_OR_RETURN(const v1::CountTokensResponse counted,
                         Count(request.app_id, asked, [] { return false; }));
  request.reply.Respond(200, MessagesTokens(counted.tokens()));
  return absl::OkStatus();
}

// The text of all prompts that are tokens, so that a wrong token of a later one is told before the
// first one is answered.
absl::Status HttpDoor::Server::ReadPromptTokens(const AnsweringModel& model,
                                                std::vector<OpenAiCall>* choices) {
  for (OpenAiCall& choice : *choices) {
    const std::vector<int32_t> tokens = std::exchange(choice.prompt_tokens, {});
    if (tokens.empty()) continue;
    WITHY_ASSIGN_OR_RETURN(*choice.request.mutable_prompt()->mutable_text(),
                           gateway_.counter().TextOf(*model.worker, tokens));
  }
  return absl::OkStatus();
}

absl::Status HttpDoor::Server::PreparePrompt(Call& call,
                                             const absl::StatusOr<AnsweringModel>& model) {
  v1::GenerateRequest& request = call.asked.request;
  if (model.ok()) FitToModel(model->worker->model(), &request);
  // A worker that is away may be back in time for a call that does not depend on it yet.
  if (call.asked.echo || !call.asked.prompt_tokens.empty()) {
    WITHY_RETURN_IF_ERROR(model.status());
  }
  if (!call.asked.prompt_tokens.empty()) {
    WITHY_RETURN_IF_ERROR(ReadPromptTokens(*model, &call.request.choices));
  }
  WITHY_RETURN_IF_ERROR(ValidateGenerate(request));
  if (call.asked.echo && request.limits().has_logprobs()) {
    WITHY_ASSIGN_OR_RETURN(call.asked.echoed, ScorePrompt(call));
  }
  return absl::OkStatus();
}

// Calls tell log-probabilities of their answers alone; those of the prompt are a score.
absl::StatusOr<std::vector<v1::Token>> HttpDoor::Server::ScorePrompt(Call& call) {
  call.told = true;
  const v1::GenerateRequest& asked = call.asked.request;
  v1::ScoreRequest request;
  request.set_text(asked.prompt().text());
  request.set_model(asked.model());
  request.set_logprobs(asked.limits().logprobs());
  request.mutable_setting()->set_model_level_percent(asked.model_level_percent());
  WITHY_ASSIGN_OR_RETURN(
      std::vector<v1::Token> scored,
      gateway_.scores().Tokens(call.incoming.caller, std::move(request), *call.control));
  return EchoedTokens(asked.prompt().text(), std::move(scored));
}

// A completion that asks for no token: nothing is generated.
absl::Status HttpDoor::Server::EchoAlone(Call& call, const AnsweringModel& model) {
  call.told = true;
  WITHY_ASSIGN_OR_RETURN(const v1::CountTokensResponse counted,
                         Count(call.request.app_id, call.asked.request, call.incoming.over));
  v1::GenerateResponse event;
  event.mutable_started()->set_call_id(CallName(call.incoming.id));
  event.mutable_started()->set_model(model.worker->model().name());
  if (!SendEvent(call, event)) return absl::CancelledError("the client went away");
  event.mutable_finished()->set_reason(v1::FINISH_REASON_MAX_TOKENS);
  event.mutable_finished()->mutable_usage()->set_prompt_tokens(counted.tokens());
  if (!SendEvent(call, event)) return absl::CancelledError("the client went away");
  return absl::OkStatus();
}

// A chat goes on in a context of its own, if there is one for it.
absl::Status HttpDoor::Server::Run(Call& call) {
  const absl::StatusOr<AnsweringModel> model =
      gateway_.FindModel(call.asked.request.model(), absl::Now() + kStoreTime);
  WITHY_RETURN_IF_ERROR(PreparePrompt(call, model));
  if (call.asked.only_echo) return EchoAlone(call, *model);
  const v1::GenerateRequest& asked = call.asked.request;
  const v1::Messages& messages = asked.prompt().messages();
  const bool keeps = call.asked.kind == OpenAiKind::kChat && asked.context_id().empty() &&
                     asked.request_id().empty() && model.ok() &&
                     model->lane == policy::Lane::kTarget && !ContinuesAnswer(messages) &&
                     asked.truncation() != v1::TRUNCATION_OLDEST;
  for (int tries = 0;; ++tries) {
    std::optional<Conversations::Place> place;
    if (keeps) place = conversations_.Take(call.request.app_id, messages, absl::Now() + kStoreTime);
    // Clients repeat answers without thoughts.
    call.incoming.record_without_thought = place.has_value();
    if (!place) return Generate(call, asked);
    v1::GenerateRequest request = asked;
    request.set_context_id(place->context_id);
    // What is kept does not change what the model sees.
    request.set_truncation(v1::TRUNCATION_NONE);
    request.mutable_prompt()->mutable_messages()->mutable_messages()->DeleteSubrange(
        0, static_cast<int>(place->known_messages));
    // What the conversation had before and this call does not repeat holds no longer.
    v1::Messages& sent = *request.mutable_prompt()->mutable_messages();
    if (sent.tools_json().empty()) sent.set_tools_json("[]");
    if (sent.template_arguments_json().empty()) sent.set_template_arguments_json("{}");
    const absl::Status status = Generate(call, request);
    // Of several answers the client continues one: the first one's context is kept.
    const bool kept = call.answer.has_value() && call.asked.sample == 0;
    conversations_.Return(*place, messages, kept ? &*call.answer : nullptr,
                          absl::Now() + kStoreTime);
    // The app deleted it: once more, with a new one.
    if (absl::IsNotFound(status) && !call.request.reply.events_begun() && tries == 0) continue;
    return status;
  }
}

bool HttpDoor::Server::Send(const Request& request, const std::vector<ServerEvent>& events) {
  return std::all_of(events.begin(), events.end(), [&](const ServerEvent& event) {
    return request.reply.SendEvent(event, request.writer->CallId());
  });
}

bool HttpDoor::Server::SendEvent(Call& call, const v1::GenerateResponse& event) {
  AnswerWriter& writer = *call.request.writer;
  const std::vector<ServerEvent> events = writer.OnEvent(call.choice(), event);
  if (event.has_finished()) call.answer = writer.Said(call.choice());
  return !call.asked.stream || Send(call.request, events);
}

void HttpDoor::Server::SendEnd(const Request& request) {
  if (request.choices.front().stream) {
    Send(request, request.writer->End());
    return request.reply.EndEvents();
  }
  request.reply.Respond(200, request.writer->Document(),
                        absl::StrCat("x-withy-call-id: ", request.writer->CallId(), "\r\n"));
}

absl::Status HttpDoor::Server::Generate(Call& call, const v1::GenerateRequest& request) {
  call.told = true;
  return gateway_.Generate(
      call.incoming, request, call.control,
      [&](const v1::GenerateResponse& event) { return SendEvent(call, event); });
}

HttpDoor::HttpDoor() = default;
HttpDoor::~HttpDoor() = default;

void HttpDoor::Stop() { server_->Stop(); }

absl::StatusOr<std::unique_ptr<HttpDoor>> HttpDoor::Start(const HttpDoorOptions& options,
                                                          Gateway& gateway, const Clock& clock) {
  std::unique_ptr<HttpDoor> door(new HttpDoor);
  door->server_ = std::make_unique<Server>(options, gateway, clock);
  WITHY_ASSIGN_OR_RETURN(door->address_, door->server_->Start());
  return door;
}

}  // namespace withy::orchestrator
