// Training data of the decision head: for each prompt, which (prompt level, model level) pairs the
// elastic model answers correctly, and which pairs an SLO allows. Neighbours: target.h evaluates,
// prompt.h shortens, decision_stage.cc trains.
//
// Source: ElastiLM section 3.3, self-induced labelling: the lightest correct decision, else a
// default. Ours differs: one table serves all SLOs, and the label of a pair is whether it is
// correct. A head that learns the lightest correct pair is often one level too low, and then the
// answer is wrong.
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

// The candidate levels, and the cost of each model level relative to the full one.
struct DecisionSpace {
  std::vector<int32_t> prompt_levels;  // per cent, ascending
  std::vector<int32_t> model_levels;
  std::vector<double> flops;  // per model level, relative to the full level: prefill
  std::vector<double> bytes;  // likewise: one decoded token

  size_t pairs() const { return prompt_levels.size() * model_levels.size(); }
};

DecisionSpace MakeSpace(const engine::ModelInfo& info, std::vector<int32_t> prompt_levels);

// One prompt. The pair of prompt level p and model level m has index p * model levels + m.
struct DecisionRow {
  std::vector<int32_t> tokens;  // tokens of the shortened prompt, per prompt level
  std::vector<bool> right;      // [pairs]
};

// One line: {"tokens": [..], "right": "0110.."}. Errors: INVALID_ARGUMENT naming `where`.
std::string ToLine(const DecisionRow& row);
absl::StatusOr<DecisionRow> ParseDecisionRow(std::string_view line, const DecisionSpace& space,
                                             std::string_view where);

// Evaluates all pairs. keep: scores of the prompt's words. A shortened prompt that is equal at two
// levels is evaluated once. Errors: as Target::Judge.
absl::StatusOr<DecisionRow> Traverse(const corpus::Prompt& prompt, std::span<const float> keep,
                                     const DecisionSpace& space, Target* target);

// Latencies of a pair relative to the full model with the whole prompt.
struct Cost {
  double ttft = 0;
  double tpot = 0;
};
Cost CostOf(const DecisionSpace& space, const DecisionRow& row, size_t pair);

// Pairs whose costs meet the SLO, ascending.
std::vector<size_t> Feasible(const DecisionSpace& space, const DecisionRow& row,
                             const engine::TlmSlo& slo);

// The feasible pairs that no other feasible pair exceeds in both levels, ascending: the candidates
// of policy/call/decide.h.
std::vector<size_t> Frontier(const DecisionSpace& space, const DecisionRow& row,
                             const engine::TlmSlo& slo);

// Share of rows for which each pair is correct: [pairs].
std::vector<double> MeanRight(const DecisionSpace& space, std::span<const DecisionRow> rows);

// The feasible pair that is correct most often over all prompts, the last of equals. If nothing is
// feasible, pair 0: the fastest.
size_t DefaultPair(const DecisionSpace& space, const DecisionRow& row,
                   std::span<const double> mean_right, const engine::TlmSlo& slo);

}  // namespace withy::tlm
