// Chooses how much of the prompt and of the model answers a call: by its SLO, by what the latency
// model predicts, and by what the TLM makes of the prompt. Pure. Neighbours: latency_model.h makes
// the predictions, call_plan.h the candidates.
// Levers come lossless first: reused KV is in the predictions already; only then prompt and model
// shrink. Source: ElastiLM section 3.3. Its TLM names one pair, and where the check finds that it
// would miss, a random one that meets the SLO takes its place; ours says of every pair how likely
// it is right, and the check comes first: the likeliest of those that meet the SLO.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "policy/board/latency_model.h"
#include "policy/call/call_targets.h"

namespace withy::policy {

// Why a setting was chosen.
enum class DecisionReason {
  kFullMeetsSlo,   // the most that there is meets the SLO, or there is none
  kTlm,            // the TLM, which has read the prompt, finds it the likeliest to be right
  kLatencyModel,   // the largest, or the most promising over all prompts, that meets the SLO
  kFixedByCaller,  // the caller chose a level
  kBestEffort,     // nothing is predicted to meet the SLO
};

// What is to run, and what was predicted of it.
struct Decision {
  uint32_t model_level_percent = 100;
  uint32_t prompt_level_percent = 100;
  DecisionReason reason = DecisionReason::kFullMeetsSlo;
  std::string explanation;  // sentences for people
  bool predicted_to_meet_slo = true;
  Latency predicted;
  AnswerLatency full_model;  // on an idle board: what ratios are shares of
  uint32_t prefill_tokens = 0;
  uint32_t reused_tokens = 0;
  uint32_t dropped_messages = 0;  // oldest ones that the window has no room for
  bool speculation = false;       // tokens may be drafted
  double expected_speedup = 1;    // of decoding, that this is counted on for
};

// One setting that could run, with its prediction.
struct Candidate {
  uint32_t level_percent = 100;
  Prediction predicted;
  uint32_t prompt_percent = 100;
  double probability = 0;  // that it is right, by the TLM that has read the prompt
  double expected = 0;     // how often such a pair is right, whatever the prompt; 0 = not known
  uint32_t prefill_tokens = 0;  // that the prediction counted
  double speedup = 1;           // by speculation, that the prediction counted on
};

struct DecisionInput {
  Slo slo;
  uint32_t fixed_level_percent = 0;  // 0 = decide
  // Of the candidates' levels, the highest that may be chosen where none is fixed; the lowest
  // always may.
  uint32_t most_level_percent = 100;
  // Not empty; holds the fixed level when one is given. By prompt level, then by model level,
  // ascending: the last is the most that there is.
  std::vector<Candidate> candidates;
  Prediction full_idle;
  Reliability reliability = {};
  uint32_t reused_tokens = 0;
  bool speculates = false;          // the worker may draft tokens
  bool speculation_wanted = false;  // the caller asked for it
  bool fixed_prompt = false;        // the caller chose the prompt level of the candidates
  bool tlm = false;                 // it read the prompt: the candidates' probabilities are its own
  std::string without_tlm = {};     // why it had no say; empty = it had, or was not needed
  std::string note = {};            // sentences that go into the explanation
};

// Whether no lever is needed: the most that there is meets the SLO, or there is none.
bool FullMeets(const DecisionInput& input);

// Whether reading the prompt with the TLM can pay: `with` holds guesses for all pairs of levels,
// the reading's time included, `without` the model levels on the whole prompt. Neither is empty.
// What the best of each promises decides; where that is not known, what meets the SLO.
bool PaysToRead(const CallTargets& judged, const Reliability& reliability,
                const std::vector<Candidate>& with, const std::vector<Candidate>& without);

// Two rules, by what is known of the candidates:
//  1. Where it is known how often each pair is right (by the TLM for this prompt, else over all
//     prompts): of the pairs that are predicted to meet the SLO, else of all, the one with the most
//     worth. Worth is the chance that the answer is right and in time, minus kLossOfLate times the
//     chance that it is late, minus kLossOfNewcomer times the calls that are expected while it has
//     the board. So a lower level that is surely in time goes before a full model that may be late,
//     and a busy board is shared by smaller answers.
//  2. Where it is not known: the full model on the whole prompt, if it meets the SLO and is late by
//     kAcceptedLateness at most in the mean; else, of the Pareto-optimal pairs that meet it and are
//     nearly as likely to be in time as the likeliest of all, the likeliest by the TLM; ties go to
//     the largest product of both levels, then to the higher model level.
// The full model, and a level when nothing else is left, may use the tolerance of a ratio; a lower
// level that is chosen for its speed has to meet the target itself, so that noise does not make it
// miss. When nothing is promising, or in time, the pair that comes closest runs, and `explanation`
// says so. `predicted` is that of the chosen candidate.
// Errors: FAILED_PRECONDITION for a strict SLO that the chosen candidate is predicted to miss,
// naming targets and the best attainable figures; INVALID_ARGUMENT for a fixed level that no
// candidate has.
absl::StatusOr<Decision> Decide(const DecisionInput& input);

}  // namespace withy::policy
