#include "orchestrator/gateway.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/ids.h"
#include "base/status.h"
#include "orchestrator/digest.h"
#include "orchestrator/validate.h"
#include "orchestrator/worker_facts.h"

namespace withy::orchestrator {
namespace {

// So long a token that the operator renewed or removed may be honoured (docs/operations.md).
constexpr int64_t kAuthTtlNs = 10 * kNanosPerSecond;
constexpr size_t kAuthEntries = 1024;
constexpr int64_t kWorkerInfoTtlNs = 2 * kNanosPerSecond;

CallTableOptions TableOptions(const v1::Config& config) {
  CallTableOptions options;
  options.limit = config.orchestrator().queue_limit();
  options.slots = {config.model().max_batch(), config.draft().max_batch()};
  options.piece_ms = config.model().prefill_piece_ms();
  return options;
}

int Index(Lane lane) { return static_cast<int>(lane); }

}  // namespace

std::string CallName(uint64_t id) { return absl::StrFormat("%016x", id); }

Gateway::Gateway(const v1::Config& config, telemetry::Recorder& recorder, const Clock& clock)
    : clock_(clock),
      recorder_(recorder),
      metrics_(recorder),
      backends_(config),
      calls_(TableOptions(config), clock),
      tlm_(TlmReader::Open(config, clock)),
      counter_(PromptCounter::Open(config)),
      auth_(kAuthTtlNs, kAuthEntries),
      auditor_(tlm_ == nullptr || config.orchestrator().audit_off()
                   ? nullptr
                   : std::make_unique<Auditor>(backends_, clock, recorder)),
      prober_(config.orchestrator().probe_off()
                  ? nullptr
                  : std::make_unique<Prober>(
                        backends_, auditor_.get(), clock, recorder,
                        Prober::Model{.live = [this](Lane lane) { return live(lane); },
                                      .learn =
                                          [this](Lane lane, const CostParameters& cost,
                                                 const Observation& seen) {
                                            LearnFrom(lane, cost, seen);
                                          }})) {
  if (tlm_ == nullptr) return;
  absl::MutexLock lock(&mutex_);
  LiveCorrection& target = live_[Index(Lane::kTarget)];
  target.tlm_us_per_byte = target.tlm_start_us_per_byte = tlm_->us_per_byte();
}

absl::Status Gateway::Arrive(uint64_t id) {
  absl::Status status = calls_.Arrive(id);
  if (!status.ok()) metrics_.Ended(status);
  if (status.ok() && auditor_ != nullptr) auditor_->Come();
  return status;
}

void Gateway::Leave(uint64_t id, const absl::Status& status) {
  calls_.Leave(id);
  if (auditor_ != nullptr) auditor_->Go();
  metrics_.Ended(status);
  const CallTable::Counts counts = calls_.counts();
  metrics_.SetLoad(counts.running, counts.waiting);
}

absl::StatusOr<std::string> Gateway::Authenticate(std::string_view token, absl::Time deadline) {
  if (token.empty()) {
    return absl::UnauthenticatedError(
        "no token: send the metadata `authorization: Bearer TOKEN`; `withyctl apps bind NAME` "
        "makes a token");
  }
  if (auto app_id = auth_.Find(token, clock_.SteadyNanos())) return *app_id;
  v1::AuthenticateAppRequest request;
  request.set_token(std::string(token));
  WITHY_ASSIGN_OR_RETURN(const v1::AuthenticateAppResponse app,
                         backends_.AuthenticateApp(request, deadline));
  auth_.Put(token, app.app_id(), clock_.SteadyNanos());
  return app.app_id();
}

absl::StatusOr<v1::BindAppResponse> Gateway::BindApp(const v1::BindAppRequest& request,
                                                     std::string_view current_token,
                                                     absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateBindApp(request));
  v1::StoreBindAppRequest forwarded;
  forwarded.set_app(request.app());
  forwarded.set_current_token(std::string(current_token));
  WITHY_ASSIGN_OR_RETURN(v1::BindAppResponse bound, backends_.BindApp(forwarded, deadline));
  auth_.ForgetApp(bound.app_id());
  return bound;
}

absl::StatusOr<v1::CreateContextResponse> Gateway::CreateContext(
    const std::string& app_id, const v1::CreateContextRequest& request, absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateCreateContext(request));
  v1::StoreCreateContextRequest forwarded;
  forwarded.set_app_id(app_id);
  *forwarded.mutable_request() = request;
  return backends_.CreateContext(forwarded, deadline);
}

absl::StatusOr<v1::GetContextResponse> Gateway::GetContext(const std::string& app_id,
                                                           const v1::GetContextRequest& request,
                                                           absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateContextId(request.context_id()));
  v1::StoreGetContextRequest forwarded;
  forwarded.set_app_id(app_id);
  forwarded.set_context_id(request.context_id());
  return backends_.GetContext(forwarded, deadline);
}

absl::StatusOr<v1::ListContextsResponse> Gateway::ListContexts(
    const std::string& app_id, const v1::ListContextsRequest& request, absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateListContexts(request));
  v1::StoreListContextsRequest forwarded;
  forwarded.set_app_id(app_id);
  *forwarded.mutable_request() = request;
  return backends_.ListContexts(forwarded, deadline);
}

absl::StatusOr<v1::DeleteContextResponse> Gateway::DeleteContext(
    const std::string& app_id, const v1::DeleteContextRequest& request, absl::Time deadline) {
  WITHY_RETURN_IF_ERROR(ValidateContextId(request.context_id()));
  v1::StoreDeleteContextRequest forwarded;
  forwarded.set_app_id(app_id);
  forwarded.set_context_id(request.context_id());
  return backends_.DeleteContext(forwarded, deadline);
}

absl::StatusOr<v1::CountTokensResponse> Gateway::CountTokens(const std::string& app_id,
                                                             const v1::CountTokensRequest& request,
                                                             absl::Time deadline,
                                                             const engine::CancelCheck& over) {
  WITHY_RETURN_IF_ERROR(ValidateCountTokens(request));
  WITHY_ASSIGN_OR_RETURN(const Lane lane, FindLane(request.model(), deadline));
  if (lane == Lane::kDraft) {  // what it says when it serves no model is of use
    WITHY_RETURN_IF_ERROR(GetWorkerInfo(lane, deadline).status());
  }
  v1::TokenizeRequest forwarded;
  forwarded.set_app_id(app_id);
  *forwarded.mutable_prompt() = request.prompt();
  WITHY_ASSIGN_OR_RETURN(const v1::TokenizeResponse counted,
                         backends_.Tokenize(lane, forwarded, deadline, over));
  v1::CountTokensResponse response;
  response.set_tokens(counted.prompt_tokens());
  return response;
}

absl::StatusOr<v1::ListModelsResponse> Gateway::ListModels(absl::Time deadline) {
  v1::ListModelsResponse response;
  WITHY_ASSIGN_OR_RETURN(const WorkerInfo target, GetWorkerInfo(Lane::kTarget, deadline));
  *response.add_models() = target->model();
  // A draft that is away is not listed: the target answers without it.
  const auto draft = GetWorkerInfo(Lane::kDraft, deadline, /*wait=*/false);
  if (draft.ok()) *response.add_models() = (*draft)->model();
  if (absl::IsNotFound(draft.status())) response.add_notes(std::string(draft.status().message()));
  if (tlm_ != nullptr) *response.add_models() = tlm_->description();
  return response;
}

absl::StatusOr<v1::PlanResponse> Gateway::Plan(const std::string& app_id,
                                               const v1::GenerateRequest& request,
                                               absl::Time deadline,
                                               const engine::CancelCheck& over) {
  WITHY_RETURN_IF_ERROR(ValidateGenerate(request));
  const IncomingCall call{RandomId64(), clock_.SteadyNanos(), "", over};
  WITHY_ASSIGN_OR_RETURN(const Prepared prepared, Prepare(app_id, request, call, deadline));
  v1::PlanResponse response;
  *response.mutable_decision() = prepared.decision;
  response.set_queue_position(prepared.queue_position);
  response.set_prompt_tokens(prepared.tokens.prompt_tokens());
  return response;
}

int64_t Gateway::RetryAfterMs() const {
  // A slot comes free about every (length of an answer) / (calls at once); without measurements, a
  // second.
  const WorkerInfo worker = LastWorkerInfo(Lane::kTarget);
  if (worker == nullptr) return 1000;
  const CallTable::Counts counts = calls_.counts();
  Load load;
  load.slots = std::max(counts.running, 1u);
  load.running.assign(load.slots, OtherCall{0, 1u << 20});
  const Prediction next = Predict(CostOf(*worker), live(Lane::kTarget), CallShape{}, load);
  return static_cast<int64_t>(std::clamp(next.wait_ms, 50.0, 30'000.0));
}

absl::StatusOr<Lane> Gateway::FindLane(const std::string& model, absl::Time deadline) {
  if (model.empty() || model == "target") return Lane::kTarget;
  if (model == "draft") return Lane::kDraft;
  std::string known = "\"target\", \"draft\"";
  for (Lane lane : {Lane::kTarget, Lane::kDraft}) {
    const absl::StatusOr<WorkerInfo> worker = GetWorkerInfo(lane, deadline, /*wait=*/false);
    if (!worker.ok()) continue;
    if ((*worker)->model().name() == model) return lane;
    absl::StrAppend(&known, ", \"", (*worker)->model().name(), "\"");
  }
  return absl::NotFoundError(absl::StrCat("model is \"", model, "\": this server has ", known));
}

absl::StatusOr<v1::TokenizeResponse> Gateway::CountCall(Lane lane, const WorkerInfo& worker,
                                                        const std::string& app_id,
                                                        const v1::GenerateRequest& request,
                                                        absl::Time deadline,
                                                        const engine::CancelCheck& over,
                                                        const engine::PrunedPrompt* pruned) {
  v1::TokenizeRequest count;
  *count.mutable_prompt() = request.prompt();
  count.set_app_id(app_id);
  count.set_context_id(request.context_id());
  if (pruned != nullptr) FillKept(*pruned, count.mutable_kept());
  const bool stateless = request.context_id().empty();
  if (!stateless && !request.request_id().empty()) {
    count.set_request_id(request.request_id());
    count.set_request_digest(RequestDigest(request));
  }
  if (stateless && worker != nullptr && counter_ != nullptr && counter_->Fits(*worker)) {
    WITHY_ASSIGN_OR_RETURN(v1::TokenizeResponse counted,
                           counter_->Count(count, over ? &over : nullptr));
    counted.set_instance(worker->instance());
    return counted;
  }
  return backends_.Tokenize(lane, count, deadline, over);
}

absl::StatusOr<v1::CancelResponse> Gateway::Cancel(const std::string& app_id,
                                                   const v1::CancelRequest& request,
                                                   absl::Time /*deadline*/) {
  WITHY_RETURN_IF_ERROR(ValidateCancel(request));
  std::shared_ptr<CallControl> control;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, call] : running_) {
      const bool named = request.request_id().empty() ? CallName(id) == request.call_id()
                                                      : call.request_id == request.request_id();
      if (named && call.app_id == app_id) control = call.control;
    }
  }
  if (control == nullptr) {
    return absl::NotFoundError(
        request.request_id().empty()
            ? absl::StrCat("no call ", request.call_id(), " of this app runs")
            : absl::StrCat("no call with request_id \"", request.request_id(),
                           "\" of this app runs"));
  }
  control->Stop();
  return v1::CancelResponse();
}

bool Gateway::BeginRequest(const RequestName& name) {
  absl::MutexLock lock(&mutex_);
  return in_flight_.insert(name).second;
}

void Gateway::EndRequest(const RequestName& name) {
  absl::MutexLock lock(&mutex_);
  in_flight_.erase(name);
}

absl::StatusOr<Gateway::WorkerInfo> Gateway::GetWorkerInfo(Lane lane, absl::Time deadline,
                                                           bool wait) {
  {
    absl::MutexLock lock(&mutex_);
    const CachedWorker& cached = workers_[Index(lane)];
    if (cached.info != nullptr && clock_.SteadyNanos() < cached.expires_ns) return cached.info;
  }
  WITHY_ASSIGN_OR_RETURN(v1::GetWorkerInfoResponse info,
                         backends_.WorkerInfo(lane, deadline, wait));
  if (!info.without_model().empty()) return absl::NotFoundError(info.without_model());
  WorkerInfo fresh = std::make_shared<const v1::GetWorkerInfoResponse>(std::move(info));
  absl::MutexLock lock(&mutex_);
  std::string& cost = costs_[Index(lane)];
  if (const std::string now = fresh->cost().SerializeAsString(); now != cost) {
    if (!cost.empty()) live_[Index(lane)] = ForNewCost(live_[Index(lane)]);
    cost = now;
  }
  workers_[Index(lane)] = {fresh, clock_.SteadyNanos() + kWorkerInfoTtlNs};
  return fresh;
}

Gateway::WorkerInfo Gateway::LastWorkerInfo(Lane lane) const {
  absl::MutexLock lock(&mutex_);
  return workers_[Index(lane)].info;
}

void Gateway::ForgetWorker(Lane lane) {
  absl::MutexLock lock(&mutex_);
  workers_[Index(lane)] = {};
}

LiveCorrection Gateway::live(Lane lane) const {
  absl::MutexLock lock(&mutex_);
  return live_[Index(lane)];
}

void Gateway::LearnFrom(Lane lane, const CostParameters& cost, const Observation& seen) {
  absl::MutexLock lock(&mutex_);
  live_[Index(lane)] = Learn(cost, live_[Index(lane)], seen);
}

}  // namespace withy::orchestrator
