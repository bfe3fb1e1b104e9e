#include "orchestrator/service.h"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/contract_limits.h"
#include "base/ids.h"
#include "base/status.h"
#include "policy/constants.h"
#include "rpc/error_reason.h"
#include "rpc/status.h"
#include "rpc/tls_credentials.h"
#include "rpc/write_queue.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::orchestrator {
namespace {

// How long an answer waits for an app that takes nothing of it, which holds one of the places of
// running calls meanwhile.
constexpr absl::Duration kReaderPatience = absl::Nanoseconds(kStalledReaderNs);

using grpc::ByteBuffer;
using grpc::CallbackServerContext;

std::string BearerToken(const CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find("authorization");
  if (it == metadata.end()) return "";
  const absl::string_view value(it->second.data(), it->second.size());
  constexpr absl::string_view kScheme = "bearer ";
  if (!absl::StartsWithIgnoreCase(value, kScheme)) return "";
  return std::string(value.substr(kScheme.size()));
}

bool OnUnixSocket(const CallbackServerContext& context) {
  return context.peer().starts_with("unix");
}

absl::Time DeadlineOf(const CallbackServerContext& context) {
  const auto deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture()
                                                                  : absl::FromChrono(deadline);
}

template <typename Message>
absl::Status Parse(const ByteBuffer& bytes, Message* message) {
  grpc::Slice slice;
  if (bytes.Length() == 0) return absl::OkStatus();
  if (!bytes.DumpToSingleSlice(&slice).ok() ||
      !message->ParseFromArray(slice.begin(), static_cast<int>(slice.size()))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the ", message->GetDescriptor()->name(),
        " cannot be read: a text field is not valid UTF-8, or the message is damaged"));
  }
  return absl::OkStatus();
}

// Always a valid buffer: an empty message is one slice of no bytes. gRPC aborts the process
// (INVALID_MESSAGE) where it is given a ByteBuffer that was made without slices.
template <typename Message>
ByteBuffer Serialize(const Message& message) {
  grpc::Slice slice(message.ByteSizeLong());
  message.SerializeWithCachedSizesToArray(const_cast<uint8_t*>(slice.begin()));
  return ByteBuffer(&slice, 1);
}

RefusedCall RefusedBefore(const IncomingCall& call) {
  return {.id = call.id, .arrived_ns = call.arrived_ns, .caller = call.caller};
}

// The part of the gateway that a method belongs to, and the request that it takes.
template <typename Method>
struct MethodOf;
template <typename Part, typename Response, typename Request, typename... More>
struct MethodOf<Response (Part::*)(const std::string&, const Request&, absl::Time, More...)> {
  using Type = Part;
  using Result = Response;
  using RequestType = Request;
};

template <typename Part>
Part& PartOf(Gateway& gateway) {
  if constexpr (std::is_same_v<Part, AppRecords>) {
    return gateway.apps();
  } else {
    return gateway;
  }
}

using v1::LlmService;
template <typename Base>
using RawTexts = LlmService::WithRawCallbackMethod_BindApp<
    LlmService::WithRawCallbackMethod_CreateContext<LlmService::WithRawCallbackMethod_Cancel<
        LlmService::WithRawCallbackMethod_Generate<LlmService::WithRawCallbackMethod_Plan<
            LlmService::WithRawCallbackMethod_CountTokens<LlmService::WithRawCallbackMethod_Score<
                LlmService::WithRawCallbackMethod_GetContext<
                    LlmService::WithRawCallbackMethod_ListContexts<
                        LlmService::WithRawCallbackMethod_DeleteContext<
                            LlmService::WithRawCallbackMethod_ListModels<
                                LlmService::WithRawCallbackMethod_GetStatus<
                                    LlmService::WithRawCallbackMethod_Embed<Base>>>>>>>>>>>>>;

class LlmServiceImpl final : public RawTexts<LlmService::Service> {
 public:
  LlmServiceImpl(Gateway& gateway, const ServiceThreads& threads, const Clock& clock,
                 rpc::OpenStreams& answers, const ServiceAccess& access)
      : gateway_(gateway),
        threads_(threads),
        clock_(clock),
        answers_(answers),
        access_(access),
        scores_(/*threads=*/1, /*queue_limit=*/1, clock),
        embeds_(TextEmbeddings::kMostCalls, TextEmbeddings::kMostCalls, clock) {}

  grpc::ServerUnaryReactor* BindApp(CallbackServerContext* context, const ByteBuffer* request,
                                    ByteBuffer* response) override {
    return Open<v1::BindAppRequest>(
        context, request, response,
        [this, context](const auto& in,
                        absl::Time deadline) -> absl::StatusOr<v1::BindAppResponse> {
          if (!access_.bind_app_over_tcp && !OnUnixSocket(*context)) {
            return absl::PermissionDeniedError(
                "BindApp is served on the unix socket only: call it on the board itself, or set "
                "orchestrator.bind_app_over_tcp");
          }
          return gateway_.apps().BindApp(in, BearerToken(*context), deadline);
        });
  }

  grpc::ServerUnaryReactor* CreateContext(CallbackServerContext* context, const ByteBuffer* request,
                                          ByteBuffer* response) override {
    return ForApp<&AppRecords::CreateContext>(context, request, response);
  }
  grpc::ServerUnaryReactor* GetContext(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return ForApp<&AppRecords::GetContext>(context, request, response);
  }
  grpc::ServerUnaryReactor* ListContexts(CallbackServerContext* context, const ByteBuffer* request,
                                         ByteBuffer* response) override {
    return ForApp<&AppRecords::ListContexts>(context, request, response);
  }
  grpc::ServerUnaryReactor* DeleteContext(CallbackServerContext* context, const ByteBuffer* request,
                                          ByteBuffer* response) override {
    return ForApp<&AppRecords::DeleteContext>(context, request, response);
  }
  grpc::ServerUnaryReactor* Cancel(CallbackServerContext* context, const ByteBuffer* request,
                                   ByteBuffer* response) override {
    return ForApp<&Gateway::Cancel>(context, request, response);
  }
  grpc::ServerUnaryReactor* CountTokens(CallbackServerContext* context, const ByteBuffer* request,
                                        ByteBuffer* response) override {
    return ForWaitingApp<&Gateway::CountTokens>("CountTokens", context, request, response);
  }
  grpc::ServerUnaryReactor* Plan(CallbackServerContext* context, const ByteBuffer* request,
                                 ByteBuffer* response) override {
    return ForWaitingApp<&Gateway::Plan>("Plan", context, request, response);
  }

  grpc::ServerUnaryReactor* ListModels(CallbackServerContext* context, const ByteBuffer* request,
                                       ByteBuffer* response) override {
    return Open<v1::ListModelsRequest>(
        context, request, response,
        [this, context](const auto&,
                        absl::Time deadline) -> absl::StatusOr<v1::ListModelsResponse> {
          WITHY_RETURN_IF_ERROR(
              gateway_.apps().Authenticate(CallerOf(*context), deadline).status());
          return gateway_.ListModels(deadline);
        });
  }

  grpc::ServerUnaryReactor* GetStatus(CallbackServerContext* context, const ByteBuffer* request,
                                      ByteBuffer* response) override {
    return Open<v1::GetStatusRequest>(
        context, request, response,
        [this, context](const auto&, absl::Time deadline) -> absl::StatusOr<v1::GetStatusResponse> {
          if (!OnUnixSocket(*context)) {
            WITHY_RETURN_IF_ERROR(
                gateway_.apps().Authenticate(CallerOf(*context), deadline).status());
          }
          return gateway_.GetStatus(deadline);
        });
  }

  grpc::ServerWriteReactor<ByteBuffer>* Generate(CallbackServerContext* context,
                                                 const ByteBuffer* request) override;
  grpc::ServerWriteReactor<ByteBuffer>* Score(CallbackServerContext* context,
                                              const ByteBuffer* request) override;
  grpc::ServerWriteReactor<ByteBuffer>* Embed(CallbackServerContext* context,
                                              const ByteBuffer* request) override;

 private:
  using Queue = rpc::WriteQueue<ByteBuffer>;

  Caller CallerOf(const CallbackServerContext& context) const {
    Caller caller{.token = BearerToken(context)};
    if (!access_.certificates_name_apps) return caller;
    rpc::CallerTls tls = rpc::TlsOfCaller(context);
    if (tls.encrypted) caller.certified_app = std::move(tls.certified_name);
    return caller;
  }

  // Runs `work(request, deadline)` on a thread that may block and answers with its result. A call
  // that does not come so far is told to `refused`.
  template <typename Request, typename Work>
  grpc::ServerUnaryReactor* Open(
      CallbackServerContext* context, const ByteBuffer* bytes, ByteBuffer* response, Work work,
      const std::function<void(const absl::Status&)>& refused = [](const absl::Status&) {}) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const bool taken =
        threads_.shorts.Run([context, bytes, response, reactor, work = std::move(work), refused] {
          Request request;
          absl::Status status = Parse(*bytes, &request);
          if (!status.ok()) {
            refused(status);
          } else {
            const auto result = work(request, DeadlineOf(*context));
            status = result.status();
            if (result.ok()) *response = Serialize(*result);
          }
          rpc::AddRetryHint(status, context);
          reactor->Finish(rpc::ToGrpc(status));
        });
    if (!taken) {
      const absl::Status full = WithReason(
          rpc::WithRetryAfter(
              absl::ResourceExhaustedError("too many requests wait: retry after the advised time"),
              200),
          "QUEUE_FULL");
      refused(full);
      rpc::AddRetryHint(full, context);
      reactor->Finish(rpc::ToGrpc(full));
    }
    return reactor;
  }

  // The same for a request of an authenticated app. The method is no value that a closure keeps:
  // GCC 12 loses `this` beside one when it builds with sanitizers.
  template <auto kMethod>
  grpc::ServerUnaryReactor* ForApp(CallbackServerContext* context, const ByteBuffer* bytes,
                                   ByteBuffer* response) {
    using Method = MethodOf<decltype(kMethod)>;
    using Request = typename Method::RequestType;
    return Open<Request>(
        context, bytes, response,
        [this, context](const Request& request, absl::Time deadline) -> typename Method::Result {
          WITHY_ASSIGN_OR_RETURN(const std::string app_id,
                                 gateway_.apps().Authenticate(CallerOf(*context), deadline));
          return (PartOf<typename Method::Type>(gateway_).*kMethod)(app_id, request, deadline);
        });
  }

  // The same for a method that encodes prompts, and stops when the app has left. It is told of by
  // its name where it is refused.
  template <auto kMethod>
  grpc::ServerUnaryReactor* ForWaitingApp(const char* name, CallbackServerContext* context,
                                          const ByteBuffer* bytes, ByteBuffer* response) {
    using Method = MethodOf<decltype(kMethod)>;
    using Request = typename Method::RequestType;
    return Open<Request>(
        context, bytes, response,
        [this, context](const Request& request, absl::Time deadline) -> typename Method::Result {
          WITHY_ASSIGN_OR_RETURN(const std::string app_id,
                                 gateway_.apps().Authenticate(CallerOf(*context), deadline));
          return (PartOf<typename Method::Type>(gateway_).*kMethod)(
              app_id, request, deadline, [context] { return context->IsCancelled(); });
        },
        [this, name, caller = CallerOf(*context)](const absl::Status& refused) {
          gateway_.Refused({.method = name, .caller = caller}, refused);
        });
  }

  Gateway& gateway_;
  const ServiceThreads threads_;
  const Clock& clock_;
  rpc::OpenStreams& answers_;
  rpc::OpenStreams text_answers_;  // a drain does not wait for them: their clients ask again
  const ServiceAccess access_;
  std::atomic<bool> scoring_{false};  // a text is being scored
  Executor scores_;                   // runs Score
  Executor embeds_;                   // runs Embed
};

grpc::ServerWriteReactor<ByteBuffer>* LlmServiceImpl::Generate(CallbackServerContext* context,
                                                               const ByteBuffer* bytes) {
  const std::shared_ptr<Queue> queue = Queue::Create(answers_);
  const auto control = std::make_shared<CallControl>(DeadlineOf(*context));
  const IncomingCall call{.id = RandomId64(),
                          .arrived_ns = clock_.SteadyNanos(),
                          .caller = CallerOf(*context),
                          .over = [control] { return !control->Check().ok(); }};
  // The context lives until Close() has been sent; everything below happens before.
  const auto close = [queue, context, this](absl::Status status) {
    if (absl::IsResourceExhausted(status) && !rpc::RetryAfterMs(status).has_value()) {
      status = rpc::WithRetryAfter(status, gateway_.RetryAfterMs());
    }
    rpc::AddRetryHint(status, context);
    queue->Close(status);
  };
  if (const absl::Status admitted = gateway_.Arrive(call); !admitted.ok()) {
    close(admitted);
    return queue->reactor();
  }
  queue->OnCancelled([control] { control->Cancel(); });
  const bool taken = threads_.calls.Run([this, call, bytes, control, queue, close] {
    v1::GenerateRequest request;
    bool stalled = false;
    absl::Status status = Parse(*bytes, &request);
    if (!status.ok()) {
      gateway_.Refused(RefusedBefore(call), status);
    } else {
      status = gateway_.Generate(call, request, control, [&](const v1::GenerateResponse& message) {
        stalled = stalled || !queue->WaitForRoom(kReaderPatience);
        return !stalled && queue->Push(Serialize(message));
      });
    }
    gateway_.Leave(call.id, status);
    if (stalled) {
      queue->Abandon(WithReason(
          absl::ResourceExhaustedError(absl::StrCat(
              "the answer was not read for ", absl::FormatDuration(kReaderPatience),
              " while its queue was full, and was cancelled: read the stream as it comes")),
          "ANSWER_NOT_READ"));
    }
    close(status);
  });
  if (!taken) {
    const absl::Status full = WithReason(
        absl::UnavailableError("orchestrator is shutting down: retry when it is back"), "DRAINING");
    gateway_.Leave(call.id, full);
    gateway_.Refused(RefusedBefore(call), full);
    close(full);
  }
  return queue->reactor();
}

grpc::ServerWriteReactor<ByteBuffer>* LlmServiceImpl::Score(CallbackServerContext* context,
                                                            const ByteBuffer* bytes) {
  const std::shared_ptr<Queue> queue = Queue::Create(text_answers_, context);
  const auto control = std::make_shared<CallControl>(DeadlineOf(*context));
  queue->OnCancelled([control] { control->Cancel(); });
  const absl::Status full = WithReason(
      rpc::WithRetryAfter(
          absl::ResourceExhaustedError(
              "another text is being scored: retry when it is done; one is scored at a time"),
          policy::kScoreRetryMs),
      "QUEUE_FULL");
  const Caller caller = CallerOf(*context);
  if (scoring_.exchange(true)) {
    gateway_.Refused({.method = "Score", .caller = caller}, full);
    queue->Close(full);
    return queue->reactor();
  }
  const bool taken = scores_.Run([this, caller, bytes, control, queue] {
    v1::ScoreRequest request;
    absl::Status status = Parse(*bytes, &request);
    if (!status.ok()) {
      gateway_.Refused({.method = "Score", .caller = caller}, status);
    } else {
      status = gateway_.scores().Score(caller, request, *control, [&](const auto& message) {
        return queue->WaitForRoom(kReaderPatience) && queue->Push(Serialize(message));
      });
    }
    scoring_ = false;
    queue->Close(status);
  });
  if (!taken) {  // the one before has not left its thread yet
    scoring_ = false;
    gateway_.Refused({.method = "Score", .caller = caller}, full);
    queue->Close(full);
  }
  return queue->reactor();
}

grpc::ServerWriteReactor<ByteBuffer>* LlmServiceImpl::Embed(CallbackServerContext* context,
                                                            const ByteBuffer* bytes) {
  const std::shared_ptr<Queue> queue = Queue::Create(text_answers_, context);
  const auto control = std::make_shared<CallControl>(DeadlineOf(*context));
  queue->OnCancelled([control] { control->Cancel(); });
  const Caller caller = CallerOf(*context);
  const auto refuse = [this, caller, queue](const absl::Status& status) {
    gateway_.Refused({.method = "Embed", .caller = caller}, status);
    queue->Close(status);
  };
  const bool taken = embeds_.Run([this, caller, bytes, control, queue, refuse] {
    v1::EmbedRequest request;
    if (const absl::Status parsed = Parse(*bytes, &request); !parsed.ok()) return refuse(parsed);
    const absl::StatusOr<std::string> app_id =
        gateway_.apps().Authenticate(caller, control->deadline());
    if (!app_id.ok()) return refuse(app_id.status());
    queue->Close(gateway_.embeddings().Embed(*app_id, request, *control, [&](const auto& message) {
      return queue->WaitForRoom(kReaderPatience) && queue->Push(Serialize(message));
    }));
  });
  if (!taken) {
    refuse(WithReason(
        rpc::WithRetryAfter(absl::ResourceExhaustedError("too many texts wait for their vectors: "
                                                         "retry after the advised time"),
                            policy::kEmbedRetryMs),
        "QUEUE_FULL"));
  }
  return queue->reactor();
}

}  // namespace

std::unique_ptr<grpc::Service> MakeLlmService(Gateway& gateway, const ServiceThreads& threads,
                                              const Clock& clock, rpc::OpenStreams& answers,
                                              const ServiceAccess& access) {
  return std::make_unique<LlmServiceImpl>(gateway, threads, clock, answers, access);
}

}  // namespace withy::orchestrator
