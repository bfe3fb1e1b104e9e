#include "orchestrator/call/generate.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/call_name.h"
#include "base/clock.h"
#include "base/ids.h"
#include "base/status.h"
#include "orchestrator/call/digest.h"
#include "orchestrator/call/prepare.h"
#include "orchestrator/call/refusals.h"
#include "orchestrator/call/validate.h"
#include "policy/call/finished_call.h"
#include "rpc/status.h"
#include "wire/call_targets.h"
#include "wire/decision.h"
#include "withy/v1/profiler.pb.h"

namespace withy::orchestrator {
namespace {

using telemetry::Phase;

constexpr double kMillisPerUnit = 1000;

bool WorkerWent(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status);
}

// Around a call that is given to a worker: the board is not measured meanwhile.
class RunsScope {
 public:
  explicit RunsScope(Prober* prober) : prober_(prober) {
    if (prober_ != nullptr) prober_->CallStarts();
  }
  ~RunsScope() {
    if (prober_ != nullptr) prober_->CallEnds();
  }
  RunsScope(const RunsScope&) = delete;
  RunsScope& operator=(const RunsScope&) = delete;

 private:
  Prober* const prober_;
};

// Around a call that is given to a worker: the board's energy is charged to it.
class ChargeScope {
 public:
  ChargeScope(BoardWatch& board, uint64_t call) : board_(board), call_(call) {
    board_.CallBegins(call_);
  }
  ~ChargeScope() { board_.CallEnds(call_); }
  ChargeScope(const ChargeScope&) = delete;
  ChargeScope& operator=(const ChargeScope&) = delete;

 private:
  BoardWatch& board_;
  const uint64_t call_;
};

// Lives on the stack of the call's thread.
class GenerateCall {
 public:
  GenerateCall(const CallParts& parts, const IncomingCall& call, const v1::GenerateRequest& request,
               std::shared_ptr<CallControl> control, const AnswerSink& sink)
      : parts_(parts),
        call_(call),
        request_(request),
        shared_control_(std::move(control)),
        control_(*shared_control_),
        sink_(sink) {}

  absl::Status Run();

 private:
  absl::Status RunNamed();
  void Report(const absl::Status& status);
  absl::Status Answer();
  absl::Status Decide();
  absl::Status TellStart();
  // Answers from the store when request_id was answered before.
  absl::StatusOr<bool> Replay();
  void JudgeReplayed(const v1::Decision& decision, int tokens, v1::LatencyReport& report) const;
  absl::Status RunOnWorker();
  absl::Status RunUnlessNamed();
  absl::Status RunOnce(const v1::RunRequest& forwarded);
  v1::RunRequest ForwardedRequest() const;
  bool OnEvent(v1::RunResponse& event);
  void OnDelta(v1::GenerateDelta& delta);
  void OnFinished(v1::GenerateFinished& finished);
  void SpendUnfinished();
  void Learn(const v1::GenerateFinished& finished, const policy::Latency& measured);
  void Record(const v1::GenerateFinished& finished);
  void OfferAudit(const v1::GenerateFinished& finished);
  int64_t Now() const { return parts_.clock.SteadyNanos(); }

  const CallParts& parts_;
  const IncomingCall& call_;
  const v1::GenerateRequest& request_;
  const std::shared_ptr<CallControl> shared_control_;
  CallControl& control_;
  const AnswerSink& sink_;
  std::string app_id_;
  std::string app_;  // its name
  std::string digest_;
  Prepared prepared_;
  v1::Decision decision_;   // of prepared_
  double slowdown_ = 0;     // of the board, then
  v1::CallReport report_;   // as far as it is known
  int64_t queued_ns_ = 0;   // ready to run
  int64_t granted_ns_ = 0;  // given to the worker
  int64_t first_token_ns_ = 0;
  int64_t last_token_ns_ = 0;
  uint32_t tokens_ = 0;
  bool start_told_ = false;
  bool finished_ = false;
  bool reader_gone_ = false;
};

absl::Status GenerateCall::Run() {
  absl::Status status = RunNamed();
  if (!app_id_.empty()) Report(status);
  return status;
}

// For those who ask why a call was slow.
void GenerateCall::Report(const absl::Status& status) {
  report_.set_call_id(call_.id);
  report_.set_app(parts_.apps.NameOf(app_id_));
  report_.set_request_id(request_.request_id());
  report_.set_arrived_ns(call_.arrived_ns);
  report_.set_granted_ns(granted_ns_);
  report_.set_first_token_ns(first_token_ns_);
  report_.set_ended_ns(Now());
  report_.set_slo_given(prepared_.judged().any() || request_.slo().energy_mj() > 0);
  if (prepared_.worker != nullptr) {
    report_.set_model(prepared_.worker->model().name());
    *report_.mutable_decision() = decision_;
    report_.set_queue_position(prepared_.queue_position);
    report_.set_board_slowdown(slowdown_);
  }
  FillError(status, &report_);
  // It ended before anything was decided.
  const bool refused = !status.ok() && !absl::IsCancelled(status) && prepared_.worker == nullptr;
  report_.set_refusals(refused ? 1 : 0);
  parts_.backends.ReportCall(std::move(report_));
}

absl::Status GenerateCall::RunNamed() {
  WITHY_ASSIGN_OR_RETURN(app_id_, parts_.apps.Authenticate(call_.caller, control_.deadline()));
  WITHY_RETURN_IF_ERROR(ValidateGenerate(request_));
  if (request_.request_id().empty()) return Answer();
  const CallRegistry::RequestName name(app_id_, request_.request_id());
  WITHY_RETURN_IF_ERROR(parts_.registry.BeginRequest(name, control_));
  absl::Status status = Answer();
  parts_.registry.EndRequest(name);
  return status;
}

absl::Status GenerateCall::Answer() {
  // Not before: of calls with one request_id this is the one that is answered.
  const CallRegistry::Cancellable cancellable(parts_.registry, call_.id,
                                              {app_id_, request_.request_id()}, shared_control_);
  WITHY_ASSIGN_OR_RETURN(const bool replayed, Replay());
  if (replayed) return absl::OkStatus();
  app_ = parts_.apps.NameOf(app_id_);
  WITHY_ASSIGN_OR_RETURN(const AppBudgets::Place place, parts_.budgets.Begin(app_));
  WITHY_RETURN_IF_ERROR(Decide());
  queued_ns_ = Now();
  if (prepared_.queue_position > 0) WITHY_RETURN_IF_ERROR(TellStart());
  const RunsScope runs(parts_.prober);
  WITHY_RETURN_IF_ERROR(parts_.calls.WaitForSlot(
      prepared_.lane, prepared_.turn, prepared_.plan.work, prepared_.plan.demand, control_));
  granted_ns_ = Now();
  const ChargeScope charge(parts_.board, call_.id);
  const policy::Admission::Counts counts = parts_.calls.counts();
  parts_.metrics.SetLoad(counts.running, counts.waiting);
  absl::Status status = RunOnWorker();
  if (!finished_) SpendUnfinished();
  return status;
}

// A call that broke off is charged with its prompt and with what was made of the answer.
void GenerateCall::SpendUnfinished() {
  const double energy_mj = parts_.board.CallEnds(call_.id);
  parts_.budgets.Spend(app_, prepared_.tokens.prompt_tokens() + tokens_,
                       energy_mj / kMillisPerUnit);
}

absl::Status GenerateCall::Decide() {
  WITHY_ASSIGN_OR_RETURN(prepared_, Prepare(parts_, app_id_, request_, call_, control_.deadline()));
  decision_ = wire::ToWire(prepared_.plan.decision);
  slowdown_ = parts_.workers.Live(prepared_.lane).slowdown;
  parts_.metrics.Decided(decision_.reason(), prepared_.pruned.pruned_words);
  return absl::OkStatus();
}

// Tells the caller what was decided, once: when the call begins to wait, or else when a worker has
// taken it, because a worker that was restarted since is decided for anew.
absl::Status GenerateCall::TellStart() {
  if (std::exchange(start_told_, true)) return absl::OkStatus();
  v1::GenerateResponse message;
  v1::GenerateStarted& started = *message.mutable_started();
  started.set_call_id(CallName(call_.id));
  *started.mutable_decision() = decision_;
  started.set_queue_position(prepared_.queue_position);
  started.set_model(prepared_.worker->model().name());
  started.set_answer_begins_in_thought(prepared_.tokens.answer_begins_in_thought());
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
      parts_.backends.FindResult(find, control_.deadline());
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
  started.set_answer_begins_in_thought(result.finished().answer_begins_in_thought());
  if (!std::exchange(start_told_, true)) sink_(std::move(message));
  message.Clear();
  message.mutable_delta()->set_text(result.finished().text());
  *message.mutable_delta()->mutable_tokens() = std::move(*result.mutable_tokens());
  sink_(std::move(message));
  message.Clear();
  *message.mutable_finished() = std::move(*result.mutable_finished());
  JudgeReplayed(result.decision(), tokens, *message.mutable_finished()->mutable_latency());
  sink_(std::move(message));
  parts_.metrics.Replayed();
  report_.set_replayed(true);
  return true;
}

// The worker stored what it measured, and knows no SLO.
void GenerateCall::JudgeReplayed(const v1::Decision& decision, int tokens,
                                 v1::LatencyReport& report) const {
  const policy::Slo slo = wire::SloFromWire(request_.slo());
  const policy::CallTargets judged =
      policy::Tolerate(slo, policy::ResolveSlo(slo, wire::FullModelFromWire(decision)));
  report.set_slo_met(policy::Meets(judged, wire::LatencyFromWire(report.measured()), tokens));
}

// A worker that dies before the first token, or was restarted since the call was decided, is given
// one more chance: nobody has seen anything of the answer yet.
absl::Status GenerateCall::RunOnWorker() {
  absl::Status status = RunUnlessNamed();
  if (!WorkerWent(status)) return status;
  spdlog::warn("call {}: {}{}", CallName(call_.id), std::string(status.message()),
               tokens_ == 0 ? "; trying once more" : "");
  if (tokens_ > 0) return status;
  parts_.workers.Forget(prepared_.lane);
  if (!parts_.backends.WaitForWorker(prepared_.lane, absl::Now() + kRestartWait, control_)) {
    const absl::Status ended = control_.Check();
    return ended.ok() ? status : ended;
  }
  // It may have answered, and stored the answer, before it went.
  WITHY_ASSIGN_OR_RETURN(const bool replayed, Replay());
  if (replayed) return absl::OkStatus();
  parts_.metrics.Retried();
  // It may serve another model now.
  WITHY_RETURN_IF_ERROR(Decide());
  return RunUnlessNamed();
}

// Runs the call. Where the worker still ends an answer to the same request_id, whose caller has
// left, waits until that is over; it may have been stored.
absl::Status GenerateCall::RunUnlessNamed() {
  constexpr absl::Duration kLook = absl::Milliseconds(50);
  const absl::Time give_up = absl::Now() + kRestartWait;
  while (true) {
    absl::Status status = RunOnce(ForwardedRequest());
    const bool named = absl::IsAborted(status) && !request_.request_id().empty() &&
                       absl::StrContains(status.message(), "request_id");
    if (!named || tokens_ > 0 || absl::Now() >= give_up) return status;
    absl::SleepFor(kLook);
    WITHY_RETURN_IF_ERROR(control_.Check());
    WITHY_ASSIGN_OR_RETURN(const bool replayed, Replay());
    if (replayed) return absl::OkStatus();
  }
}

absl::Status GenerateCall::RunOnce(const v1::RunRequest& forwarded) {
  absl::Status status =
      parts_.backends.Run(prepared_.lane, forwarded, control_,
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
                                         ? RandomId64() & kMaxExactSeed
                                         : SeedOf(app_id_, request_.request_id(), digest_));
  }
  *run.mutable_limits() = request_.limits();
  if (request_.limits().max_tokens() == 0) run.set_expected_tokens(prepared_.plan.shape.max_tokens);
  run.set_report_progress(request_.report_progress());
  run.set_truncation(request_.truncation());
  if (request_.has_output_format()) *run.mutable_output_format() = request_.output_format();
  run.set_record_without_thought(call_.record_without_thought);
  run.set_model_level_percent(prepared_.plan.decision.model_level_percent);
  run.set_speculation(request_.speculation());
  run.set_request_id(request_.request_id());
  run.set_request_digest(digest_);
  run.set_worker_instance(prepared_.worker->instance());
  wire::TurnToWire(prepared_.turn, &run);
  *run.mutable_decision() = decision_;
  FillKept(prepared_.pruned, run.mutable_kept());
  run.set_pruned_words(prepared_.pruned.pruned_words);
  run.set_level_fixed(request_.model_level_percent() != 0);
  *run.mutable_targets() = wire::ToWire(prepared_.judged());
  return run;
}

bool GenerateCall::OnEvent(v1::RunResponse& event) {
  parts_.workers.TellSlowdown(prepared_.lane, event.board_slowdown());
  reader_gone_ = reader_gone_ || !TellStart().ok();
  if (reader_gone_) return false;
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
  // Ends when the message is on its way, or the app's connection has room again.
  std::optional<telemetry::ScopedSpan> streamed;
  if (message.has_delta()) streamed.emplace(parts_.recorder, Phase::kStream, call_.id, tokens_);
  reader_gone_ = !sink_(std::move(message));
  return !reader_gone_;
}

void GenerateCall::OnDelta(v1::GenerateDelta& delta) {
  const uint32_t tokens = static_cast<uint32_t>(delta.tokens_size());
  if (tokens == 0) return;
  last_token_ns_ = Now();
  if (tokens_ == 0) {
    first_token_ns_ = last_token_ns_;
    parts_.calls.FirstToken(call_.id);
  }
  tokens_ += tokens;
  parts_.calls.Generated(call_.id, tokens);
}

void GenerateCall::OnFinished(v1::GenerateFinished& finished) {
  finished_ = true;
  if (first_token_ns_ == 0) first_token_ns_ = last_token_ns_ = Now();
  v1::LatencyReport& report = *finished.mutable_latency();
  const policy::Latency measured{
      .ttft_ms = Millis(first_token_ns_ - call_.arrived_ns),
      .tpot_ms = tokens_ > 1 ? Millis(last_token_ns_ - first_token_ns_) / (tokens_ - 1) : 0.0,
      .end_to_end_ms = Millis(last_token_ns_ - call_.arrived_ns)};
  Learn(finished, measured);
  *report.mutable_measured() = wire::ToWire(measured);
  const double energy_mj = parts_.board.CallEnds(call_.id);
  report.mutable_measured()->set_energy_mj(energy_mj);
  const double budget_mj = request_.slo().energy_mj();
  report.set_slo_met(budget_mj > 0 ? energy_mj <= budget_mj
                                   : policy::Meets(prepared_.judged(), measured, tokens_));
  report.set_tlm_ms(prepared_.tlm_ms);
  report.set_queue_ms(report.queue_ms() + Millis(granted_ns_ - call_.arrived_ns) -
                      prepared_.tlm_ms);
  const v1::Usage& usage = finished.usage();
  for (v1::BudgetLeft& left : parts_.budgets.Spend(
           app_, usage.context_tokens() + usage.prompt_tokens() + usage.completion_tokens(),
           energy_mj / kMillisPerUnit)) {
    *finished.add_budgets() = std::move(left);
  }
  *report_.mutable_usage() = usage;
  *report_.mutable_latency() = report;
  *report_.mutable_model_levels_percent() = finished.model_levels_percent();
  *report_.mutable_speculation() = finished.speculation();
  report_.set_explanation(finished.explanation());
  Record(finished);
  OfferAudit(finished);
}

void GenerateCall::Learn(const v1::GenerateFinished& finished, const policy::Latency& measured) {
  if (finished.reason() == v1::FINISH_REASON_CANCELLED || tokens_ == 0) return;
  const v1::LatencyReport& report = finished.latency();
  const auto& levels = finished.model_levels_percent();
  const bool first_as_decided =
      levels.empty() || levels.Get(0) == prepared_.plan.decision.model_level_percent;
  // Preparing the call, its lease, the way there and back.
  const int64_t active_ns = (queued_ns_ - call_.arrived_ns) + (first_token_ns_ - granted_ns_);
  const double known_ms = prepared_.tlm_ms + report.queue_ms() + report.prefill_ms();
  const policy::FinishedCall call{.app = app_id_,
                                  .measured = measured,
                                  .decode_ms = Millis(last_token_ns_ - first_token_ns_),
                                  .tokens = tokens_,
                                  .reused_tokens = finished.usage().reused_tokens(),
                                  .prefilled_tokens = finished.usage().prefilled_tokens(),
                                  .prefill_ms = report.prefill_ms(),
                                  .overhead_ms = std::max(0.0, Millis(active_ns) - known_ms),
                                  .first_as_decided = first_as_decided,
                                  .all_as_decided = first_as_decided && levels.size() <= 1,
                                  .complete = finished.reason() == v1::FINISH_REASON_END_OF_TURN ||
                                              finished.reason() == v1::FINISH_REASON_TOOL_CALLS ||
                                              finished.reason() == v1::FINISH_REASON_STOP_STRING,
                                  .speedup = finished.speculation().speedup()};
  parts_.workers.Learn(
      prepared_.lane, prepared_.cost,
      policy::ObservationOf(prepared_.plan, call, parts_.calls.Surroundings(call_.id),
                            prepared_.cost, parts_.workers.Live(prepared_.lane)));
}

// Apps that ask for no speed are always answered by the full model.
void GenerateCall::OfferAudit(const v1::GenerateFinished& finished) {
  if (parts_.auditor == nullptr || prepared_.lane != policy::Lane::kTarget ||
      !prepared_.judged().any() ||
      (finished.reason() != v1::FINISH_REASON_END_OF_TURN &&
       finished.reason() != v1::FINISH_REASON_TOOL_CALLS)) {
    return;
  }
  parts_.auditor->Offer(ForwardedRequest(), tokens_, prepared_.worker->model(),
                        prepared_.tlm_fits ? AuditMeasure::kAnswers : AuditMeasure::kTokens);
}

void GenerateCall::Record(const v1::GenerateFinished& finished) {
  telemetry::Recorder& recorder = parts_.recorder;
  telemetry::RecordDuration(recorder, Phase::kQueue, call_.id, call_.arrived_ns, granted_ns_);
  // With the tokens of the prompt.
  telemetry::RecordDuration(recorder, Phase::kTtft, call_.id, call_.arrived_ns, first_token_ns_,
                            finished.usage().reused_tokens() + finished.usage().prefilled_tokens());
  if (tokens_ > 1) {
    const int64_t mean_ns = (last_token_ns_ - first_token_ns_) / (tokens_ - 1);
    telemetry::RecordDuration(recorder, Phase::kTpot, call_.id, first_token_ns_,
                              first_token_ns_ + mean_ns, tokens_ - 1);
  }
  telemetry::RecordDuration(recorder, Phase::kEndToEnd, call_.id, call_.arrived_ns, last_token_ns_,
                            tokens_);
  if (!prepared_.judged().any()) return;
  parts_.metrics.SloJudged(app_, {.id = call_.id,
                                  .targets = prepared_.judged(),
                                  .first_token_ns = first_token_ns_,
                                  .tokens = tokens_,
                                  .met = finished.latency().slo_met()});
}

}  // namespace

absl::Status Generate(const CallParts& parts, const IncomingCall& call,
                      const v1::GenerateRequest& request,
                      const std::shared_ptr<CallControl>& control, const AnswerSink& sink) {
  return GenerateCall(parts, call, request, control, sink).Run();
}

}  // namespace withy::orchestrator
