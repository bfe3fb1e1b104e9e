// Places the units of a small model among those of a large one, and derives the large model's
// levels. Pure; touches no tensors. Neighbour: inflate.cc moves the weights.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/weights/levels.h"
#include "engine/weights/shape.h"

namespace withy::inflate {

// The shape to grow to. Vocabulary and head dimension do not change.
struct TargetShape {
  int32_t layers = 0;
  int32_t d_model = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t d_ff = 0;
};

// Columns that move together: one quantised block. Weights are copied without rounding, and
// activations are quantised in the same groups as before.
inline constexpr int32_t kBlock = 32;

// Positions of `count` items spread evenly over `room` positions; ascending.
std::vector<int32_t> Spread(int32_t count, int32_t room);

// Head counts with room for every group of `source`: the published ones if each group fits; else
// the source's KV heads with as many query heads as give the same number of attention weights.
// Example: 9 heads on 3 KV heads become 10 on 2 for a source with 8 on 2.
struct HeadCounts {
  int32_t heads = 0;
  int32_t kv_heads = 0;
};
HeadCounts FitHeads(const engine::ModelShape& source, const TargetShape& target);

// Positions of one layer's units, and the extent of each level.
struct LayerPlacement {
  int32_t source = 0;                        // layer of the small model whose levels it follows
  bool real = false;                         // holds that layer's weights; else contributes nothing
  std::vector<int32_t> ranks;                // position of each query head of a group
  std::vector<int32_t> neuron_blocks;        // position of each kBlock neurons
  std::vector<engine::LayerExtent> extents;  // [levels]
};

struct Placement {
  engine::ModelShape shape;           // of the large model: architecture, counts, epsilon
  std::vector<int32_t> width_blocks;  // position of each kBlock dimensions of the residual stream
  std::vector<int32_t> groups;        // position of each KV head
  std::vector<LayerPlacement> layers;
};

// A level of the large model contains all units of the small model's same level, and otherwise only
// added units. Its share of a layer's weights is as close to the small model's as whole panels
// allow. Errors: INVALID_ARGUMENT naming the value that is too small or not a multiple of a block.
absl::StatusOr<Placement> Place(const engine::ModelShape& source, const engine::LevelTable& levels,
                                const TargetShape& target);

}  // namespace withy::inflate
