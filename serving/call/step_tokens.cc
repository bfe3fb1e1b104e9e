#include "serving/call/step_tokens.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/status.h"
#include "engine/session/solo_answer.h"

namespace withy::serving {
namespace {

// A piece of a prompt most of whose rows had KV before is computed again.
telemetry::Phase PhaseOf(const StepBatch::Part& part) {
  using telemetry::Phase;
  if (part.decode) return part.rows > 1 ? Phase::kVerify : Phase::kDecode;
  const Session& session = *part.call->session;
  const int32_t of_context = session.usage().context_tokens - session.rows().computed();
  const bool again = part.call->request.rebuild || 2 * of_context > part.rows;
  return again ? Phase::kRecompute : Phase::kPrefill;
}

// What a step gave a draft head of a call.
struct CallFeatures {
  Call* call;
  std::span<const engine::Row> rows;
  std::span<const float> features;
};

}  // namespace

std::optional<size_t> LevelOf(const engine::ModelInfo& model, const Call& call) {
  const int32_t index = engine::LevelIndex(model, call.session->level_percent());
  return index < 0 ? std::nullopt : std::optional(static_cast<size_t>(index));
}

StepTokens::StepTokens(engine::Model& model, policy::StepLearner& learner, Speculator& speculator,
                       StepResults& results, Clock& clock, WorkerMetrics& metrics)
    : model_(model),
      learner_(learner),
      speculator_(speculator),
      results_(results),
      clock_(clock),
      metrics_(metrics),
      vocab_(static_cast<size_t>(model.info().vocab_size)) {}

std::vector<Call*> StepTokens::HandOut(const StepBatch& batch, std::span<const float> logits) {
  const int64_t ended_ns = clock_.SteadyNanos();
  const double share =
      learner_.Observe(batch.plan, {.ms = Millis(batch.computed_ns),
                                    .started_ns = batch.started_ns,
                                    .ended_ns = ended_ns,
                                    .preempted = batch.preempted,
                                    .streams_weights = model_.weight_stats().streams()});
  if (learner_.board().passes() > 0) metrics_.Board(learner_.board());
  size_t first_logit = 0, first_row = 0;
  bool first_tokens = false, urgent = false;
  const StepBatch::Decoding decoding = batch.decoding();
  std::vector<Call*> going_on;
  std::vector<CallFeatures> features;
  for (const StepBatch::Part& part : batch.parts) {
    Call& call = *part.call;
    const std::span<const engine::Row> rows =
        std::span(batch.rows).subspan(first_row, static_cast<size_t>(part.rows));
    first_row += rows.size();
    ++call.steps;
    const int32_t token =
        part.decode ? call.session->answer().tokens() : call.session->rows().computed();
    metrics_.Step(call.request.call_id, PhaseOf(part), part.rows, token, batch.started_ns,
                  ended_ns);
    call.session->rows().Advance(part.rows);
    if (part.logits_rows > 0) {
      const bool first = call.times.first_token_ns == 0;
      first_tokens = first_tokens || first;
      if (first) call.pacer.OnPromptStep(share);
      urgent = urgent || (first && call.pacer.FirstTokenIsUrgent(ended_ns));
      const size_t size = static_cast<size_t>(part.logits_rows) * vocab_;
      const bool taken = TakeTokens(call, logits.subspan(first_logit, size));
      first_logit += size;
      if (!taken) continue;
      if (part.decode) {
        speculator_.Observe(call, {.rows = part.rows,
                                   .batch_calls = decoding.calls,
                                   .batch_rows = decoding.rows,
                                   .ms = Millis(batch.computed_ns),
                                   .alone = batch.parts.size() == 1 && !batch.preempted,
                                   .started_ns = batch.started_ns,
                                   .ended_ns = ended_ns});
      }
    } else if (call.request.report_progress && !part.decode) {
      const int32_t tokens = call.session->usage().prefilled_tokens;
      call.sink->Progress(tokens - call.session->rows().pending(), tokens);
    }
    going_on.push_back(&call);
    const bool over = call.session->answer().finished();
    if (!over && !part.features.empty()) features.push_back({&call, rows, part.features});
  }
  for (const CallFeatures& of : features) {
    speculator_.TakeFeatures(*of.call, of.rows, of.features);
  }
  // Every token has been told by now; what is next for their calls makes work for other threads.
  const auto threads = static_cast<unsigned>(model_.threads());
  if (first_tokens && threads >= std::thread::hardware_concurrency()) {
    std::this_thread::sleep_for(std::chrono::microseconds(policy::FirstTokenLeadUs(urgent)));
  }
  return going_on;
}

// Picks a call's next tokens and tells them; false: the call has failed and is gone.
bool StepTokens::TakeTokens(Call& call, std::span<const float> logits) {
  const int32_t token = call.session->answer().tokens();
  const int64_t started = clock_.SteadyNanos();
  const auto deltas = call.session->TakeLogits(logits);
  const int64_t now = clock_.SteadyNanos();
  if (!deltas.ok()) {
    results_.OnRefused(call, Annotate(deltas.status(), "sampling"));
    return false;
  }
  metrics_.Sampling(call.request.call_id, deltas->size(), token, started, now);
  if (call.times.first_token_ns == 0) {
    call.times.first_token_ns = now;
    call.times.prefill = now - call.phase_since_ns;
  }
  call.times.last_token_ns = now;
  const auto tokens = std::count_if(deltas->begin(), deltas->end(),
                                    [](const auto& delta) { return delta.token.has_value(); });
  if (tokens > 0) {
    call.pacer.OnTokens(now, static_cast<int32_t>(tokens));
    if (std::exchange(call.level_changed, false)) {
      call.sink->LevelChanged(call.session->level_percent());
    }
  }
  for (const engine::AnswerDelta& delta : *deltas) {
    if (delta.token.has_value() || !delta.text.empty()) call.sink->Delta(delta);
  }
  if (call.session->answer().finished()) call.sink->Flush();  // the record comes first
  return true;
}

}  // namespace withy::serving
