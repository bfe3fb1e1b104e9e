#include "orchestrator/gateway.h"

#include <algorithm>

#include "base/ids.h"
#include "base/status.h"
#include "orchestrator/call/generate.h"
#include "orchestrator/call/prepare.h"
#include "orchestrator/call/validate.h"
#include "policy/board/latency_model.h"
#include "policy/constants.h"
#include "rpc/error_reason.h"
#include "rpc/status.h"
#include "wire/cost_model.h"
#include "wire/decision.h"

namespace withy::orchestrator {
namespace {

using policy::Lane;

// A service that was stopped to be started again is back by then.
constexpr int64_t kDrainRetryMs = 3000;

policy::AdmissionOptions AdmissionOptionsOf(const v1::Config& config) {
  policy::AdmissionOptions options;
  options.limit = config.orchestrator().queue_limit();
  options.slots = {config.model().max_batch(), config.draft().max_batch()};
  options.piece_ms = config.model().prefill_piece_ms();
  return options;
}

}  // namespace

Gateway::Gateway(const v1::Config& config, telemetry::Recorder& recorder, const Clock& clock)
    : clock_(clock),
      recorder_(recorder),
      metrics_(recorder),
      backends_(config),
      apps_(backends_, clock),
      refusals_(apps_, backends_, clock),
      workers_(backends_, clock),
      tlm_(config, clock, workers_),
      counter_(config, backends_, workers_),
      calls_(AdmissionOptionsOf(config), clock),
      board_(config.orchestrator().board_root(), !config.orchestrator().heat_limit_off(),
             config.model().device() != "cpu" || config.draft().device() != "cpu", clock, recorder),
      budgets_(config, recorder, clock),
      scores_(apps_, backends_, workers_, board_, budgets_, refusals_),
      embeddings_(apps_, backends_, workers_, board_, budgets_, refusals_),
      auditor_(config.orchestrator().audit_off()
                   ? nullptr
                   : std::make_unique<Auditor>(backends_, scores_, clock, recorder,
                                               config.state_dir() + "/audits")),
      prober_(config.orchestrator().probe_off()
                  ? nullptr
                  : std::make_unique<Prober>(backends_, workers_, auditor_.get(), clock, recorder)),
      readiness_(backends_, clock, recorder) {}

CallParts Gateway::Parts() {
  return {.clock = clock_,
          .recorder = recorder_,
          .metrics = metrics_,
          .backends = backends_,
          .apps = apps_,
          .workers = workers_,
          .counter = counter_,
          .calls = calls_,
          .registry = registry_,
          .board = board_,
          .budgets = budgets_,
          .tlm = tlm_,
          .auditor = auditor_.get(),
          .prober = prober_.get()};
}

absl::Status Gateway::Arrive(const IncomingCall& call) {
  absl::Status status = calls_.Arrive(call.id);
  if (absl::IsResourceExhausted(status)) {
    status = WithReason(rpc::WithRetryAfter(status, RetryAfterMs()), "QUEUE_FULL");
  } else if (absl::IsUnavailable(status)) {
    status = WithReason(rpc::WithRetryAfter(status, kDrainRetryMs), "DRAINING");
  }
  if (!status.ok()) {
    metrics_.Ended(status);
    Refused({.id = call.id, .arrived_ns = call.arrived_ns, .caller = call.caller}, status);
  } else if (auditor_ != nullptr) {
    auditor_->CallStarts();
  }
  return status;
}

void Gateway::Leave(uint64_t id, const absl::Status& status) {
  calls_.Leave(id);
  if (auditor_ != nullptr) auditor_->CallEnds();
  metrics_.Ended(status);
  const policy::Admission::Counts counts = calls_.counts();
  metrics_.SetLoad(counts.running, counts.waiting);
}

int64_t Gateway::RetryAfterMs() const {
  const WorkerInfo worker = workers_.Last(Lane::kTarget);
  if (worker == nullptr) return static_cast<int64_t>(policy::kRetryUnknownMs);
  const policy::CostParameters cost = wire::CostFromWire(worker->cost());
  return static_cast<int64_t>(
      policy::RetryAfterMs(cost, workers_.Live(Lane::kTarget), calls_.counts().running));
}

absl::Status Gateway::Generate(const IncomingCall& call, const v1::GenerateRequest& request,
                               const std::shared_ptr<CallControl>& control,
                               const AnswerSink& sink) {
  return orchestrator::Generate(Parts(), call, request, control, sink);
}

absl::StatusOr<v1::CancelResponse> Gateway::Cancel(const std::string& app_id,
                                                   const v1::CancelRequest& request,
                                                   absl::Time /*deadline*/) {
  WITHY_RETURN_IF_ERROR(ValidateCancel(request));
  WITHY_RETURN_IF_ERROR(registry_.Cancel(app_id, request));
  return v1::CancelResponse();
}

absl::StatusOr<v1::PlanResponse> Gateway::Plan(const std::string& app_id,
                                               const v1::GenerateRequest& request,
                                               absl::Time deadline,
                                               const engine::CancelCheck& over) {
  const int64_t arrived_ns = clock_.SteadyNanos();
  absl::StatusOr<v1::PlanResponse> planned = PlanFor(app_id, request, deadline, over);
  Refused({.method = "Plan",
           .arrived_ns = arrived_ns,
           .app_id = app_id,
           .request_id = request.request_id()},
          planned.status());
  return planned;
}

absl::StatusOr<v1::PlanResponse> Gateway::PlanFor(const std::string& app_id,
                                                  const v1::GenerateRequest& request,
                                                  absl::Time deadline,
                                                  const engine::CancelCheck& over) {
  WITHY_RETURN_IF_ERROR(ValidateGenerate(request));
  WITHY_ASSIGN_OR_RETURN(const AppBudgets::Place place, budgets_.Begin(apps_.NameOf(app_id)));
  const IncomingCall call{RandomId64(), clock_.SteadyNanos(), {}, over};
  WITHY_ASSIGN_OR_RETURN(const Prepared prepared,
                         Prepare(Parts(), app_id, request, call, deadline));
  v1::PlanResponse response;
  *response.mutable_decision() = wire::ToWire(prepared.plan.decision);
  response.set_queue_position(prepared.queue_position);
  response.set_prompt_tokens(prepared.tokens.prompt_tokens());
  return response;
}

absl::StatusOr<v1::CountTokensResponse> Gateway::CountTokens(const std::string& app_id,
                                                             const v1::CountTokensRequest& request,
                                                             absl::Time deadline,
                                                             const engine::CancelCheck& over) {
  const int64_t arrived_ns = clock_.SteadyNanos();
  absl::StatusOr<v1::CountTokensResponse> counted = CountFor(app_id, request, deadline, over);
  Refused({.method = "CountTokens", .arrived_ns = arrived_ns, .app_id = app_id}, counted.status());
  return counted;
}

absl::StatusOr<v1::CountTokensResponse> Gateway::CountFor(const std::string& app_id,
                                                          const v1::CountTokensRequest& request,
                                                          absl::Time deadline,
                                                          const engine::CancelCheck& over) {
  WITHY_RETURN_IF_ERROR(ValidateCountTokens(request));
  WITHY_ASSIGN_OR_RETURN(const AppBudgets::Place place, budgets_.Begin(apps_.NameOf(app_id)));
  return counter_.CountTokens(app_id, request, deadline, over);
}

absl::StatusOr<AnsweringModel> Gateway::FindModel(const std::string& model, absl::Time deadline) {
  AnsweringModel found;
  WITHY_ASSIGN_OR_RETURN(found.lane, workers_.FindLane(model, deadline));
  found.worker = workers_.Last(found.lane);
  if (found.worker != nullptr) return found;
  WITHY_ASSIGN_OR_RETURN(found.worker, workers_.Get(found.lane, deadline));
  return found;
}

absl::StatusOr<v1::ListModelsResponse> Gateway::ListModels(absl::Time deadline) {
  v1::ListModelsResponse response;
  WITHY_ASSIGN_OR_RETURN(const WorkerInfo target, workers_.Get(Lane::kTarget, deadline));
  *response.add_models() = target->model();
  // A draft that is away is not listed: the target answers without it.
  const auto draft = workers_.Get(Lane::kDraft, deadline, /*wait=*/false);
  if (draft.ok()) *response.add_models() = (*draft)->model();
  if (absl::IsNotFound(draft.status())) response.add_notes(std::string(draft.status().message()));
  if (const auto tlm = tlm_.For(*target)) *response.add_models() = tlm->description();
  return response;
}

absl::StatusOr<std::string> Gateway::MetricsText(bool lean, absl::Time deadline) {
  v1::GetMetricsRequest request;
  request.set_lean(lean);
  WITHY_ASSIGN_OR_RETURN(v1::GetMetricsResponse metrics, backends_.Metrics(request, deadline));
  return std::move(*metrics.mutable_text());
}

}  // namespace withy::orchestrator
