// Names of a model's weights, by which operations refer to them, and the packed file's tensor for
// each name. Neighbours: program.h uses them, facts.h checks that a file has them all, an executor
// binds them to addresses.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "engine/weights/levels.h"

namespace withy::engine {

enum class WeightRole : uint8_t {
  kEmbedding,   // [vocab, d_model]
  kHead,        // [vocab, d_model]; the embedding if the two are tied
  kPositions,   // [context_length, d_model]; only of learned positions
  kOutputNorm,  // [d_model]
  kOutputNormBias,
  kSpread,               // [(streams - 1) * d_model, d_model]; of copies of the stream
  kMerge,                // [(streams - 1) * d_model, d_model], a matrix of each copy
  kLayerEmbedding,       // [vocab, layers * layer_width]; of inputs of each layer
  kLayerProjection,      // [layers * layer_width, d_model]
  kLayerProjectionNorm,  // [layer_width]
  kRopeFrequencies,
  kLongRopeFrequencies,  // only of LongRoPE
  // Per layer. Operations name norms and biases only if the model has them.
  kAttnNorm,  // [d_model]
  kAttnNormBias,
  kFfnNorm,
  kFfnNormBias,
  kPostAttnNorm,  // of what attention adds
  kPostFfnNorm,   // of what the MLP adds
  kQNorm,         // [head_dim]; of whole Q and K [q_rows] in packed order, [kv_rows]
  kKNorm,
  kQBias,  // [q_rows], query heads in packed order
  kKBias,  // [kv_rows]
  kVBias,
  kAttnSinks,  // [heads] in packed order
  // Of copies of the stream.
  kStreamRouterNorm,  // [d_model]
  kStreamRouter,      // [streams, d_model], as a vector
  kStreamPredict,     // [streams * streams, streams], as a vector
  kStreamCorrect,     // [streams, streams], as a vector
  kStreamScale,       // [d_model], of the corrected stream that inputs of layers are gated by
  kLaurelLeft,        // [laurel_rank, d_model]
  kLaurelRight,       // [d_model, laurel_rank]
  kLaurelNorm,        // [d_model], of what the two give
  // Of inputs of each layer.
  kLayerGate,  // [layer_width, d_model]
  kLayerOut,   // [d_model, layer_width]
  kLayerNorm,  // [d_model], of what it gives
  // Of a mixture of experts, whose matrices lie one below the other.
  kRouter,           // [experts, d_model]
  kGateExperts,      // [experts * expert_neurons, d_model]
  kUpExperts,        // [experts * expert_neurons, d_model]
  kDownExperts,      // [experts * d_model, expert_neurons]
  kAttnOutputBias,   // [d_model]
  kUpBias,           // [d_ff]
  kDownBias,         // [d_model]
  kRouterBias,       // [experts]
  kGateExpertsBias,  // [experts * expert_neurons]
  kUpExpertsBias,    // [experts * expert_neurons]
  kDownExpertsBias,  // [experts * d_model]
  kQ,                // [q_rows, d_model], rows in QueryHeadOrder
  kK,                // [kv_rows, d_model]
  kV,                // [kv_rows, d_model]
  kOutput,           // [d_model, q_rows], columns in QueryHeadOrder
  kGate,             // [d_ff, d_model]; not of an MLP without a gate
  kUp,               // [d_ff, d_model]
  kDown,             // [d_model, d_ff]
};
inline constexpr int kWeightRoles = 53;

struct WeightName {
  WeightRole role = WeightRole::kEmbedding;
  int32_t layer = -1;  // -1: belongs to no layer
  friend bool operator==(const WeightName&, const WeightName&) = default;
};

// A LoRA factor. Its tensor is LoraName(the level's percent, layer, part).
struct LoraWeightName {
  LoraPart part = LoraPart::kAttentionIn;
  int32_t layer = 0;
  int32_t level = 0;  // index into the model's levels
};

// The tensor's name in a packed file, e.g. "blk.3.attn_q". kHead is "output", which a file with
// tied embeddings does not contain.
std::string TensorName(const WeightName& name);

}  // namespace withy::engine
