// Elastic levels of a file: the prefix of heads and neurons that each level computes of each layer,
// and the rank of its LoRA. Neighbours: layout.h packs the LoRA tensors, model/ computes with them.
// docs/formats-elastic.md specifies keys and tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/weights/shape.h"

namespace withy::engine {

// Limits of a file.
inline constexpr int32_t kMaxLevels = 64;
inline constexpr int32_t kMaxLoraRank = 64;

// Part of one layer that a level computes: a prefix of the query heads (in packed order) and of the
// MLP's neurons. 0 omits attention or the MLP. If levels do not cut KV heads, K and V are computed
// anyway, so that the context can continue at another level. A level that is a slice
// (ModelShape::nested_slices) has all heads of a layer and a prefix of its neurons, or leaves out
// the whole layer, with all that it has beside attention and MLP. Source: Devvrit et al.,
// "MatFormer", section 3.1; layers are left out by Gemma 3n.
struct LayerExtent {
  int32_t heads = 0;    // a multiple of ModelShape::query_heads_per_unit, up to the model's heads
  int32_t neurons = 0;  // a multiple of the panel of ffn_down, or all of the layer
  friend bool operator==(const LayerExtent&, const LayerExtent&) = default;
};

// All of a layer.
inline LayerExtent FullExtent(const ModelShape& shape, int32_t layer) {
  return {shape.heads, shape.NeuronsOf(layer)};
}

// A level below the full model, layer by layer.
struct LevelSpec {
  int32_t percent = 0;
  std::vector<LayerExtent> layers = {};  // [info().layers]
};

struct LevelTable {
  std::vector<LevelSpec> levels;  // ascending, without the full model
  int32_t lora_rank = 0;          // 0: the file has no LoRA
};

// Number of weights that a level computes of a layer, in units of d_model.
double LayerParameters(const ModelShape& shape, const LayerExtent& extent);

// Computes the extents of one level from its share of the layers' parameters. `anchors`: layers by
// importance, most important first. The first fifth of them is not cut, or a tenth, or none, so
// that every other layer keeps at least half of the level. `head_share`: share of its heads that a
// cut layer keeps, relative to its share of parameters (1: equal to its share of neurons). Units
// are not divided: ModelShape::query_heads_per_unit heads, one panel of neurons. The rounding
// remainder of a layer is passed to the next layers. A level too small for one unit of each in
// every layer omits attention or the MLP of the least important layers. `above`: the level that
// must contain this one, if any; an anchor that `above` cuts keeps the extent it has there. Source:
// ElastiLM section 3.2; anchors yield (docs/method-elastic.md, Anchors).
LevelSpec PlanLevel(const ModelShape& shape, int32_t percent, std::span<const int32_t> anchors,
                    double head_share = 1.0, const LevelSpec* above = nullptr);

// Checks the levels of a file, in per cent, without the full one. Errors: INVALID_ARGUMENT naming
// the level and the limit (ascending from 1 to 99, at most kMaxLevels, none below LeastLevel).
absl::Status CheckPercents(const ModelShape& shape, std::span<const int32_t> percents);

// Lowest level that a model can have, in per cent: the share of K and V, which levels always
// compute if they do not cut KV heads. A lower level would be larger than its per cent.
int32_t LeastLevel(const ModelShape& shape);

// Plans nested levels from the highest down, so that the limits of a low level cost higher ones
// nothing. `percents` ascending.
std::vector<LevelSpec> PlanLevels(const ModelShape& shape, std::span<const int32_t> percents,
                                  std::span<const int32_t> anchors, double head_share = 1.0);

// The factors of one layer's LoRA at one level. Only layers that the level cuts have a LoRA, and
// only for parts that the level does not omit.
enum class LoraPart {
  kAttentionIn,     // A of Q, K and V, stacked: [3 * rank, d_model]
  kAttentionOutIn,  // A of O: [rank, query width of the level]
  kFfnIn,           // A of gate and up: [2 * rank, d_model]
  kDownIn,          // A of down: [rank, neurons of the level]
  kQ,               // B, each [rank, outputs of the level]; query heads in packed order
  kK,
  kV,
  kAttentionOut,
  kGate,
  kUp,
  kDown,
};
inline constexpr int kLoraParts = 11;

// Whether a part is an A (the weights of a product) rather than a B.
constexpr bool IsLoraIn(LoraPart part) { return part <= LoraPart::kDownIn; }
// Name in the GGUF and in the packed file: "withy.lora.40.blk.3.attn_q.b".
std::string LoraName(int32_t percent, int32_t layer, LoraPart part);
// Whether a part belongs to attention rather than to the MLP.
constexpr bool IsAttention(LoraPart part) {
  return part != LoraPart::kFfnIn && part != LoraPart::kDownIn && part < LoraPart::kGate;
}
// Shape of the tensor in the GGUF; empty if the level omits that part of the layer.
struct LoraShape {
  int32_t rows = 0;
  int32_t cols = 0;
  bool empty() const { return rows == 0; }
};
LoraShape LoraShapeOf(LoraPart part, const ModelShape& shape, const LayerExtent& extent,
                      int32_t rank);

// Levels cut the inputs and outputs of attention and MLP, which must not be normed or scaled as a
// whole, unless the model was trained with its slices; and they cut one MLP, not experts. Errors:
// UNIMPLEMENTED naming architecture and reason.
absl::Status CheckHasLevels(const ModelShape& shape);

// Whether levels of a model with nested slices are slices: without LoRA, and each layer has all
// heads and some neurons, or is left out, which only layers that share K and V can be. OK for other
// models. Errors: INVALID_ARGUMENT naming level, layer, value and limit.
absl::Status CheckSlices(const ModelShape& shape, std::span<const LevelSpec> levels,
                         int32_t lora_rank);

// Reads a file's levels; where it names none, TrainedSlices; empty for a plain model. Errors:
// INVALID_ARGUMENT naming key, value and limit; as CheckHasLevels and CheckSlices.
absl::StatusOr<LevelTable> ReadLevels(const GgufFile& file, const ModelShape& shape);

}  // namespace withy::engine
