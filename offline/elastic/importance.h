// Measures the importance of units and layers: how strongly the model's output depends on them.
// Neighbours: reorder.h sorts by it, plan.h chooses anchors by it. Source: ElastiLM section 3.2,
// equation 2 and anchor layers; docs/method-elastic.md, Importance.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "offline/elastic/network.h"
#include "offline/elastic/plan.h"
#include "offline/elastic/text/batches.h"
#include "offline/train/workers.h"

namespace withy::elastic {

struct Checkpointer;  // work.h

// Importance of one layer's units at one level.
struct UnitImportance {
  torch::Tensor heads;    // [kv_heads, query heads per KV head]; fewer at a level that cuts them
  torch::Tensor neurons;  // [neurons]
};

// Importance of the units of `level` with its LoRA (empty: none): the squared derivative of the
// correct token's margin with respect to a gate on the unit's output, summed over tokens. d margin
// / d gate is the sum of d margin / dW * W over the weights that read the unit (a column of down, a
// head's columns of O), taken per token.
std::vector<UnitImportance> MeasureUnits(const Network& network, const std::vector<Batch>& batches,
                                         const engine::LevelSpec& level,
                                         const std::vector<Lora>& lora);
// The same in parallel, saving each result as it arrives. The result does not depend on the number
// of workers. `cost_s`: cost of one batch, for the checkpointer. Errors: from saving.
absl::StatusOr<std::vector<UnitImportance>> MeasureUnits(const Network& network,
                                                         const std::vector<Batch>& batches,
                                                         const engine::LevelSpec& level,
                                                         const std::vector<Lora>& lora,
                                                         const train::Workers& workers,
                                                         double cost_s, Checkpointer checkpointer);

// Importances of the units in the order that Reorder gives them (reorder.h): units of heads as
// levels cut them (ModelShape::query_heads_per_unit), and neurons.
std::vector<PartImportance> InOrder(const std::vector<UnitImportance>& units,
                                    const engine::ModelShape& shape);

// For comparison, all for the full model. MeasureGradients: equation 2, |dL/dW * W| summed over a
// unit's weights (rows of Q and columns of O; also K and V if levels cut KV heads; rows of gate and
// up, columns of down) and accumulated over the batches; afterwards `network`'s weights hold no
// gradients; `progress`, if set, is called after every batch. MeasureMagnitude: the sum of a unit's
// absolute weights. DrawImportance: random numbers.
std::vector<UnitImportance> MeasureGradients(Network& network, const std::vector<Batch>& batches,
                                             const std::function<void()>& progress = nullptr);
std::vector<UnitImportance> MeasureMagnitude(const Network& network);
std::vector<UnitImportance> DrawImportance(const Network& network, uint64_t seed);

// Increase of the loss when each layer is dropped: [layers].
std::vector<double> MeasureLayers(const Network& network, const std::vector<Batch>& batches);

// Layers by importance, most important first.
std::vector<int32_t> AnchorOrder(const std::vector<double>& layer_importance);

}  // namespace withy::elastic
