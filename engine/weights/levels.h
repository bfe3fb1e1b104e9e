// Elastic levels as a file states them: which prefix of heads and neurons each level computes of
// each layer, and the rank of its LoRA. Neighbours: layout.h packs the LoRA tensors, model/
// computes with them. docs/formats-elastic.md has the keys and tensors.
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

// What a file may have at most.
inline constexpr int32_t kMaxLevels = 64;
inline constexpr int32_t kMaxLoraRank = 64;

// What one level computes of one layer: a prefix of the query heads (in packed order) and of the
// MLP's neurons. 0 leaves attention or the MLP out; where levels do not cut KV heads, K and V are
// computed all the same, so that the context can go on at another level.
struct LayerExtent {
  int32_t heads = 0;    // whole ModelShape::query_heads_per_unit, up to the model's heads
  int32_t neurons = 0;  // a multiple of the panel of ffn_down, or d_ff
  friend bool operator==(const LayerExtent&, const LayerExtent&) = default;
};

// A level cheaper than the full model, layer by layer.
struct LevelSpec {
  int32_t percent = 0;
  std::vector<LayerExtent> layers = {};  // [info().layers]
};

struct LevelTable {
  std::vector<LevelSpec> levels;  // ascending, the full model left out
  int32_t lora_rank = 0;          // 0: the file has no LoRA
};

// Weights that a level computes of a layer, in terms of d_model.
double LayerParameters(const ModelShape& shape, const LayerExtent& extent);

// Extents of one level from its share of the layers' parameters. `anchors`: layers by importance,
// most important first; the first fifth of the layers is not cut, or a tenth, or none, so that
// every other layer keeps at least half of the level. `head_share`: how much of its heads a cut
// layer keeps, in terms of its share of parameters (1: as much as of its neurons). Units are whole:
// ModelShape::query_heads_per_unit, one panel of neurons. What rounding one layer leaves over, the
// next ones get. A level with less than one of each for every layer leaves attention or the MLP out
// of the least important layers. `above`: the level that must hold this one, if any; an anchor that
// it cuts is kept as it is there.
// Source: ElastiLM section 4.2; anchors yield (docs/method-elastic.md, Anchors).
LevelSpec PlanLevel(const ModelShape& shape, int32_t percent, std::span<const int32_t> anchors,
                    double head_share = 1.0, const LevelSpec* above = nullptr);

// Whether a file may have these levels beside the full one, in per cent. Errors: INVALID_ARGUMENT
// naming the level and the limit (ascending from 1 to 99, at most kMaxLevels, none below
// LeastLevel).
absl::Status CheckPercents(const ModelShape& shape, std::span<const int32_t> percents);

// The least level that a model can have, in per cent: K and V, which levels compute where they do
// not cut KV heads. One below it would be larger than it says.
int32_t LeastLevel(const ModelShape& shape);

// Nested levels, planned from the highest down, so that what a low level lacks costs no higher one
// anything. `percents` ascending.
std::vector<LevelSpec> PlanLevels(const ModelShape& shape, std::span<const int32_t> percents,
                                  std::span<const int32_t> anchors, double head_share = 1.0);

// The factors of one layer's LoRA at one level; only layers that the level cuts have one, and of
// those only what is not left out.
enum class LoraPart {
  kAttentionIn,     // A of Q, K and V, one below the other: [3 * rank, d_model]
  kAttentionOutIn,  // A of O: [rank, query width of the level]
  kFfnIn,           // A of gate and up: [2 * rank, d_model]
  kDownIn,          // A of down: [rank, neurons of the level]
  kQ,               // B, each as [rank, outputs]: outputs of the level, query heads in packed order
  kK,
  kV,
  kAttentionOut,
  kGate,
  kUp,
  kDown,
};
inline constexpr int kLoraParts = 11;

// Whether a part is an A, which is a product's weights, and not a B.
constexpr bool IsLoraIn(LoraPart part) { return part <= LoraPart::kDownIn; }
// Name in the GGUF and in the packed file: "withy.lora.40.blk.3.attn_q.b".
std::string LoraName(int32_t percent, int32_t layer, LoraPart part);
// Whether a part belongs to attention, and not to the MLP.
constexpr bool IsAttention(LoraPart part) {
  return part != LoraPart::kFfnIn && part != LoraPart::kDownIn && part < LoraPart::kGate;
}
// Rows and columns of the tensor in the GGUF; none where the level leaves its part of the layer
// out.
struct LoraShape {
  int32_t rows = 0;
  int32_t cols = 0;
  bool empty() const { return rows == 0; }
};
LoraShape LoraShapeOf(LoraPart part, const ModelShape& shape, const LayerExtent& extent,
                      int32_t rank);

// The table of a file; empty for a plain one. Errors: INVALID_ARGUMENT naming key, value and limit.
absl::StatusOr<LevelTable> ReadLevels(const GgufFile& file, const ModelShape& shape);

}  // namespace withy::engine
