// One Generate call from arrival to its last message. Neighbours: gateway.h (the parts it uses),
// calls.h (its states).
#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/ids.h"
#include "base/status.h"
#include "orchestrator/digest.h"
#include "orchestrator/gateway.h"
#include "orchestrator/validate.h"
#include "orchestrator/worker_facts.h"
#include "rpc/status.h"

namespace withy::orchestrator {
namespace {

using telemetry::Phase;

double Millis(int64_t nanos) { return static_cast<double>(nanos) / kNanosPerMilli; }

bool WorkerWent(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status);
}

}  // namespace

// Lives on the stack of the call's thread.
class GenerateCall {
 public:
  GenerateCall(Gateway& gateway, const IncomingCall& call, const v1::GenerateRequest& request,
               std::shared_ptr<CallControl> control, const AnswerSink& sink)
      : gateway_(gateway),
        call_(call),
        request_(request),
        shared_control_(std::move(control)),
        control_(*shared_control_),
        sink_(sink) {}

  absl::Status Run();

 private:
  absl::Status Answer();
  absl::Status Decide();
  // Answers from the store when request_id was answered before.
  absl::StatusOr<bool> Replay();
  void JudgeReplayed(const v1::Decision& decision, int tokens, v1::LatencyReport& report) const;
  absl::Status RunOnWorker();
  absl::Status RunOnce(const v1::RunRequest& forwarded);
  v1::RunRequest ForwardedRequest() const;
  bool OnEvent(v1::RunResponse& event);
  void OnDelta(v1::GenerateDelta& delta);
  void OnFinished(v1::GenerateFinished& finished);
  void Learn(const v1::GenerateFinished& finished, const v1::Latency& measured);
  void Record(const v1::GenerateFinished& finished);
  void OfferAudit(const v1::GenerateFinished& finished);
  int64_t Now() const { return gateway_.clock_.SteadyNanos(); }

  Gateway& gateway_;
  const IncomingCall& call_;
  const v1::GenerateRequest& request_;
  const std::shared_ptr<CallControl> shared_control_;
  CallControl& control_;
  const AnswerSink& sink_;
  std::string app_id_;
  std::string digest_;
  Gateway::Prepared prepared_;
  int64_t queued_ns_ = 0;   // ready to run
  int64_t granted_ns_ = 0;  // given to the worker
  int64_t first_token_ns_ = 0;
  int64_t last_token_ns_ = 0;
  uint32_t tokens_ = 0;
  bool finished_ = false;
  bool reader_gone_ = false;
};

absl::Status GenerateCall::Run() {
  WITHY_ASSIGN_OR_RETURN(app_id_, gateway_.Authenticate(call_.token, control_.deadline()));
  WITHY_RETURN_IF_ERROR(ValidateGenerate(request_));
  if (request_.request_id().empty()) return Answer();
  const Gateway::RequestName name(app_id_, request_.request_id());
  if (!gateway_.BeginRequest(name)) {
    return rpc::WithRetryAfter(
        absl::AbortedError(absl::StrCat(
            "request_id \"", request_.request_id(),
            "\" is being answered right now: retry to get its result when it is done")),
        500);
  }
  absl::Status status = Answer();
  gateway_.EndRequest(name);
  return status;
}

absl::Status GenerateCall::Answer() {
  // Not before: of calls with one request_id this is the one that is answered.
  const Gateway::CancelScope cancellable(gateway_, call_.id,
                                         {app_id_, request_.request_id(), shared_control_});
  WITHY_ASSIGN_OR_RETURN(const bool replayed, Replay());
  if (replayed) return absl::OkStatus();
  WITHY_RETURN_IF_ERROR(Decide());
  queued_ns_ = Now();
  const Gateway::RunsGuard runs(gateway_.prober_.get());
  const OtherCall work{.prefill_tokens = prepared_.shape.prefill_tokens,
                       .remaining_tokens = prepared_.shape.max_tokens,
                       .resident_tokens = prepared_.shape.resident_tokens,
                       .open_ended = request_.limits().max_tokens() == 0};
  WITHY_RETURN_IF_ERROR(
      gateway_.calls_.WaitForSlot(prepared_.lane, prepared_.key, work, prepared_.demand, control_));
  granted_ns_ = Now();
  const CallTable::Counts counts = gateway_.calls_.counts();
  gateway_.metrics_.SetLoad(counts.running, counts.waiting);
  return RunOnWorker();
}

// Decides, and tells the caller.
absl::Status GenerateCall::Decide() {
  WITHY_ASSIGN_OR_RETURN(prepared_,
                         gateway_.Prepare(app_id_, request_, call_, control_.deadline()));
  gateway_.metrics_.Decided(prepared_.decision.reason(), prepared_.pruned.pruned_words);
  v1::GenerateResponse message;
  v1::GenerateStarted& started = *message.mutable_started();
  started.set_call_id(CallName(call_.id));
  *started.mutable_decision() = prepared_.decision;
  started.set_queue_position(prepared_.queue_position);
  started.set_model(prepared_.worker->model().name());
  if (!sink_(std::move(message))) return absl::CancelledError("the caller went away");
  return absl::OkStatus();
}

absl::StatusOr<bool> GenerateCall::Replay() {
  if (request_.request_id().empty()) return false;
  digest_ = RequestDigest(request_);
  v1::FindResultRequest find;
  find.set_app_id(app_id_);
  find.set_request_id(request_.request_id());
  find.set_request_digest(digest_);
  absl::StatusOr<v1::FindResultResponse> found =
      gateway_.backends_.FindResult(find, control_.deadline());
  if (absl::IsNotFound(found.status())) return false;
  WITHY_RETURN_IF_ERROR(found.status());

  v1::StoredResult& result = *found->mutable_result();
  const int tokens = result.tokens_size();
  v1::GenerateResponse message;
  v1::GenerateStarted& started = *message.mutable_started();
  started.set_call_id(CallName(call_.id));
  *started.mutable_decision() = result.decision();
  started.set_replayed(true);
  started.set_model(result.model());
  sink_(std::move(message));
  message.Clear();
  message.mutable_delta()->set_text(result.finished().text());
  *message.mutable_delta()->mutable_tokens() = std::move(*result.mutable_tokens());
  sink_(std::move(message));
  message.Clear();
  *message.mutable_finished() = std::move(*result.mutable_finished());
  JudgeReplayed(result.decision(), tokens, *message.mutable_finished()->mutable_latency());
  sink_(std::move(message));
  gateway_.metrics_.Replayed();
  return true;
}

// The worker stored what it measured, and knows no SLO.
void GenerateCall::JudgeReplayed(const v1::Decision& decision, int tokens,
                                 v1::LatencyReport& report) const {
  Prediction full;
  full.ttft_ms = decision.full_model().ttft_ms();
  full.tpot_ms = decision.full_model().tpot_ms();
  full.end_to_end_ms = decision.full_model().end_to_end_ms();
  full.answer_tokens = std::max(2.0, decision.answer_tokens());
  full.ramp_ms = decision.full_model_ramp_ms();
  full.growth_ms = decision.full_model_growth_ms();
  const SloTargets judged = Tolerate(request_.slo(), ResolveSlo(request_.slo(), full));
  report.set_slo_met(Meets(judged, report.measured(), tokens));
}

// A worker that dies before the first token, or was restarted since the call was decided, is given
// one more chance: nobody has seen anything of the answer yet.
absl::Status GenerateCall::RunOnWorker() {
  absl::Status status = RunOnce(ForwardedRequest());
  if (!WorkerWent(status)) return status;
  spdlog::warn("call {}: {}{}", CallName(call_.id), std::string(status.message()),
               tokens_ == 0 ? "; trying once more" : "");
  if (tokens_ > 0) return status;
  gateway_.ForgetWorker(prepared_.lane);
  if (!gateway_.backends_.WaitForWorker(prepared_.lane, absl::Now() + kRestartWait, control_)) {
    const absl::Status ended = control_.Check();
    return ended.ok() ? status : ended;
  }
  // It may have answered, and stored the answer, before it went.
  WITHY_ASSIGN_OR_RETURN(const bool replayed, Replay());
  if (replayed) return absl::OkStatus();
  gateway_.metrics_.Retried();
  // It may serve another model now.
  WITHY_RETURN_IF_ERROR(Decide());
  return RunOnce(ForwardedRequest());
}

absl::Status GenerateCall::RunOnce(const v1::RunRequest& forwarded) {
  absl::Status status =
      gateway_.backends_.Run(prepared_.lane, forwarded, control_,
                             [this](v1::RunResponse& event) { return OnEvent(event); });
  if (finished_ && !reader_gone_) return absl::OkStatus();  // whatever has come since
  if (absl::Status ended = control_.Check(); !ended.ok()) return ended;
  if (reader_gone_) return absl::CancelledError("the caller went away");
  if (status.ok()) {
    status = absl::UnavailableError(
        absl::StrCat(ToAbsl(ProcessOf(prepared_.lane)), " ended the answer without a result"));
  }
  if (absl::IsUnavailable(status) && tokens_ > 0) {
    return rpc::WithRetryAfter(
        Annotate(status, absl::StrCat("the answer broke off after ", tokens_, " tokens")), 1000);
  }
  return status;
}

v1::RunRequest GenerateCall::ForwardedRequest() const {
  v1::RunRequest run;
  run.set_call_id(call_.id);
  run.set_app_id(app_id_);
  run.set_context_id(request_.context_id());
  *run.mutable_prompt() = request_.prompt();
  *run.mutable_sampling() = request_.sampling();
  if (!request_.sampling().has_seed()) {
    run.mutable_sampling()->set_seed(request_.request_id().empty()
                                         ? RandomId64()
                                         : SeedOf(app_id_, request_.request_id(), digest_));
  }
  *run.mutable_limits() = request_.limits();
  if (request_.limits().max_tokens() == 0) run.set_expected_tokens(prepared_.shape.max_tokens);
  run.set_report_progress(request_.report_progress());
  run.set_model_level_percent(prepared_.decision.model_level_percent());
  run.set_speculation(request_.speculation());
  run.set_request_id(request_.request_id());
  run.set_request_digest(digest_);
  run.set_worker_instance(prepared_.worker->instance());
  run.set_priority(request_.priority());
  run.set_deadline_steady_ns(prepared_.key.deadline_ns);
  *run.mutable_decision() = prepared_.decision;
  FillKept(prepared_.pruned, run.mutable_kept());
  run.set_pruned_words(prepared_.pruned.pruned_words);
  run.set_level_fixed(request_.model_level_percent() != 0);
  run.set_tpot_limit_ms(prepared_.demand.tpot_limit_ms);
  run.set_ramp_ms(prepared_.demand.ramp_ms);
  run.set_end_by_steady_ns(prepared_.demand.end_by_ns);
  run.set_first_token_by_steady_ns(prepared_.demand.first_token_by_ns);
  return run;
}

bool GenerateCall::OnEvent(v1::RunResponse& event) {
  switch (event.event_case()) {
    case v1::RunResponse::kAccepted:
      return true;
    case v1::RunResponse::kDelta:
      OnDelta(*event.mutable_delta());
      break;
    case v1::RunResponse::kFinished:
      OnFinished(*event.mutable_finished());
      break;
    case v1::RunResponse::kProgress:
      break;
    case v1::RunResponse::EVENT_NOT_SET:
      return true;
  }
  v1::GenerateResponse message;
  if (event.has_progress()) {
    *message.mutable_progress() = event.progress();
  } else if (event.has_delta()) {
    message.mutable_delta()->Swap(event.mutable_delta());
  } else {
    message.mutable_finished()->Swap(event.mutable_finished());
  }
  reader_gone_ = !sink_(std::move(message));
  return !reader_gone_;
}

void GenerateCall::OnDelta(v1::GenerateDelta& delta) {
  const uint32_t tokens = static_cast<uint32_t>(delta.tokens_size());
  if (tokens == 0) return;
  last_token_ns_ = Now();
  if (tokens_ == 0) {
    first_token_ns_ = last_token_ns_;
    gateway_.calls_.FirstToken(call_.id);
  }
  tokens_ += tokens;
  gateway_.calls_.Generated(call_.id, tokens);
}

void GenerateCall::OnFinished(v1::GenerateFinished& finished) {
  finished_ = true;
  if (first_token_ns_ == 0) first_token_ns_ = last_token_ns_ = Now();
  v1::LatencyReport& report = *finished.mutable_latency();
  v1::Latency measured;
  measured.set_ttft_ms(Millis(first_token_ns_ - call_.arrived_ns));
  measured.set_tpot_ms(tokens_ > 1 ? Millis(last_token_ns_ - first_token_ns_) / (tokens_ - 1)
                                   : 0.0);
  measured.set_end_to_end_ms(Millis(last_token_ns_ - call_.arrived_ns));
  Learn(finished, measured);
  *report.mutable_measured() = measured;
  report.set_slo_met(Meets(prepared_.judged, measured, tokens_));
  report.set_tlm_ms(prepared_.tlm_ms);
  report.set_queue_ms(report.queue_ms() + Millis(granted_ns_ - call_.arrived_ns) -
                      prepared_.tlm_ms);
  Record(finished);
  OfferAudit(finished);
}

void GenerateCall::Learn(const v1::GenerateFinished& finished, const v1::Latency& measured) {
  if (finished.reason() == v1::FINISH_REASON_CANCELLED || tokens_ == 0) return;
  const v1::LatencyReport& report = finished.latency();
  const DecodeSurroundings around = gateway_.calls_.Surroundings(call_.id);
  Observation seen;
  seen.level = prepared_.shape.level;
  seen.level_percent = prepared_.shape.level_percent;
  seen.resident_tokens = finished.usage().reused_tokens();
  // The pace of several levels says nothing of one.
  const auto& levels = finished.model_levels_percent();
  const bool as_decided =
      levels.empty() || levels.Get(0) == prepared_.decision.model_level_percent();
  if (as_decided && report.prefill_ms() > 0) {
    seen.prefilled_tokens = finished.usage().prefilled_tokens();
  }
  seen.prefill_ms = report.prefill_ms();
  // What is neither waiting nor TLM nor prefill: preparing the call, its lease, the way there and
  // back.
  const int64_t active_ns = (queued_ns_ - call_.arrived_ns) + (first_token_ns_ - granted_ns_);
  seen.overhead_ms =
      std::max(0.0, Millis(active_ns) - prepared_.tlm_ms - report.queue_ms() - report.prefill_ms());
  seen.decoded_tokens = tokens_ - 1;
  if (as_decided && levels.size() <= 1) seen.decode_ms = Millis(last_token_ns_ - first_token_ns_);
  seen.mean_decode_rows = around.mean_rows;
  seen.other_depth_tokens = around.other_depth_tokens;
  seen.foreign_prefill_ms =
      ForeignPrefillMs(prepared_.cost, gateway_.live(prepared_.lane), around.foreign_prefill_tokens,
                       around.foreign_prefill_context);
  seen.app = app_id_;
  seen.ttft_share = measured.ttft_ms() / prepared_.predicted.ttft_ms;
  if (seen.decode_ms > 0)
    seen.tpot_share = measured.tpot_ms() / prepared_.predicted.TpotMs(tokens_);
  seen.complete = finished.reason() == v1::FINISH_REASON_END_OF_TURN ||
                  finished.reason() == v1::FINISH_REASON_STOP_STRING;
  seen.full_alone = around.alone && as_decided && prepared_.decision.model_level_percent() == 100;
  gateway_.LearnFrom(prepared_.lane, prepared_.cost, seen);
}

// Apps that ask for no speed are always answered by the full model.
void GenerateCall::OfferAudit(const v1::GenerateFinished& finished) {
  if (gateway_.auditor_ == nullptr || prepared_.lane != Lane::kTarget || !prepared_.judged.any() ||
      finished.reason() != v1::FINISH_REASON_END_OF_TURN) {
    return;
  }
  gateway_.auditor_->Offer(ForwardedRequest(), tokens_,
                           LimitsOf(prepared_.lane, prepared_.worker->model()).levels_percent);
}

void GenerateCall::Record(const v1::GenerateFinished& finished) {
  telemetry::Recorder& recorder = gateway_.recorder_;
  telemetry::RecordDuration(recorder, Phase::kQueue, call_.id, call_.arrived_ns, granted_ns_);
  telemetry::RecordDuration(recorder, Phase::kTtft, call_.id, call_.arrived_ns, first_token_ns_);
  if (tokens_ > 1) {
    const int64_t mean_ns = (last_token_ns_ - first_token_ns_) / (tokens_ - 1);
    telemetry::RecordDuration(recorder, Phase::kTpot, call_.id, first_token_ns_,
                              first_token_ns_ + mean_ns, tokens_ - 1);
  }
  telemetry::RecordDuration(recorder, Phase::kEndToEnd, call_.id, call_.arrived_ns, last_token_ns_,
                            tokens_);
  if (prepared_.judged.any()) gateway_.metrics_.SloJudged(finished.latency().slo_met());
}

absl::Status Gateway::Generate(const IncomingCall& call, const v1::GenerateRequest& request,
                               const std::shared_ptr<CallControl>& control,
                               const AnswerSink& sink) {
  GenerateCall generate(*this, call, request, control, sink);
  return generate.Run();
}

}  // namespace withy::orchestrator
