#include "orchestrator/board/backends.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"
#include "orchestrator/board/report_sender.h"
#include "rpc/channel.h"
#include "rpc/error_reason.h"
#include "rpc/stand_in.h"
#include "rpc/status.h"
#include "withy/v1/context_store.grpc.pb.h"
#include "withy/v1/draft_worker.grpc.pb.h"
#include "withy/v1/model_worker.grpc.pb.h"
#include "withy/v1/profiler.grpc.pb.h"

namespace withy::orchestrator {
namespace {

struct Peer {
  std::string process;
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::atomic<bool> waited_for{true};  // while it is not there
};

void Open(std::string process, const std::string& address, Peer* peer) {
  peer->process = std::move(process);
  peer->address = address;
  peer->channel = rpc::Connect(address);
}

absl::Status Away(const Peer& peer, std::string_view why) {
  std::string binary = peer.process;
  std::replace(binary.begin(), binary.end(), '_', '-');
  return rpc::WithRetryAfter(
      absl::UnavailableError(
          absl::StrCat(peer.process, " at ", peer.address, " ", ToAbsl(why),
                       ": retry; if it lasts, see `withyctl status` and start withy-", binary)),
      1000);
}

// The status of a finished call in our words. `given` is the deadline it ran under, `callers` that
// of the caller.
absl::Status Translate(const Peer& peer, const grpc::ClientContext& context,
                       const grpc::Status& status, absl::Time given, absl::Time callers) {
  if (status.ok()) return absl::OkStatus();
  const auto& trailing = context.GetServerTrailingMetadata();
  // It is there, and says itself what it waits for.
  const bool waits = trailing.find(rpc::kStandInKey) != trailing.end();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && !waits) {
    return Away(peer, absl::StrCat("is not available (", status.error_message(), ")"));
  }
  if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED && given < callers) {
    return Away(peer, "does not answer");
  }
  absl::Status translated = rpc::FromGrpc(status);
  if (waits) {
    translated = WithReason(Annotate(translated, peer.process), rpc::ReasonOf(translated));
  }
  const auto hint = trailing.find(rpc::kRetryAfterKey);
  int64_t retry_ms = 0;
  if (hint != trailing.end() &&
      absl::SimpleAtoi(absl::string_view(hint->second.data(), hint->second.size()), &retry_ms)) {
    translated = rpc::WithRetryAfter(translated, retry_ms);
  }
  return translated;
}

// How often a call that waits for a worker looks whether its own caller still does.
constexpr absl::Duration kOverPoll = absl::Milliseconds(20);

struct CallOptions {
  absl::Time deadline;
  absl::Duration limit = kShortCall;
  bool wait = true;
};

// A call that does not wait for its process does not wait long for an answer either.
CallOptions OptionsOf(absl::Time deadline, bool wait) {
  return {deadline, wait ? kShortCall : kStatusCall, wait};
}

// One unary call: `method` is a pointer to the stub's blocking method.
template <typename Response, typename Stub, typename Request>
absl::StatusOr<Response> Unary(const Peer& peer, Stub& stub,
                               grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                            Response*),
                               const Request& request, const CallOptions& options) {
  grpc::ClientContext context;
  const absl::Time given = std::min(options.deadline, absl::Now() + options.limit);
  context.set_deadline(absl::ToChronoTime(given));
  context.set_wait_for_ready(options.wait && peer.waited_for);
  Response response;
  const grpc::Status status = (stub.*method)(&context, request, &response);
  WITHY_RETURN_IF_ERROR(Translate(peer, context, status, given, options.deadline));
  return response;
}

// Reads a stream of events to its end.
template <typename Stub>
absl::Status RunOn(const Peer& peer, Stub& stub, const v1::RunRequest& request,
                   CallControl& control, const std::function<bool(v1::RunResponse&)>& on_event) {
  // Shared with the cancellation hook, which may run late.
  const auto context = std::make_shared<grpc::ClientContext>();
  if (control.deadline() != absl::InfiniteFuture())
    context->set_deadline(absl::ToChronoTime(control.deadline()));
  const auto reader = stub.Run(context.get(), request);
  control.SetHook([context] { context->TryCancel(); });
  // A call that it has heard of and does not know any more has just been answered.
  const auto heard = std::make_shared<std::atomic<bool>>(false);
  control.SetStop([&stub, heard, call_id = request.call_id()] {
    grpc::ClientContext told;
    told.set_deadline(absl::ToChronoTime(absl::Now() + kShortCall));
    v1::CancelRunRequest cancel;
    cancel.set_call_id(call_id);
    v1::CancelRunResponse response;
    return stub.Cancel(&told, cancel, &response).ok() || *heard;
  });
  v1::RunResponse event;
  bool stopped = false;
  while (reader->Read(&event)) {
    *heard = true;
    if (stopped || on_event(event)) continue;
    stopped = true;
    context->TryCancel();
  }
  const grpc::Status status = reader->Finish();
  control.SetHook(nullptr);
  control.SetStop(nullptr);
  // Neither we nor the caller cancelled: the worker is shutting down.
  if (status.error_code() == grpc::StatusCode::CANCELLED && !stopped && !control.cancelled()) {
    return Away(peer, "stopped while it answered");
  }
  return Translate(peer, *context, status, control.deadline(), control.deadline());
}

// Reads what `method` streams of texts to its end.
template <typename Request, typename Response>
absl::Status ReadTexts(const Peer& peer, v1::ModelWorker::Stub& stub,
                       std::unique_ptr<grpc::ClientReader<Response>> (
                           v1::ModelWorker::Stub::*method)(grpc::ClientContext*, const Request&),
                       const Request& request, CallControl& control,
                       const std::function<bool(Response&)>& on_event) {
  const auto context = std::make_shared<grpc::ClientContext>();
  if (control.deadline() != absl::InfiniteFuture())
    context->set_deadline(absl::ToChronoTime(control.deadline()));
  const auto reader = (stub.*method)(context.get(), request);
  control.SetHook([context] { context->TryCancel(); });
  bool stopped = false;
  for (Response event; reader->Read(&event);) {
    if (stopped || on_event(event)) continue;
    stopped = true;
    context->TryCancel();
  }
  const grpc::Status status = reader->Finish();
  control.SetHook(nullptr);
  return Translate(peer, *context, status, control.deadline(), control.deadline());
}

// What the agent does not take soon is lost.
void SendReport(v1::Profiler::Stub& stub, v1::CallReport report, std::function<void()> done) {
  constexpr absl::Duration kPatience = absl::Seconds(2);
  struct Sending {
    grpc::ClientContext context;
    v1::ReportCallRequest request;
    v1::ReportCallResponse response;
  };
  const auto sending = std::make_shared<Sending>();
  rpc::SetTimeout(&sending->context, kPatience);
  *sending->request.mutable_report() = std::move(report);
  stub.async()->ReportCall(
      &sending->context, &sending->request, &sending->response,
      [sending, done = std::move(done)](const grpc::Status& /*lost*/) { done(); });
}

}  // namespace

struct Backends::Clients {
  Peer store, target, draft, profiler;
  std::unique_ptr<v1::ContextStore::Stub> store_stub;
  std::unique_ptr<v1::ModelWorker::Stub> target_stub;
  std::unique_ptr<v1::DraftWorker::Stub> draft_stub;
  std::shared_ptr<v1::Profiler::Stub> profiler_stub;  // with `reports`
  std::shared_ptr<ReportSender> reports;  // shared with callbacks, which may come when this is gone

  const Peer& Of(policy::Lane lane) const { return lane == policy::Lane::kTarget ? target : draft; }
};

Backends::Backends(const v1::Config& config) : clients_(std::make_unique<Clients>()) {
  Clients& c = *clients_;
  Open("context_store", config.store().listen(), &c.store);
  Open("model_worker", config.model().listen(), &c.target);
  Open("draft_worker", config.draft().listen(), &c.draft);
  Open("profiler_agent", config.profiler().listen(), &c.profiler);
  c.store_stub = v1::ContextStore::NewStub(c.store.channel);
  c.target_stub = v1::ModelWorker::NewStub(c.target.channel);
  c.draft_stub = v1::DraftWorker::NewStub(c.draft.channel);
  c.profiler_stub = v1::Profiler::NewStub(c.profiler.channel);
  c.reports = std::make_shared<ReportSender>(
      [stub = c.profiler_stub](v1::CallReport report, std::function<void()> done) {
        SendReport(*stub, std::move(report), std::move(done));
      });
}

Backends::~Backends() = default;

Backends::Result<v1::BindAppResponse> Backends::BindApp(const v1::StoreBindAppRequest& request,
                                                        absl::Time deadline) {
  return Unary(clients_->store, *clients_->store_stub, &v1::ContextStore::Stub::BindApp, request,
               {deadline});
}

Backends::Result<v1::AuthenticateAppResponse> Backends::AuthenticateApp(
    const v1::AuthenticateAppRequest& request, absl::Time deadline) {
  return Unary(clients_->store, *clients_->store_stub, &v1::ContextStore::Stub::AuthenticateApp,
               request, {deadline});
}

Backends::Result<v1::CreateContextResponse> Backends::CreateContext(
    const v1::StoreCreateContextRequest& request, absl::Time deadline) {
  return Unary(clients_->store, *clients_->store_stub, &v1::ContextStore::Stub::CreateContext,
               request, {deadline});
}

Backends::Result<v1::GetContextResponse> Backends::GetContext(
    const v1::StoreGetContextRequest& request, absl::Time deadline) {
  return Unary(clients_->store, *clients_->store_stub, &v1::ContextStore::Stub::GetContext, request,
               {deadline});
}

Backends::Result<v1::ListContextsResponse> Backends::ListContexts(
    const v1::StoreListContextsRequest& request, absl::Time deadline) {
  return Unary(clients_->store, *clients_->store_stub, &v1::ContextStore::Stub::ListContexts,
               request, {deadline});
}

Backends::Result<v1::DeleteContextResponse> Backends::DeleteContext(
    const v1::StoreDeleteContextRequest& request, absl::Time deadline) {
  return Unary(clients_->store, *clients_->store_stub, &v1::ContextStore::Stub::DeleteContext,
               request, {deadline});
}

Backends::Result<v1::FindResultResponse> Backends::FindResult(const v1::FindResultRequest& request,
                                                              absl::Time deadline) {
  return Unary(clients_->store, *clients_->store_stub, &v1::ContextStore::Stub::FindResult, request,
               {deadline});
}

Backends::Result<v1::GetStoreInfoResponse> Backends::StoreInfo(absl::Time deadline) {
  return Unary(clients_->store, *clients_->store_stub, &v1::ContextStore::Stub::GetStoreInfo,
               v1::GetStoreInfoRequest(), {deadline, kStatusCall, false});
}

Backends::Result<v1::ForgetContextResponse> Backends::ForgetContext(
    const v1::ForgetContextRequest& request, absl::Time deadline) {
  return Unary(clients_->target, *clients_->target_stub, &v1::ModelWorker::Stub::ForgetContext,
               request, {deadline, kShortCall, false});
}

Backends::Result<v1::TokenizeResponse> Backends::Tokenize(policy::Lane lane,
                                                          const v1::TokenizeRequest& request,
                                                          absl::Time deadline,
                                                          const engine::CancelCheck& over) {
  const bool target = lane == policy::Lane::kTarget;
  if (!over && target) {
    return Unary(clients_->target, *clients_->target_stub, &v1::ModelWorker::Stub::Tokenize,
                 request, {deadline});
  }
  if (!over) {
    return Unary(clients_->draft, *clients_->draft_stub, &v1::DraftWorker::Stub::Tokenize, request,
                 {deadline});
  }
  const CallOptions options{deadline};
  grpc::ClientContext context;
  const absl::Time given = std::min(options.deadline, absl::Now() + options.limit);
  context.set_deadline(absl::ToChronoTime(given));
  context.set_wait_for_ready(options.wait && clients_->Of(lane).waited_for);
  v1::TokenizeResponse response;
  grpc::Status status;
  absl::Notification done;
  const auto on_done = [&](grpc::Status ended) {
    status = std::move(ended);
    done.Notify();
  };
  if (target) {
    clients_->target_stub->async()->Tokenize(&context, &request, &response, on_done);
  } else {
    clients_->draft_stub->async()->Tokenize(&context, &request, &response, on_done);
  }
  bool cancelled = false;
  while (!done.WaitForNotificationWithTimeout(kOverPoll)) {
    if (cancelled || !over()) continue;
    context.TryCancel();
    cancelled = true;
  }
  if (cancelled && !status.ok()) return absl::CancelledError("the caller went away");
  WITHY_RETURN_IF_ERROR(Translate(clients_->Of(lane), context, status, given, options.deadline));
  return response;
}

Backends::Result<v1::GetWorkerInfoResponse> Backends::WorkerInfo(policy::Lane lane,
                                                                 absl::Time deadline, bool wait) {
  const CallOptions options = OptionsOf(deadline, wait);
  const v1::GetWorkerInfoRequest request;
  if (lane == policy::Lane::kTarget) {
    return Unary(clients_->target, *clients_->target_stub, &v1::ModelWorker::Stub::GetWorkerInfo,
                 request, options);
  }
  return Unary(clients_->draft, *clients_->draft_stub, &v1::DraftWorker::Stub::GetWorkerInfo,
               request, options);
}

absl::Status Backends::Run(policy::Lane lane, const v1::RunRequest& request, CallControl& control,
                           const std::function<bool(v1::RunResponse&)>& on_event) {
  if (lane == policy::Lane::kTarget)
    return RunOn(clients_->target, *clients_->target_stub, request, control, on_event);
  return RunOn(clients_->draft, *clients_->draft_stub, request, control, on_event);
}

absl::Status Backends::Score(const v1::ScoreRequest& request, CallControl& control,
                             const std::function<bool(v1::ScoreResponse&)>& on_event) {
  return ReadTexts(clients_->target, *clients_->target_stub, &v1::ModelWorker::Stub::Score, request,
                   control, on_event);
}

absl::Status Backends::Embed(const v1::EmbedRequest& request, CallControl& control,
                             const std::function<bool(v1::EmbedResponse&)>& on_event) {
  return ReadTexts(clients_->target, *clients_->target_stub, &v1::ModelWorker::Stub::Embed, request,
                   control, on_event);
}

bool Backends::WaitForWorker(policy::Lane lane, absl::Time deadline, CallControl& control) {
  const Peer& peer = clients_->Of(lane);
  const absl::Time until = std::min(deadline, control.deadline());
  while (peer.waited_for && absl::Now() < until && !control.cancelled()) {
    const absl::Time slice = std::min(until, absl::Now() + absl::Milliseconds(100));
    if (peer.channel->WaitForConnected(absl::ToChronoTime(slice))) return true;
  }
  return false;
}

void Backends::ReportCall(v1::CallReport report) { clients_->reports->Add(std::move(report)); }

Backends::Result<v1::GetProfilerInfoResponse> Backends::ProfilerInfo(absl::Time deadline) {
  return Unary(clients_->profiler, *clients_->profiler_stub, &v1::Profiler::Stub::GetProfilerInfo,
               v1::GetProfilerInfoRequest(), {deadline, kStatusCall, false});
}

Backends::Result<v1::GetMetricsResponse> Backends::Metrics(const v1::GetMetricsRequest& request,
                                                           absl::Time deadline) {
  return Unary(clients_->profiler, *clients_->profiler_stub, &v1::Profiler::Stub::GetMetrics,
               request, {deadline, kShortCall, false});
}

void Backends::SetPatience(std::string_view process, bool waits) {
  for (Peer* peer : {&clients_->store, &clients_->target, &clients_->draft}) {
    if (peer->process == process) peer->waited_for = waits;
  }
}

std::string Backends::Health(std::string_view process, absl::Time deadline) {
  const std::pair<std::string_view, const Peer*> peers[] = {
      {"context_store", &clients_->store},
      {"model_worker", &clients_->target},
      {"draft_worker", &clients_->draft},
      {"profiler_agent", &clients_->profiler}};
  for (const auto& [name, peer] : peers) {
    if (name != process) continue;
    // grpc.health.v1.Health.Check by hand: the request for the whole server is empty, the answer is
    // one enum, 1 = serving.
    grpc::GenericStub stub(peer->channel);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(std::min(deadline, absl::Now() + kStatusCall)));
    const grpc::Slice empty;
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    std::promise<grpc::Status> done;
    stub.UnaryCall(&context, "/grpc.health.v1.Health/Check", grpc::StubOptions(), &request,
                   &response, [&done](grpc::Status status) { done.set_value(std::move(status)); });
    const grpc::Status status = done.get_future().get();
    if (!status.ok())
      return status.error_code() == grpc::StatusCode::NOT_FOUND ? "not serving" : "unreachable";
    grpc::Slice bytes;
    if (!response.DumpToSingleSlice(&bytes).ok()) return "not serving";
    return bytes.size() == 2 && bytes.begin()[0] == 0x08 && bytes.begin()[1] == 0x01
               ? "serving"
               : "not serving";
  }
  return "unreachable";
}

std::string_view ProcessOf(policy::Lane lane) {
  return lane == policy::Lane::kTarget ? "model_worker" : "draft_worker";
}

}  // namespace withy::orchestrator
