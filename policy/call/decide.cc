#include "policy/call/decide.h"

#include <algorithm>
#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "policy/constants.h"

namespace withy::policy {
namespace {

// Three or more digits that count, however small.
std::string Ms(double value) {
  return value < 100 ? absl::StrFormat("%.3g ms", value) : absl::StrFormat("%.0f ms", value);
}

std::string Figures(const Prediction& prediction) {
  return absl::StrCat("TTFT ", Ms(prediction.ttft_ms), ", TPOT ", Ms(prediction.tpot_ms),
                      ", end to end ", Ms(prediction.end_to_end_ms));
}

std::string Wanted(const CallTargets& targets) {
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

bool MeetsPrediction(const CallTargets& targets, const Prediction& prediction) {
  return Meets(targets, prediction, targets.answer_tokens);
}

// How a pair is judged: late answers are worth nothing, and what it takes of the board others miss.
struct Odds {
  const CallTargets& judged;
  const Reliability& reliability;
  bool tlm = false;  // it has read the prompt

  double InTime(const Prediction& predicted) const {
    return ChanceWithin(reliability.ttft, predicted.ttft_ms, judged.ttft_ms) *
           ChanceWithin(reliability.tpot, predicted.tpot_ms, judged.tpot_ms) *
           ChanceWithin(reliability.tpot, predicted.end_to_end_ms, judged.end_to_end_ms);
  }
  // Of its three limits together, in the mean; share.
  double Lateness(const Prediction& predicted) const {
    return LatenessOf(reliability.ttft, predicted.ttft_ms, judged.ttft_ms) +
           LatenessOf(reliability.tpot, predicted.tpot_ms, judged.tpot_ms) +
           LatenessOf(reliability.tpot, predicted.end_to_end_ms, judged.end_to_end_ms);
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
const Candidate* BestMeeting(const std::vector<const Candidate*>& candidates,
                             const CallTargets& targets) {
  std::vector<const Candidate*> meeting;
  for (const Candidate* candidate : candidates) {
    if (MeetsPrediction(targets, candidate->predicted)) meeting.push_back(candidate);
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
double ShareOfTargets(const Prediction& predicted, const CallTargets& targets) {
  return std::max({predicted.ttft_ms / targets.ttft_ms, predicted.tpot_ms / targets.tpot_ms,
                   predicted.end_to_end_ms / targets.end_to_end_ms});
}

// Of equals the one with the most of both.
const Candidate* Closest(const std::vector<Candidate>& candidates, const CallTargets& targets) {
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
  DecisionReason reason;
  std::string explanation;
};

// Whether the most that there is may be asked: it is late by little in the mean.
bool SureEnough(const Candidate& most, const Odds& odds) {
  return odds.Lateness(most.predicted) <= kAcceptedLateness;
}

// Those that are nearly as likely to be in time as the likeliest: a smaller answer is worth it only
// if it comes in time.
std::vector<const Candidate*> Surest(const std::vector<Candidate>& candidates, const Odds& odds) {
  double most = 0;
  for (const Candidate& candidate : candidates) {
    most = std::max(most, odds.InTime(candidate.predicted));
  }
  std::vector<const Candidate*> surest;
  for (const Candidate& candidate : candidates) {
    if (odds.InTime(candidate.predicted) >= kSureEnough * most) surest.push_back(&candidate);
  }
  return surest;
}

// The candidate to run; null: none meets even what the tolerance allows, or promises anything.
const Candidate* Best(const std::vector<Candidate>& allowed, const CallTargets& targets,
                      const Odds& odds) {
  const CallTargets& judged = odds.judged;
  if (const Candidate* promising = MostPromising(allowed, odds)) return promising;
  const Candidate& most = allowed.back();
  if (MeetsPrediction(judged, most.predicted) && SureEnough(most, odds)) return &most;
  const std::vector<const Candidate*> surest = Surest(allowed, odds);
  const Candidate* exact = BestMeeting(surest, targets);
  return exact != nullptr ? exact : BestMeeting(surest, judged);
}

std::string WhyNotTlm(const DecisionInput& input) {
  if (input.without_tlm.empty()) return "";
  return absl::StrCat(" The latency model alone decided: ", input.without_tlm, ".");
}

// Said of another choice than the full model where that one is predicted to be in time, too.
std::string WhyNotFull(const Candidate& full, const CallTargets& judged) {
  if (!MeetsPrediction(judged, full.predicted)) return "";
  if (full.predicted.newcomers < kNewcomersWorthTelling) {
    return " The whole model is predicted to be in time, too, but less surely.";
  }
  return absl::StrFormat(
      " The whole model is predicted to be in time, too, but %.1f other calls are to be expected "
      "while it answers.",
      full.predicted.newcomers);
}

Choice Choose(const DecisionInput& input, const std::vector<Candidate>& allowed,
              const CallTargets& targets, const CallTargets& judged) {
  const bool fixed = input.fixed_level_percent != 0 || input.fixed_prompt;
  const Candidate* full = &allowed.back();
  if (!targets.any() && !fixed) {
    return {full, DecisionReason::kFullMeetsSlo,
            "No SLO was given: " + ModelWords(full->level_percent) + " on the whole prompt."};
  }
  const Odds odds{judged, input.reliability, input.tlm};
  const Candidate* best = Best(allowed, targets, odds);
  const Candidate* chosen = best != nullptr ? best : Closest(allowed, judged);
  if (fixed) {
    return {
        chosen, DecisionReason::kFixedByCaller,
        absl::StrCat("The caller fixed ", input.fixed_prompt ? "the prompt's level" : "",
                     input.fixed_prompt && input.fixed_level_percent != 0 ? " and " : "",
                     input.fixed_level_percent != 0 ? "the model's" : "", ": ", Setting(*chosen),
                     best != nullptr ? "." : ", which is predicted to miss the SLO.")};
  }
  if (best == nullptr) {
    return {chosen, DecisionReason::kBestEffort,
            absl::StrCat("Nothing meets the SLO (", Wanted(targets), "): ", Setting(*chosen),
                         ", which comes closest, is predicted to take ", Figures(chosen->predicted),
                         ".", WhyNotTlm(input))};
  }
  if (!MeetsPrediction(judged, best->predicted)) {
    return {
        best, DecisionReason::kBestEffort,
        absl::StrCat(Setting(*best), " is predicted to take ", Figures(best->predicted),
                     ", more than the SLO (", Wanted(targets),
                     "), and yet is the likeliest of all to be right in time.", WhyNotTlm(input))};
  }
  if (best == full) {
    return {best, DecisionReason::kFullMeetsSlo,
            "The whole model on the whole prompt is predicted to meet the SLO (" + Wanted(targets) +
                ")."};
  }
  if (input.tlm) {
    return {best, DecisionReason::kTlm,
            absl::StrCat("The TLM chose ", Setting(*best),
                         " among all that the latency model predicts to meet the SLO (",
                         Wanted(targets), ").", WhyNotFull(*full, judged))};
  }
  return {best, DecisionReason::kLatencyModel,
          absl::StrCat("The latency model chose ", Setting(*best),
                       ", the most promising that meets the SLO (", Wanted(targets), ").",
                       best->prompt_percent < 100 ? " Only earlier exchanges are left out." : "",
                       WhyNotFull(*full, judged), WhyNotTlm(input))};
}

std::vector<Candidate> Allowed(const DecisionInput& input) {
  const auto lowest = std::min_element(
      input.candidates.begin(), input.candidates.end(),
      [](const Candidate& a, const Candidate& b) { return a.level_percent < b.level_percent; });
  const uint32_t most = std::max(input.most_level_percent, lowest->level_percent);
  std::vector<Candidate> allowed;
  for (const Candidate& candidate : input.candidates) {
    const bool may = input.fixed_level_percent == 0
                         ? candidate.level_percent <= most
                         : candidate.level_percent == input.fixed_level_percent;
    if (may) allowed.push_back(candidate);
  }
  return allowed;
}

}  // namespace

bool FullMeets(const DecisionInput& input) {
  const CallTargets judged = Tolerate(input.slo, ResolveSlo(input.slo, input.full_idle));
  const std::vector<Candidate> allowed = Allowed(input);
  return MeetsPrediction(judged, (allowed.empty() ? input.candidates : allowed).back().predicted);
}

bool PaysToRead(const CallTargets& judged, const Reliability& reliability,
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

absl::StatusOr<Decision> Decide(const DecisionInput& input) {
  const std::vector<Candidate> allowed = Allowed(input);
  if (allowed.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("model_level_percent is ", input.fixed_level_percent,
                     ": the model has no such level; 0 lets withy decide"));
  }
  const CallTargets targets = ResolveSlo(input.slo, input.full_idle);
  const CallTargets judged = Tolerate(input.slo, targets);
  const Choice choice = Choose(input, allowed, targets, judged);
  const bool meets = MeetsPrediction(judged, choice.candidate->predicted);
  if (!meets && input.slo.strict) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the strict SLO (", Wanted(targets), ") cannot be met now; best attainable: ",
        Figures(choice.candidate->predicted), " with ", Setting(*choice.candidate),
        ". Relax slo, shorten the prompt, lower limits.max_tokens, or set slo.strict to false",
        input.note.empty() ? "" : ". ", input.note));
  }
  Decision decision;
  decision.model_level_percent = choice.candidate->level_percent;
  decision.prompt_level_percent = choice.candidate->prompt_percent;
  decision.reason = choice.reason;
  decision.explanation = choice.explanation;
  if (!input.note.empty()) absl::StrAppend(&decision.explanation, " ", input.note);
  decision.speculation = input.speculates;
  decision.expected_speedup = choice.candidate->speedup;
  if (decision.expected_speedup >= kLeastGain) {
    absl::StrAppend(&decision.explanation,
                    absl::StrFormat(" Drafted tokens are counted on to make decoding %.2g times as "
                                    "fast.",
                                    decision.expected_speedup));
  } else if (input.speculation_wanted && !input.speculates) {
    absl::StrAppend(&decision.explanation,
                    " Speculation was asked for, but this model answers without.");
  }
  decision.predicted_to_meet_slo = meets;
  decision.predicted = choice.candidate->predicted;
  decision.full_model = input.full_idle;
  decision.prefill_tokens = choice.candidate->prefill_tokens;
  decision.reused_tokens = input.reused_tokens;
  return decision;
}

}  // namespace withy::policy
