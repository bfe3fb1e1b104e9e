// Facts about a model that do not need its weights: shape, levels, which optional tensors it has.
// Read from a packed file's tables and checked against its metadata. Neighbours: row_plan.h and
// emit.h use them, weight_name.h names the tensors, an executor binds them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model.h"
#include "engine/weights/levels.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/shape.h"

namespace withy::engine {

struct LayerFacts {
  bool q_bias = false;
  bool k_bias = false;
  bool v_bias = false;
  int32_t output_panel = 0;  // inputs per panel of attn_output; levels cut heads in whole panels
  int32_t down_panel = 0;    // inputs per panel of ffn_down; levels cut neurons in whole panels
};

struct ModelFacts {
  ModelShape shape;
  std::vector<LayerFacts> layers;
  std::vector<LevelSpec> levels;  // ascending; the full model last
  int32_t lora_rank = 0;          // of every level below the full one; 0: no LoRA

  int32_t full_level() const { return static_cast<int32_t>(levels.size()) - 1; }
  const LayerExtent& Extent(int32_t level, int32_t layer) const {
    return levels[static_cast<size_t>(level)].layers[static_cast<size_t>(layer)];
  }
  // Whether a level has LoRA on a layer's attention (else its MLP). True if the model has LoRA, the
  // level cuts the layer, and it does not leave that part out.
  bool HasLora(int32_t level, int32_t layer, bool attention) const;
};

// `levels` replaces the file's levels, without LoRA; empty: the file's. `window`:
// ModelShape::UseWindow. Errors: DATA_LOSS naming a
// tensor that is missing or whose shape differs from the metadata; INVALID_ARGUMENT naming level,
// layer and limit (levels must be nested, in whole units and panels); as ReadShape and ReadLevels.
absl::StatusOr<ModelFacts> ReadFacts(const PackedFile& file, std::span<const LevelSpec> levels,
                                     int32_t window = 0);

// The model's public description, Model::info().
ModelInfo DescribeModel(const PackedFile& file, const ModelFacts& facts);

}  // namespace withy::engine
