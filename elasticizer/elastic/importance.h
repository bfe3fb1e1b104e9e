// What each unit and each layer is worth: how much of the loss hangs on it. Neighbours: reorder.h
// sorts by it, plan.h chooses anchors by it. Source: ElastiLM section 3.2, equation 2 (units) and
// anchor layers.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "elasticizer/elastic/batches.h"
#include "elasticizer/elastic/network.h"

namespace withy::elastic {

// Of one layer: |dL/dW * W| summed over a unit's weights.
struct UnitImportance {
  // [kv_heads, query heads a KV head]: rows of Q and columns of O; where levels cut KV heads, the
  // rows of K and V, too, divided among the query heads.
  torch::Tensor heads;
  torch::Tensor neurons;  // [d_ff]: rows of gate and up, columns of down
};

// Accumulated over the batches. `network`'s weights carry no gradients afterwards.
std::vector<UnitImportance> MeasureUnits(Network& network, const std::vector<Batch>& batches);

// To compare with: the sum of a unit's absolute weights; and random numbers.
std::vector<UnitImportance> MeasureMagnitude(const Network& network);
std::vector<UnitImportance> DrawImportance(const Network& network, uint64_t seed);

// Loss without each layer, less the whole model's: [layers].
std::vector<double> MeasureLayers(const Network& network, const std::vector<Batch>& batches);

// Layers by importance, most important first.
std::vector<int32_t> AnchorOrder(const std::vector<double>& layer_importance);

}  // namespace withy::elastic
