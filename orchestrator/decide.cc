#include "orchestrator/decide.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace withy::orchestrator {
namespace {

// Less is no promise: then what comes closest to the SLO is as good.
constexpr double kLeastPromise = 0.01;
// What each call that comes while this one takes the board loses by it, in right answers: it is
// late, or has to take less of the model to be in time.
constexpr double kLossOfNewcomer = 1;
// What a late answer costs, in right answers, beside not counting as one: an SLO is a promise, and
// a wrong answer in time breaks none.
constexpr double kLossOfLate = 1;
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

std::string Setting(const Candidate& candidate) {
  if (candidate.prompt_percent == 100) return ModelWords(candidate.level_percent);
  return absl::StrCat(candidate.prompt_percent, " % of the prompt's words and ",
                      ModelWords(candidate.level_percent));
}

bool MeetsPrediction(const SloTargets& targets, const Prediction& prediction) {
  return Within(prediction.ttft_ms, targets.ttft_ms) &&
         Within(prediction.tpot_ms, targets.tpot_ms) &&
         Within(prediction.end_to_end_ms, targets.end_to_end_ms);
}

// How a pair is judged: late answers are worth nothing, and what it takes of the board others miss.
struct Odds {
  const SloTargets& judged;
  const Reliability& reliability;
  bool tlm = false;  // it has read the prompt

  double InTime(const Prediction& predicted) const {
    return ChanceWithin(reliability.ttft, predicted.ttft_ms, judged.ttft_ms) *
           ChanceWithin(reliability.tpot, predicted.tpot_ms, judged.tpot_ms) *
           ChanceWithin(reliability.tpot, predicted.end_to_end_ms, judged.end_to_end_ms);
  }
  double Promise(const Candidate& candidate) const {
    return (tlm ? candidate.probability : candidate.expected) * InTime(candidate.predicted);
  }
  double Worth(const Candidate& candidate) const {
    return Promise(candidate) - kLossOfLate * (1 - InTime(candidate.predicted)) -
           kLossOfNewcomer * candidate.predicted.newcomers;
  }
};

// The one with the most worth of those that are predicted to meet what is judged, else of all; of
// equals the one with the most of both together. Null where it is not known how often each is
// right, or nothing has a chance.
const Candidate* MostPromising(const std::vector<Candidate>& candidates, const Odds& odds) {
  const auto rank = [&](const Candidate& candidate) {
    return std::tuple(MeetsPrediction(odds.judged, candidate.predicted), odds.Worth(candidate),
                      candidate.prompt_percent * candidate.level_percent);
  };
  const auto best =
      std::max_element(candidates.begin(), candidates.end(),
                       [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
  const bool known = std::any_of(candidates.begin(), candidates.end(),
                                 [](const Candidate& candidate) { return candidate.expected > 0; });
  return known && odds.Promise(*best) >= kLeastPromise ? &*best : nullptr;
}

// At least as much of both and more of one.
bool Dominates(const Candidate& a, const Candidate& b) {
  return a.prompt_percent >= b.prompt_percent && a.level_percent >= b.level_percent &&
         (a.prompt_percent > b.prompt_percent || a.level_percent > b.level_percent);
}

// Higher = the better answer is expected, among candidates of which none dominates another.
auto Quality(const Candidate& candidate) {
  return std::tuple(candidate.probability, candidate.prompt_percent * candidate.level_percent,
                    candidate.level_percent);
}

// The best that meets the targets, else null.
const Candidate* BestMeeting(const std::vector<Candidate>& candidates, const SloTargets& targets) {
  std::vector<const Candidate*> meeting;
  for (const Candidate& candidate : candidates) {
    if (MeetsPrediction(targets, candidate.predicted)) meeting.push_back(&candidate);
  }
  const Candidate* best = nullptr;
  for (const Candidate* candidate : meeting) {
    const bool dominated = std::any_of(meeting.begin(), meeting.end(), [&](const Candidate* other) {
      return Dominates(*other, *candidate);
    });
    if (dominated) continue;
    if (best == nullptr || Quality(*candidate) > Quality(*best)) best = candidate;
  }
  return best;
}

// Of the target that is missed most, as a share.
double ShareOfTargets(const Prediction& predicted, const SloTargets& targets) {
  return std::max({predicted.ttft_ms / targets.ttft_ms, predicted.tpot_ms / targets.tpot_ms,
                   predicted.end_to_end_ms / targets.end_to_end_ms});
}

// Of equals the one with the most of both.
const Candidate* Closest(const std::vector<Candidate>& candidates, const SloTargets& targets) {
  const auto rank = [&](const Candidate& candidate) {
    return std::tuple(ShareOfTargets(candidate.predicted, targets),
                      -static_cast<double>(candidate.prompt_percent) * candidate.level_percent);
  };
  return &*std::min_element(
      candidates.begin(), candidates.end(),
      [&](const Candidate& a, const Candidate& b) { return rank(a) < rank(b); });
}

struct Choice {
  const Candidate* candidate;
  v1::DecisionReason reason;
  std::string explanation;
};

// The candidate to run; null: none meets even what the tolerance allows, or promises anything.
const Candidate* Best(const std::vector<Candidate>& allowed, const SloTargets& targets,
                      const Odds& odds) {
  const SloTargets& judged = odds.judged;
  if (const Candidate* promising = MostPromising(allowed, odds)) return promising;
  const Candidate* full = &allowed.back();
  if (MeetsPrediction(judged, full->predicted)) return full;
  const Candidate* exact = BestMeeting(allowed, targets);
  return exact != nullptr ? exact : BestMeeting(allowed, judged);
}

std::string WhyNotTlm(const DecisionInput& input) {
  if (input.without_tlm.empty()) return "";
  return absl::StrCat(" The latency model alone decided: ", input.without_tlm, ".");
}

// Said of another choice than the full model where that one is predicted to be in time, too.
std::string WhyNotFull(const Candidate& full, const SloTargets& judged) {
  constexpr double kWorthTelling = 0.1;
  if (!MeetsPrediction(judged, full.predicted)) return "";
  if (full.predicted.newcomers < kWorthTelling) {
    return " The whole model is predicted to be in time, too, but less surely.";
  }
  return absl::StrFormat(
      " The whole model is predicted to be in time, too, but %.1f other calls are to be expected "
      "while it answers.",
      full.predicted.newcomers);
}

Choice Choose(const DecisionInput& input, const std::vector<Candidate>& allowed,
              const SloTargets& targets, const SloTargets& judged) {
  const bool fixed = input.fixed_level_percent != 0 || input.fixed_prompt;
  const Candidate* full = &allowed.back();
  if (!targets.any() && !fixed) {
    return {full, v1::DECISION_REASON_FULL_MEETS_SLO,
            "No SLO was given: " + ModelWords(full->level_percent) + " on the whole prompt."};
  }
  const Odds odds{judged, input.reliability, input.tlm};
  const Candidate* best = Best(allowed, targets, odds);
  const Candidate* chosen = best != nullptr ? best : Closest(allowed, judged);
  if (fixed) {
    return {
        chosen, v1::DECISION_REASON_FIXED_BY_CALLER,
        absl::StrCat("The caller fixed ", input.fixed_prompt ? "the prompt's level" : "",
                     input.fixed_prompt && input.fixed_level_percent != 0 ? " and " : "",
                     input.fixed_level_percent != 0 ? "the model's" : "", ": ", Setting(*chosen),
                     best != nullptr ? "." : ", which is predicted to miss the SLO.")};
  }
  if (best == nullptr) {
    return {chosen, v1::DECISION_REASON_BEST_EFFORT,
            absl::StrCat("Nothing meets the SLO (", Wanted(targets), "): ", Setting(*chosen),
                         ", which comes closest, is predicted to take ", Figures(chosen->predicted),
                         ".", WhyNotTlm(input))};
  }
  if (!MeetsPrediction(judged, best->predicted)) {
    return {
        best, v1::DECISION_REASON_BEST_EFFORT,
        absl::StrCat(Setting(*best), " is predicted to take ", Figures(best->predicted),
                     ", more than the SLO (", Wanted(targets),
                     "), and yet is the likeliest of all to be right in time.", WhyNotTlm(input))};
  }
  if (best == full) {
    return {best, v1::DECISION_REASON_FULL_MEETS_SLO,
            "The whole model on the whole prompt is predicted to meet the SLO (" + Wanted(targets) +
                ")."};
  }
  if (input.tlm) {
    return {best, v1::DECISION_REASON_TLM,
            absl::StrCat("The TLM chose ", Setting(*best),
                         " among all that the latency model predicts to meet the SLO (",
                         Wanted(targets), ").", WhyNotFull(*full, judged))};
  }
  return {best, v1::DECISION_REASON_LATENCY_MODEL,
          absl::StrCat("The latency model chose ", Setting(*best),
                       ", the most promising that meets the SLO (", Wanted(targets), ").",
                       best->prompt_percent < 100 ? " Only earlier exchanges are left out." : "",
                       WhyNotFull(*full, judged), WhyNotTlm(input))};
}

}  // namespace

bool SloTargets::any() const { return std::min({ttft_ms, tpot_ms, end_to_end_ms}) < kNoLimit; }

double SloTargets::TpotMs(double tokens) const {
  return TpotOfLength(tpot_ms, ramp_ms, growth_ms, answer_tokens, tokens);
}

double SloTargets::TokenMs() const { return tpot_ms - ramp_ms / (answer_tokens - 1); }

SloTargets ResolveSlo(const v1::Slo& slo, const Prediction& full_idle) {
  SloTargets targets{kNoLimit, kNoLimit, kNoLimit};
  if (slo.ttft_ratio() > 0) targets.ttft_ms = slo.ttft_ratio() * full_idle.ttft_ms;
  if (slo.tpot_ratio() > 0) {
    targets.tpot_ms = slo.tpot_ratio() * full_idle.tpot_ms;
    targets.ramp_ms = slo.tpot_ratio() * full_idle.ramp_ms;
    targets.growth_ms = slo.tpot_ratio() * full_idle.growth_ms;
    targets.answer_tokens = full_idle.answer_tokens;
  }
  if (slo.ttft_ms() > 0) targets.ttft_ms = slo.ttft_ms();
  if (slo.tpot_ms() > 0) targets.tpot_ms = slo.tpot_ms();
  if (slo.end_to_end_ms() > 0) targets.end_to_end_ms = slo.end_to_end_ms();
  return targets;
}

SloRatios RatiosOf(const v1::Slo& slo, const Prediction& full_idle) {
  const auto share = [](double target_ms, double full_ms) {
    constexpr double kSmallest = 1e-3;
    return full_ms > 0 ? std::clamp(target_ms / full_ms, kSmallest, 1.0) : 1.0;
  };
  SloRatios ratios;
  if (slo.ttft_ratio() > 0) ratios.ttft = slo.ttft_ratio();
  if (slo.tpot_ratio() > 0) ratios.tpot = slo.tpot_ratio();
  if (slo.ttft_ms() > 0) ratios.ttft = share(slo.ttft_ms(), full_idle.ttft_ms);
  if (slo.tpot_ms() > 0) ratios.tpot = share(slo.tpot_ms(), full_idle.tpot_ms);
  if (slo.end_to_end_ms() > 0) {
    ratios.ttft = ratios.tpot = share(slo.end_to_end_ms(), full_idle.end_to_end_ms);
  }
  return ratios;
}

SloTargets Tolerate(const v1::Slo& slo, const SloTargets& targets) {
  SloTargets wider = targets;
  if (slo.ttft_ratio() > 0) wider.ttft_ms *= 1 + kRatioTolerance;
  if (slo.tpot_ratio() > 0) {
    wider.tpot_ms *= 1 + kRatioTolerance;
    wider.ramp_ms *= 1 + kRatioTolerance;
    wider.growth_ms *= 1 + kRatioTolerance;
  }
  return wider;
}

bool Meets(const SloTargets& targets, const v1::Latency& latency, double tokens) {
  return Within(latency.ttft_ms(), targets.ttft_ms) &&
         Within(latency.tpot_ms(), targets.TpotMs(tokens)) &&
         Within(latency.end_to_end_ms(), targets.end_to_end_ms);
}

bool FullMeets(const DecisionInput& input) {
  const SloTargets judged = Tolerate(input.slo, ResolveSlo(input.slo, input.full_idle));
  return MeetsPrediction(judged, input.candidates.back().predicted);
}

bool PaysToRead(const SloTargets& judged, const Reliability& reliability,
                const std::vector<Candidate>& with, const std::vector<Candidate>& without) {
  const Odds odds{judged, reliability};
  const Candidate* whole = MostPromising(without, odds);
  const Candidate* shorter = MostPromising(with, odds);
  const auto meets = [&](const Candidate& candidate) {
    return MeetsPrediction(judged, candidate.predicted);
  };
  const bool shorter_meets = std::any_of(with.begin(), with.end(), meets);
  const bool whole_meets = std::any_of(without.begin(), without.end(), meets);
  if (shorter_meets != whole_meets) return shorter_meets;
  if (shorter != nullptr && whole != nullptr) return odds.Worth(*shorter) > odds.Worth(*whole);
  if (shorter_meets) return whole == nullptr;
  return ShareOfTargets(Closest(with, judged)->predicted, judged) <
         ShareOfTargets(Closest(without, judged)->predicted, judged);
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
  const SloTargets judged = Tolerate(input.slo, targets);
  const Choice choice = Choose(input, allowed, targets, judged);
  const bool meets = MeetsPrediction(judged, choice.candidate->predicted);
  if (!meets && input.slo.strict()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the strict SLO (", Wanted(targets), ") cannot be met now; best attainable: ",
        Figures(choice.candidate->predicted), " with ", Setting(*choice.candidate),
        ". Relax slo, shorten the prompt, lower limits.max_tokens, or set slo.strict to false"));
  }
  v1::Decision decision;
  decision.set_model_level_percent(choice.candidate->level_percent);
  decision.set_prompt_level_percent(choice.candidate->prompt_percent);
  decision.set_speculation(false);
  decision.set_reason(choice.reason);
  std::string explanation = choice.explanation;
  if (!input.note.empty()) absl::StrAppend(&explanation, " ", input.note);
  if (input.speculation_wanted) {
    absl::StrAppend(&explanation, " Speculation was asked for, but this server has none.");
  }
  decision.set_explanation(explanation);
  decision.set_predicted_to_meet_slo(meets);
  *decision.mutable_predicted() = ToLatency(choice.candidate->predicted);
  *decision.mutable_full_model() = ToLatency(input.full_idle);
  decision.set_answer_tokens(input.full_idle.answer_tokens);
  decision.set_full_model_ramp_ms(input.full_idle.ramp_ms);
  decision.set_full_model_growth_ms(input.full_idle.growth_ms);
  decision.set_predicted_prompt_tokens(choice.candidate->prefill_tokens);
  decision.set_predicted_reused_tokens(input.reused_tokens);
  return decision;
}

}  // namespace withy::orchestrator
