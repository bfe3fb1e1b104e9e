// Where the units of a small model stand among those of a large one, and where its levels cut the
// large one. Neighbours: inflate.cc moves the weights accordingly. Pure, knows no tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/weights/levels.h"
#include "engine/weights/shape.h"

namespace withy::inflate {

// What a model is grown to. The vocabulary and the heads' dimensions stay.
struct TargetShape {
  int32_t layers = 0;
  int32_t d_model = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t d_ff = 0;
};

// Columns that move together: a quantised block, so that weights are copied and never rounded
// again, and activations are rounded in the same groups as before.
inline constexpr int32_t kBlock = 32;

// Place of each of `count` things, spread evenly over `room` places; ascending.
std::vector<int32_t> Spread(int32_t count, int32_t room);

// Heads that have room for every group of `source`. The published ones where each group fits; else
// the source's KV heads with as many query heads as give the same number of attention weights: 9
// on 3 KV heads become 10 on 2 for a source with 8 on 2.
struct HeadCounts {
  int32_t heads = 0;
  int32_t kv_heads = 0;
};
HeadCounts FitHeads(const engine::ModelShape& source, const TargetShape& target);

// Where one layer's units stand, and what each level computes of it.
struct LayerPlacement {
  int32_t source = 0;                        // layer of the small model whose levels it follows
  bool real = false;                         // it holds that layer's weights; else it adds nothing
  std::vector<int32_t> ranks;                // of each query head of a group
  std::vector<int32_t> neuron_blocks;        // of each kBlock neurons
  std::vector<engine::LayerExtent> extents;  // [levels]
};

struct Placement {
  engine::ModelShape shape;           // of the large model: architecture, counts, epsilon
  std::vector<int32_t> width_blocks;  // of each kBlock dimensions of the residual stream
  std::vector<int32_t> groups;        // of each KV head
  std::vector<LayerPlacement> layers;
};

// A level of the large model computes all of the units that the small model's same level computes,
// and of its other units only such as add nothing; its share of a layer's weights is as near to the
// small model's share as whole panels allow. Errors: INVALID_ARGUMENT naming what is too small or
// no multiple of a block.
absl::StatusOr<Placement> Place(const engine::ModelShape& source, const engine::LevelTable& levels,
                                const TargetShape& target);

}  // namespace withy::inflate
