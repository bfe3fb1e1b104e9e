// Names of a model's weights, as operations refer to them, and the tensor of the packed file that
// each of them is. Neighbours: program.h, facts.h checks that a file has them all, an executor
// binds them to addresses.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/weights/levels.h"

namespace withy::engine {

enum class WeightRole : uint8_t {
  kEmbedding,   // [vocab, d_model]
  kHead,        // [vocab, d_model]; the embedding where it is tied
  kOutputNorm,  // [d_model]
  kRopeFrequencies,
  // Of a layer. A model may lack head norms and biases; operations then do not name them.
  kAttnNorm,  // [d_model]
  kFfnNorm,
  kQNorm,  // [head_dim]
  kKNorm,
  kQBias,  // [q_rows], query heads in packed order
  kKBias,  // [kv_rows]
  kVBias,
  kQ,       // [q_rows, d_model], rows in QueryHeadOrder
  kK,       // [kv_rows, d_model]
  kV,       // [kv_rows, d_model]
  kOutput,  // [d_model, q_rows], columns in QueryHeadOrder
  kGate,    // [d_ff, d_model]
  kUp,      // [d_ff, d_model]
  kDown,    // [d_model, d_ff]
};
inline constexpr int kWeightRoles = 18;

struct WeightName {
  WeightRole role = WeightRole::kEmbedding;
  int32_t layer = -1;  // -1: of no layer
  friend bool operator==(const WeightName&, const WeightName&) = default;
};

// A LoRA factor: LoraName(level's percent, layer, part) is its tensor.
struct LoraWeightName {
  LoraPart part = LoraPart::kAttentionIn;
  int32_t layer = 0;
  int32_t level = 0;  // index into the model's levels
};

// The tensor's name in a packed file, e.g. "blk.3.attn_q". kHead: "output", which a file with tied
// embeddings lacks.
std::string TensorName(const WeightName& name);

}  // namespace withy::engine
