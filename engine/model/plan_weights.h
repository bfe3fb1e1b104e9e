// Plans which weights stay in memory under a budget: the output head, vectors and LoRA; the
// embedding, if it is the head, too, or small (else the rows of a pass's tokens are read); then a
// prefix of every matrix of the layers, the same share of each, so that every layer
// has equally much to read while the one before it computes. Prefixes grow level by level: a level
// that fits reads nothing. Of a mixture of experts what every row needs stays, and as many experts
// as the rest of the budget holds. Pure. Neighbours: weights/weight_plan.h is the result.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/facts.h"
#include "engine/weights/layout.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/weight_plan.h"

namespace withy::engine {

struct WeightPlanOptions {
  uint64_t budget_bytes = 0;
  // For comparisons: nothing of the layers stays in memory, and the budget is all buffers (layer
  // streaming, "StdPL" in LLMCad).
  bool whole_layers = false;
  int32_t max_rows = 256;  // of a pass
};

// Always: the plan's memory is within the budget, and all of it but a page for each matrix is used.
// Source: LLMCad section 4.1 (StdPL) streams whole layers; ours keeps a share of each. Errors:
// INVALID_ARGUMENT if the budget is too small for what always stays and one layer's buffers; names
// the least budget that works. `tensors`: of the packed file that `facts` are of.
absl::StatusOr<WeightPlan> PlanWeights(std::span<const PackedTensor> tensors,
                                       const ModelFacts& facts, const WeightPlanOptions& options);

// The least budget of a model.
uint64_t LeastWeightBudget(std::span<const PackedTensor> tensors, const ModelFacts& facts);

// The same of a GGUF that is not packed yet, and plans for it.
struct UnpackedWeights {
  explicit UnpackedWeights(const PackedLayout& layout);
  std::vector<PackedTensor> tensors;
  ModelFacts facts;  // only what plans need
};

}  // namespace withy::engine
