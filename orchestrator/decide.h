// Chooses the model level for a call by its SLO and by what the latency model predicts.
// Pure. Neighbours: latency_model.h makes the predictions, generate.cc asks and reports.
// Levers come lossless first: reused KV is in the predictions already; only then the model shrinks.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "orchestrator/latency_model.h"
#include "withy/v1/types.pb.h"

namespace withy::orchestrator {

// An SLO in milliseconds; infinity = no limit.
struct SloTargets {
  double ttft_ms;
  double tpot_ms;
  double end_to_end_ms;
  bool any() const;
};

// Ratios are taken of `full_idle`, the full model on an idle board (ElastiLM section 3.1).
SloTargets ResolveSlo(const v1::Slo& slo, const Prediction& full_idle);

// TPOT counts only when there were two tokens.
bool Meets(const SloTargets& targets, const v1::Latency& latency);

// One setting that could run, with its prediction.
struct Candidate {
  uint32_t level_percent = 100;
  Prediction predicted;
};

struct DecisionInput {
  v1::Slo slo;
  uint32_t fixed_level_percent = 0;  // 0 = decide
  std::vector<Candidate>
      candidates;  // one a level, ascending; not empty; holds the fixed level when one is given
  Prediction full_idle;
  uint32_t prompt_tokens = 0;  // to compute
  uint32_t reused_tokens = 0;
  bool speculation_wanted = false;
};

// The highest level that meets the SLO; when none does, the fastest one (told in `explanation`), or
// for a strict SLO Errors: FAILED_PRECONDITION naming the target that is missed and the best
// attainable figures. The decision's predicted latency is that of the chosen candidate.
absl::StatusOr<v1::Decision> Decide(const DecisionInput& input);

}  // namespace withy::orchestrator
