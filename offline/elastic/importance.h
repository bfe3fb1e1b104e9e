// What each unit and each layer is worth: how much of what the model says hangs on it. Neighbours:
// reorder.h sorts by it, plan.h chooses anchors by it. Source: ElastiLM section 3.2, equation 2 and
// anchor layers; docs/method-elastic.md, Importance.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "offline/elastic/batches.h"
#include "offline/elastic/network.h"
#include "offline/train/workers.h"

namespace withy::elastic {

struct Keeper;  // work.h

// Of the units of one layer that a level computes.
struct UnitImportance {
  torch::Tensor heads;    // [kv_heads, query heads a KV head]; fewer at a level that cuts them
  torch::Tensor neurons;  // [neurons]
};

// Of the units of `level`, with its LoRA (empty: none): what the margin of the right tokens hangs
// on each, token by token, squared and summed. d margin / d gate is the sum of d margin / dW * W
// over what leads out of the unit (a column of down, a head's columns of O) before it is summed
// over tokens.
std::vector<UnitImportance> MeasureUnits(const Network& network, const std::vector<Batch>& batches,
                                         const engine::LevelSpec& level,
                                         const std::vector<Lora>& lora);
// The same, side by side and kept as it comes; the result does not depend on how many workers there
// are. `cost_s`: of a batch, for the keeper. Errors: from saving.
absl::StatusOr<std::vector<UnitImportance>> MeasureUnits(
    const Network& network, const std::vector<Batch>& batches, const engine::LevelSpec& level,
    const std::vector<Lora>& lora, const train::Workers& workers, double cost_s, Keeper keeper);

// To compare with: equation 2, |dL/dW * W| summed over a unit's weights (rows of Q and columns of
// O, where levels cut KV heads those of K and V, too; rows of gate and up, columns of down) and
// accumulated over the batches, after which `network`'s weights carry no gradients; the sum of a
// unit's absolute weights; and random numbers. All of the whole model.
// `progress`, when set, is called after every batch.
std::vector<UnitImportance> MeasureGradients(Network& network, const std::vector<Batch>& batches,
                                             const std::function<void()>& progress = nullptr);
std::vector<UnitImportance> MeasureMagnitude(const Network& network);
std::vector<UnitImportance> DrawImportance(const Network& network, uint64_t seed);

// Loss without each layer, less the whole model's: [layers].
std::vector<double> MeasureLayers(const Network& network, const std::vector<Batch>& batches);

// Layers by importance, most important first.
std::vector<int32_t> AnchorOrder(const std::vector<double>& layer_importance);

}  // namespace withy::elastic
