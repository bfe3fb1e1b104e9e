#include "bench/contexts/contexts_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "bench/service/processes.h"
#include "rpc/channel.h"
#include "rpc/status.h"
#include "withy/v1/llm_service.grpc.pb.h"

namespace withy::bench {
namespace {

constexpr absl::Duration kServing = absl::Seconds(180);
constexpr absl::Duration kAnswer = absl::Seconds(600);
constexpr uint32_t kAnswerTokens = 32;
constexpr uint64_t kServiceArena = uint64_t{1} << 30;

struct Answered {
  double ttft_ms = 0;
  double tpot_ms = 0;
  uint32_t context_tokens = 0;  // before the call
};

// The five processes with one app and one context.
class Service {
 public:
  static absl::StatusOr<std::unique_ptr<Service>> Start(const std::string& model,
                                                        const std::string& store) {
    std::unique_ptr<Service> service(new Service());
    WITHY_ASSIGN_OR_RETURN(service->directory_, TemporaryDirectory::Create("withy-service"));
    const std::string config = absl::StrCat(
        "log_level: \"warn\"\norchestrator { tlm_path: \"off\" audit_off: true probe_off: true }\n",
        "model { path: \"", model, "\" idle_upgrade_s: 0 }\nstore { arena_bytes: ", kServiceArena,
        " ", store, " }\nprofiler { metrics_listen: \"off\" }\n");
    WITHY_ASSIGN_OR_RETURN(Processes processes,
                           Processes::Create(service->directory_.path(), config));
    service->processes_ = std::make_unique<Processes>(std::move(processes));
    WITHY_RETURN_IF_ERROR(service->StartAll());
    WITHY_RETURN_IF_ERROR(service->BindApp());
    return service;
  }

  absl::Status Restart() {
    for (const std::string& name : kAllProcesses) processes_->Kill(name);
    return StartAll();
  }

  absl::Status NewContext() {
    v1::CreateContextResponse response;
    grpc::ClientContext context;
    Prepare(&context);
    WITHY_RETURN_IF_ERROR(rpc::FromGrpc(stub_->CreateContext(&context, {}, &response)));
    context_id_ = response.context().context_id();
    return absl::OkStatus();
  }

  absl::StatusOr<Answered> Call(const std::string& text, uint32_t max_tokens) {
    v1::GenerateRequest request;
    request.set_context_id(context_id_);
    v1::Message* message = request.mutable_prompt()->mutable_messages()->add_messages();
    message->set_role("user");
    message->set_content(text);
    request.mutable_limits()->set_max_tokens(max_tokens);
    request.mutable_sampling()->set_temperature(0);
    request.set_speculation(v1::SPECULATION_OFF);  // what drafts gain changes from call to call
    grpc::ClientContext context;
    Prepare(&context);
    const absl::Time begin = absl::Now();
    absl::Time first = begin, last = begin;
    int tokens = 0, tokens_at_first = 0;
    Answered answered;
    v1::GenerateResponse response;
    const auto reader = stub_->Generate(&context, request);
    while (reader->Read(&response)) {
      if (response.delta().tokens_size() > 0) {
        last = absl::Now();
        tokens += response.delta().tokens_size();
        if (first == begin) {
          first = last;
          tokens_at_first = tokens;
        }
      }
      answered.context_tokens = response.finished().usage().context_tokens();
    }
    WITHY_RETURN_IF_ERROR(rpc::FromGrpc(reader->Finish()));
    answered.ttft_ms = absl::ToDoubleMilliseconds(first - begin);
    if (tokens > tokens_at_first) {
      answered.tpot_ms = absl::ToDoubleMilliseconds(last - first) / (tokens - tokens_at_first);
    }
    return answered;
  }

  // Until the store has done what there is to do after a call; with `stores`: and has all KV of the
  // context on disk as well.
  absl::Status AwaitIdle(bool stores) {
    const absl::Time end = absl::Now() + kServing;
    uint64_t before = 0;
    for (int equal = 0; equal < 10;) {
      if (absl::Now() > end) {
        return absl::DeadlineExceededError(
            absl::StrCat(stores ? "the context's KV is not on disk" : "the store is not idle",
                         " after ", absl::FormatDuration(kServing)));
      }
      v1::GetContextRequest request;
      request.set_context_id(context_id_);
      v1::GetContextResponse response;
      grpc::ClientContext context;
      Prepare(&context);
      WITHY_RETURN_IF_ERROR(rpc::FromGrpc(stub_->GetContext(&context, request, &response)));
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
  absl::Status StartAll() {
    for (const std::string& name : kAllProcesses) WITHY_RETURN_IF_ERROR(processes_->Start(name));
    stub_ = v1::LlmService::NewStub(rpc::Connect("unix:" + processes_->run_dir() + "/withy.sock"));
    const absl::Time end = absl::Now() + kServing;
    while (absl::Now() < end) {
      grpc::ClientContext context;
      rpc::SetTimeout(&context, absl::Seconds(5));
      context.set_wait_for_ready(true);
      v1::GetStatusResponse response;
      int serving = 0;
      if (stub_->GetStatus(&context, {}, &response).ok()) {
        for (const v1::ProcessState& state : response.processes()) {
          serving += state.health() == "serving" || state.process() == "draft_worker" ? 1 : 0;
        }
      }
      if (serving == static_cast<int>(kAllProcesses.size())) return absl::OkStatus();
      absl::SleepFor(absl::Milliseconds(20));
    }
    return absl::DeadlineExceededError(
        absl::StrCat("the service does not serve after ", absl::FormatDuration(kServing),
                     "; model_worker: ", processes_->LogTail("model_worker")));
  }

  absl::Status BindApp() {
    v1::BindAppRequest request;
    request.set_app("bench");
    v1::BindAppResponse response;
    grpc::ClientContext context;
    Prepare(&context);
    WITHY_RETURN_IF_ERROR(rpc::FromGrpc(stub_->BindApp(&context, request, &response)));
    token_ = response.token();
    return absl::OkStatus();
  }

  void Prepare(grpc::ClientContext* context) const {
    if (!token_.empty()) context->AddMetadata("authorization", "Bearer " + token_);
    rpc::SetTimeout(context, kAnswer);
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Processes> processes_;
  std::unique_ptr<v1::LlmService::Stub> stub_;
  std::string token_;
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
  WITHY_ASSIGN_OR_RETURN(const auto kept, Service::Start(model, ""));
  WITHY_ASSIGN_OR_RETURN(const auto forgetful, Service::Start(model, "kv_strategy: \"lmk\""));
  std::vector<RestartGain> gains;
  for (const uint32_t length : lengths) {
    RestartGain& gain = gains.emplace_back();
    for (Service* service : {kept.get(), forgetful.get()}) {
      WITHY_RETURN_IF_ERROR(service->NewContext());
      WITHY_RETURN_IF_ERROR(service->Call(Words(length), 2).status());
      WITHY_RETURN_IF_ERROR(service->AwaitIdle(service == kept.get()));
      WITHY_RETURN_IF_ERROR(service->Restart());
      WITHY_ASSIGN_OR_RETURN(const Answered again, service->Call("And now?", 2));
      gain.context_tokens = again.context_tokens;
      (service == kept.get() ? gain.with_kv_ms : gain.without_ms) = again.ttft_ms;
    }
  }
  return gains;
}

absl::StatusOr<double> MeasureDecodeRatio(const std::string& model, uint32_t context_tokens,
                                          uint32_t pairs) {
  WITHY_ASSIGN_OR_RETURN(const auto stored, Service::Start(model, "kv_strategy: \"llms\""));
  WITHY_ASSIGN_OR_RETURN(const auto exact, Service::Start(model, "kv_strategy: \"lmk\""));
  for (Service* service : {stored.get(), exact.get()}) {
    WITHY_RETURN_IF_ERROR(service->NewContext());
    WITHY_RETURN_IF_ERROR(service->Call(Words(context_tokens), 2).status());
    WITHY_RETURN_IF_ERROR(service->AwaitIdle(service == stored.get()));
  }
  std::vector<double> ratios;
  for (uint32_t pair = 0; pair < pairs; ++pair) {
    WITHY_ASSIGN_OR_RETURN(const Answered with, stored->Call("Go on.", kAnswerTokens));
    WITHY_ASSIGN_OR_RETURN(const Answered without, exact->Call("Go on.", kAnswerTokens));
    if (with.tpot_ms == 0 || without.tpot_ms == 0) {
      return absl::FailedPreconditionError(
          "the model ends its answers at once: take another one to time decoding");
    }
    ratios.push_back(without.tpot_ms / with.tpot_ms);
  }
  std::sort(ratios.begin(), ratios.end());
  return ratios[ratios.size() / 2];
}

}  // namespace withy::bench
