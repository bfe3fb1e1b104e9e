// What the decision head learns from: for each prompt, which (prompt level, model level) pairs are
// answered right, traversed once with the elastic model; and which pairs an SLO leaves to choose
// from.
// Neighbours: target.h judges, prompt.h shortens, decision_stage.cc trains.
//
// Source: ElastiLM section 3.3, self-induced labelling: the lightest right decision, else a default
// one. Ours: one table serves all SLOs, and the label of a pair is whether it is right: a head that
// learns the lightest right pair misses by one level as often as not, and then the answer is wrong.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/encoder/windows.h"
#include "engine/model/model.h"
#include "offline/corpus/prompt.h"
#include "offline/tlm/target.h"

namespace withy::tlm {

// The levels to decide among, and what each model level costs of the full one.
struct DecisionSpace {
  std::vector<int32_t> prompt_levels;  // per cent, ascending
  std::vector<int32_t> model_levels;
  std::vector<double> flops;  // share of the full level's, by model level: prefill
  std::vector<double> bytes;  // likewise: a decoded token

  size_t pairs() const { return prompt_levels.size() * model_levels.size(); }
};

DecisionSpace MakeSpace(const engine::ModelInfo& info, std::vector<int32_t> prompt_levels);

// One prompt. Pairs are numbered prompt level * model levels + model level.
struct DecisionRow {
  std::vector<int32_t> tokens;  // of the shortened prompt, by prompt level
  std::vector<bool> right;      // [pairs]
};

// One line: {"tokens": [..], "right": "0110.."}. Errors: INVALID_ARGUMENT naming `where`.
std::string ToLine(const DecisionRow& row);
absl::StatusOr<DecisionRow> ParseDecisionRow(std::string_view line, const DecisionSpace& space,
                                             std::string_view where);

// keep: scores of the prompt's words. A shortened prompt that is the same at two levels is judged
// once. Errors: as Target::Judge.
absl::StatusOr<DecisionRow> Traverse(const corpus::Prompt& prompt, std::span<const float> keep,
                                     const DecisionSpace& space, Target* target);

// Latencies of a pair as shares of the full model's with the whole prompt.
struct Cost {
  double ttft = 0;
  double tpot = 0;
};
Cost CostOf(const DecisionSpace& space, const DecisionRow& row, size_t pair);

// Pairs whose costs meet the SLO, ascending.
std::vector<size_t> Feasible(const DecisionSpace& space, const DecisionRow& row,
                             const engine::TlmSlo& slo);

// The feasible pairs of which no other has more of both, prompt and model, ascending: those that
// policy/decide.h chooses from.
std::vector<size_t> Frontier(const DecisionSpace& space, const DecisionRow& row,
                             const engine::TlmSlo& slo);

// How often each pair is right: [pairs].
std::vector<double> MeanRight(const DecisionSpace& space, std::span<const DecisionRow> rows);

// The feasible pair that is right most often over all prompts, the last of equals; where
// nothing is feasible, pair 0: the fastest.
size_t DefaultPair(const DecisionSpace& space, const DecisionRow& row,
                   std::span<const double> mean_right, const engine::TlmSlo& slo);

}  // namespace withy::tlm
