#include "bench/contexts/contexts_service.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/contexts/contestants.h"
#include "bench/samples.h"
#include "bench/service/own_service.h"
#include "rpc/status.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kIdle = absl::Seconds(180);
constexpr uint32_t kAnswerTokens = 32;
constexpr uint64_t kServiceArena = uint64_t{1} << 30;

// A service with one context.
class ContextService {
 public:
  static absl::StatusOr<std::unique_ptr<ContextService>> Start(const std::string& model,
                                                               const std::string& contestant) {
    std::unique_ptr<ContextService> service(new ContextService());
    WITHY_ASSIGN_OR_RETURN(
        service->service_,
        OwnService::Start({.orchestrator = "probe_off: true",
                           .model = absl::StrCat("path: \"", model, "\""),
                           .store = absl::StrCat("arena_bytes: ", kServiceArena),
                           .programs = {{"context_store", kContestantStore}},
                           .environment = {absl::StrCat(kContestantVariable, "=", contestant)}}));
    return service;
  }

  absl::Status Restart() { return service_->Restart(); }

  absl::Status NewContext() {
    v1::CreateContextResponse response;
    grpc::ClientContext context;
    service_->Prepare(&context);
    WITHY_RETURN_IF_ERROR(rpc::FromGrpc(service_->stub().CreateContext(&context, {}, &response)));
    context_id_ = response.context().context_id();
    return absl::OkStatus();
  }

  absl::StatusOr<ServedAnswer> Call(const std::string& text, uint32_t max_tokens) {
    v1::GenerateRequest request = GreedyRequest(text, max_tokens);
    request.set_context_id(context_id_);
    request.set_speculation(v1::SPECULATION_OFF);  // what drafts gain changes from call to call
    return service_->Ask(request);
  }

  // Until the store has done what there is to do after a call; with `stores`: and has all KV of the
  // context on disk as well.
  absl::Status AwaitIdle(bool stores) {
    const absl::Time end = absl::Now() + kIdle;
    uint64_t before = 0;
    for (int equal = 0; equal < 10;) {
      if (absl::Now() > end) {
        return absl::DeadlineExceededError(
            absl::StrCat(stores ? "the context's KV is not on disk" : "the store is not idle",
                         " after ", absl::FormatDuration(kIdle)));
      }
      v1::GetContextRequest request;
      request.set_context_id(context_id_);
      v1::GetContextResponse response;
      grpc::ClientContext context;
      service_->Prepare(&context);
      WITHY_RETURN_IF_ERROR(
          rpc::FromGrpc(service_->stub().GetContext(&context, request, &response)));
      const uint64_t now =
          response.context().stored_bytes() * 3 + response.context().resident_bytes();
      const bool done =
          !stores || response.context().stored_bytes() >= response.context().resident_bytes();
      equal = done && now == before ? equal + 1 : 0;
      before = now;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return absl::OkStatus();
  }

 private:
  ContextService() = default;

  std::unique_ptr<OwnService> service_;
  std::string context_id_;
};

// Text of about `tokens` tokens: a short word each.
std::string Words(uint32_t tokens) {
  std::string text;
  for (uint32_t i = 0; i < tokens / 3; ++i) absl::StrAppend(&text, " w", i * 37 % 90 + 10);
  return text;
}

}  // namespace

absl::StatusOr<std::vector<RestartGain>> MeasureRestart(const std::string& model,
                                                        const std::vector<uint32_t>& lengths) {
  WITHY_ASSIGN_OR_RETURN(const auto kept, ContextService::Start(model, "withy"));
  WITHY_ASSIGN_OR_RETURN(const auto forgetful, ContextService::Start(model, "lmk"));
  std::vector<RestartGain> gains;
  for (const uint32_t length : lengths) {
    RestartGain& gain = gains.emplace_back();
    for (ContextService* service : {kept.get(), forgetful.get()}) {
      WITHY_RETURN_IF_ERROR(service->NewContext());
      WITHY_RETURN_IF_ERROR(service->Call(Words(length), 2).status());
      WITHY_RETURN_IF_ERROR(service->AwaitIdle(service == kept.get()));
      WITHY_RETURN_IF_ERROR(service->Restart());
      WITHY_ASSIGN_OR_RETURN(const ServedAnswer again, service->Call("And now?", 2));
      gain.context_tokens = again.finished.usage().context_tokens();
      (service == kept.get() ? gain.with_kv_ms : gain.without_ms) = again.ttft_ms;
    }
  }
  return gains;
}

absl::StatusOr<double> MeasureDecodeRatio(const std::string& model, uint32_t context_tokens,
                                          uint32_t pairs) {
  WITHY_ASSIGN_OR_RETURN(const auto stored, ContextService::Start(model, "llms"));
  WITHY_ASSIGN_OR_RETURN(const auto exact, ContextService::Start(model, "lmk"));
  for (ContextService* service : {stored.get(), exact.get()}) {
    WITHY_RETURN_IF_ERROR(service->NewContext());
    WITHY_RETURN_IF_ERROR(service->Call(Words(context_tokens), 2).status());
    WITHY_RETURN_IF_ERROR(service->AwaitIdle(service == stored.get()));
  }
  std::vector<double> ratios;
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    WITHY_ASSIGN_OR_RETURN(const ServedAnswer with, stored->Call("Go on.", kAnswerTokens));
    WITHY_ASSIGN_OR_RETURN(const ServedAnswer without, exact->Call("Go on.", kAnswerTokens));
    if (with.tpot_ms == 0 || without.tpot_ms == 0) {
      return absl::FailedPreconditionError(
          "the model ends its answers at once: take another one to time decoding");
    }
    ratios.push_back(without.tpot_ms / with.tpot_ms);
  }
  return Summarize(ratios).median;
}

}  // namespace withy::bench
