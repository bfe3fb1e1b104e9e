// Chooses how much of the prompt and of the model answers a call, by its SLO, by what the latency
// model predicts, and by what the TLM makes of the prompt. Pure. Neighbours: latency_model.h makes
// the predictions, tlm_reader.h reads, prepare.cc asks and reports.
// Levers come lossless first: reused KV is in the predictions already; only then prompt and model
// shrink. Source: ElastiLM section 3.3. Its TLM names one pair, and where the check finds that it
// would miss, a random one that meets the SLO takes its place; ours says of every pair how likely
// it is right, and the check comes first: the likeliest of those that meet the SLO.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/latency_model.h"
#include "withy/v1/types.pb.h"

namespace withy::orchestrator {

// An SLO in milliseconds; infinity = no limit.
struct SloTargets {
  double ttft_ms;
  double tpot_ms;  // of an answer of answer_tokens
  double end_to_end_ms;
  // Where the TPOT is a share of the full model's: what that share allows an answer's first tokens
  // on top of its later ones, together. A short answer has more time a token than a long one.
  double ramp_ms = 0;
  double growth_ms = 0;  // likewise what it allows more for each, for every token that it is longer
  double answer_tokens = 2;

  bool any() const;
  // What an answer of so many tokens may take for each.
  double TpotMs(double tokens) const;
  // The same, the ramp aside.
  double TokenMs() const;
};

// Ratios are taken of `full_idle`, the full model on an idle board (ElastiLM section 3.1).
SloTargets ResolveSlo(const v1::Slo& slo, const Prediction& full_idle);

// An SLO as the TLM reads it, as shares of `full_idle`; 1 = no limit. Range (0, 1]. Milliseconds
// become the share that they are; an end-to-end time becomes the same share for both.
struct SloRatios {
  double ttft = 1;
  double tpot = 1;
};
SloRatios RatiosOf(const v1::Slo& slo, const Prediction& full_idle);

// A ratio's denominator is a prediction, and the same call's time differs by some per cent from one
// run to the next: a latency this share above a ratio's target still meets it.
inline constexpr double kRatioTolerance = 0.05;

// `targets` as a latency is judged by them: those that `slo` gives as ratios are widened by the
// tolerance.
SloTargets Tolerate(const v1::Slo& slo, const SloTargets& targets);

// `latency`: of an answer of `tokens`; TPOT counts only when there were two.
bool Meets(const SloTargets& targets, const v1::Latency& latency, double tokens);

// One setting that could run, with its prediction.
struct Candidate {
  uint32_t level_percent = 100;
  Prediction predicted;
  uint32_t prompt_percent = 100;
  double probability = 0;  // that it is right, by the TLM that has read the prompt
  double expected = 0;     // how often such a pair is right, whatever the prompt; 0 = not known
  uint32_t prefill_tokens = 0;  // that the prediction counted
};

struct DecisionInput {
  v1::Slo slo;
  uint32_t fixed_level_percent = 0;  // 0 = decide
  // Not empty; holds the fixed level when one is given. By prompt level, then by model level,
  // ascending: the last is the most that there is.
  std::vector<Candidate> candidates;
  Prediction full_idle;
  Reliability reliability = {};
  uint32_t reused_tokens = 0;
  bool speculation_wanted = false;
  bool fixed_prompt = false;     // the caller chose the prompt level of the candidates
  bool tlm = false;              // it read the prompt: the candidates' probabilities are its own
  std::string without_tlm = {};  // why it had no say; empty = it had, or was not needed
  std::string note = {};         // a sentence that goes into the explanation
};

// Whether no lever is needed: the most that there is meets the SLO, or there is none.
bool FullMeets(const DecisionInput& input);

// Whether reading the prompt with the TLM can pay: `with` holds guesses for all pairs of levels,
// the reading's time included, `without` the model levels on the whole prompt. Neither is empty.
// What the best of each promises decides; where that is not known, what meets the SLO.
bool PaysToRead(const SloTargets& judged, const Reliability& reliability,
                const std::vector<Candidate>& with, const std::vector<Candidate>& without);

// Where it is known how often pairs are right: the one that is likeliest to be right *and* in time,
// by what the TLM makes of this prompt, else by what holds over all, and by how far off predictions
// have been, less what it takes from others: each call that is to be expected while it has the
// board loses an answer's worth of room. So a level that promises as much as the full model and
// surely comes in time is better than a full model that may be late, and where calls come thick a
// small level is better than a full one that promises little more. Where it is not: the most that
// there is, when it meets the SLO; else the best pair that does: no other that meets the SLO has
// more of both, prompt and model; among those the one that the TLM finds likeliest to be answered
// right, then the one with the most of both together. The full model, and a level when nothing else
// is left, may use the tolerance of a ratio; a lower level that is chosen for its speed has to meet
// the target itself, so that noise does not make it miss. When nothing is promising, or in time,
// the one that comes closest (told in `explanation`), or for a strict SLO Errors:
// FAILED_PRECONDITION naming the target that is missed and the best attainable figures. The
// decision's predicted latency is that of the chosen candidate.
absl::StatusOr<v1::Decision> Decide(const DecisionInput& input);

}  // namespace withy::orchestrator
