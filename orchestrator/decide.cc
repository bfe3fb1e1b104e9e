#include "orchestrator/decide.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace withy::orchestrator {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// A prediction equal to its target but for rounding meets it.
bool Within(double value_ms, double target_ms) { return value_ms <= target_ms * (1 + 1e-9); }

v1::Latency ToLatency(const Prediction& prediction) {
  v1::Latency latency;
  latency.set_ttft_ms(prediction.ttft_ms);
  latency.set_tpot_ms(prediction.tpot_ms);
  latency.set_end_to_end_ms(prediction.end_to_end_ms);
  return latency;
}

// Three or more digits that count, however small.
std::string Ms(double value) {
  return value < 100 ? absl::StrFormat("%.3g ms", value) : absl::StrFormat("%.0f ms", value);
}

std::string Figures(const Prediction& prediction) {
  return absl::StrCat("TTFT ", Ms(prediction.ttft_ms), ", TPOT ", Ms(prediction.tpot_ms),
                      ", end to end ", Ms(prediction.end_to_end_ms));
}

std::string Wanted(const SloTargets& targets) {
  std::vector<std::string> parts;
  if (targets.ttft_ms < kNoLimit) parts.push_back("TTFT " + Ms(targets.ttft_ms));
  if (targets.tpot_ms < kNoLimit) parts.push_back("TPOT " + Ms(targets.tpot_ms));
  if (targets.end_to_end_ms < kNoLimit) parts.push_back("end to end " + Ms(targets.end_to_end_ms));
  return absl::StrJoin(parts, ", ");
}

std::string ModelWords(uint32_t level_percent) {
  return level_percent == 100 ? "the whole model"
                              : absl::StrCat("the model at ", level_percent, " %");
}

bool MeetsPrediction(const SloTargets& targets, const Prediction& prediction) {
  return Within(prediction.ttft_ms, targets.ttft_ms) &&
         Within(prediction.tpot_ms, targets.tpot_ms) &&
         Within(prediction.end_to_end_ms, targets.end_to_end_ms);
}

// The highest level that meets the targets, else null. Candidates ascend.
const Candidate* BestMeeting(const std::vector<Candidate>& candidates, const SloTargets& targets) {
  for (auto it = candidates.rbegin(); it != candidates.rend(); ++it) {
    if (MeetsPrediction(targets, it->predicted)) return &*it;
  }
  return nullptr;
}

const Candidate* Fastest(const std::vector<Candidate>& candidates) {
  return &*std::min_element(candidates.begin(), candidates.end(),
                            [](const Candidate& a, const Candidate& b) {
                              return a.predicted.end_to_end_ms < b.predicted.end_to_end_ms;
                            });
}

struct Choice {
  const Candidate* candidate;
  v1::DecisionReason reason;
  std::string explanation;
};

Choice Choose(const DecisionInput& input, const std::vector<Candidate>& allowed,
              const SloTargets& targets) {
  if (!targets.any() && input.fixed_level_percent == 0) {
    const Candidate* full = &allowed.back();
    return {full, v1::DECISION_REASON_FULL_MEETS_SLO,
            "No SLO was given: " + ModelWords(full->level_percent) + " on the whole prompt."};
  }
  const Candidate* best = BestMeeting(allowed, targets);
  const Candidate* chosen = best != nullptr ? best : Fastest(allowed);
  if (input.fixed_level_percent != 0) {
    return {chosen, v1::DECISION_REASON_FIXED_BY_CALLER,
            absl::StrCat("The caller fixed ", ModelWords(chosen->level_percent),
                         best != nullptr ? "." : ", which is predicted to miss the SLO.")};
  }
  if (best == nullptr) {
    return {chosen, v1::DECISION_REASON_BEST_EFFORT,
            absl::StrCat("Nothing meets the SLO (", Wanted(targets),
                         "): ", ModelWords(chosen->level_percent),
                         ", the fastest there is, is predicted to take ",
                         Figures(chosen->predicted), ".")};
  }
  if (best == &allowed.back()) {
    return {best, v1::DECISION_REASON_FULL_MEETS_SLO,
            "The whole model on the whole prompt is predicted to meet the SLO (" + Wanted(targets) +
                ")."};
  }
  return {best, v1::DECISION_REASON_LATENCY_MODEL,
          absl::StrCat("The latency model chose ", ModelWords(best->level_percent),
                       ", the largest that meets the SLO (", Wanted(targets), ").")};
}

}  // namespace

bool SloTargets::any() const { return std::min({ttft_ms, tpot_ms, end_to_end_ms}) < kNoLimit; }

SloTargets ResolveSlo(const v1::Slo& slo, const Prediction& full_idle) {
  SloTargets targets{kNoLimit, kNoLimit, kNoLimit};
  if (slo.ttft_ratio() > 0) targets.ttft_ms = slo.ttft_ratio() * full_idle.ttft_ms;
  if (slo.tpot_ratio() > 0) targets.tpot_ms = slo.tpot_ratio() * full_idle.tpot_ms;
  if (slo.ttft_ms() > 0) targets.ttft_ms = slo.ttft_ms();
  if (slo.tpot_ms() > 0) targets.tpot_ms = slo.tpot_ms();
  if (slo.end_to_end_ms() > 0) targets.end_to_end_ms = slo.end_to_end_ms();
  return targets;
}

bool Meets(const SloTargets& targets, const v1::Latency& latency) {
  return Within(latency.ttft_ms(), targets.ttft_ms) && Within(latency.tpot_ms(), targets.tpot_ms) &&
         Within(latency.end_to_end_ms(), targets.end_to_end_ms);
}

absl::StatusOr<v1::Decision> Decide(const DecisionInput& input) {
  std::vector<Candidate> allowed;
  for (const Candidate& candidate : input.candidates) {
    if (input.fixed_level_percent == 0 || candidate.level_percent == input.fixed_level_percent) {
      allowed.push_back(candidate);
    }
  }
  if (allowed.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model_level_percent is ", input.fixed_level_percent,
                     ": the model has no such level; 0 lets withy decide"));
  }
  const SloTargets targets = ResolveSlo(input.slo, input.full_idle);
  const Choice choice = Choose(input, allowed, targets);
  const bool meets = MeetsPrediction(targets, choice.candidate->predicted);
  if (!meets && input.slo.strict()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the strict SLO (", Wanted(targets), ") cannot be met now; best attainable: ",
        Figures(choice.candidate->predicted), " with ", ModelWords(choice.candidate->level_percent),
        ". Relax slo, shorten the prompt, lower limits.max_tokens, or set slo.strict to false"));
  }
  v1::Decision decision;
  decision.set_model_level_percent(choice.candidate->level_percent);
  decision.set_prompt_level_percent(100);
  decision.set_speculation(false);
  decision.set_reason(choice.reason);
  decision.set_explanation(choice.explanation);
  if (input.speculation_wanted) {
    decision.set_explanation(choice.explanation +
                             " Speculation was asked for, but this server has none.");
  }
  decision.set_predicted_to_meet_slo(meets);
  *decision.mutable_predicted() = ToLatency(choice.candidate->predicted);
  *decision.mutable_full_model() = ToLatency(input.full_idle);
  decision.set_predicted_prompt_tokens(input.prompt_tokens);
  decision.set_predicted_reused_tokens(input.reused_tokens);
  return decision;
}

}  // namespace withy::orchestrator
