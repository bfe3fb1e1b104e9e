// The tensors of a packed file by their role in the model, checked against its shape.
// Neighbours: forward.cc computes with them. Owns nothing: views into the PackedFile.
#pragma once

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cpu/low_rank.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/model/model.h"
#include "engine/weights/levels.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/shape.h"

namespace withy::engine {

// Vectors that a model lacks (bias, QK norm) are null.
struct LayerWeights {
  const float* attn_norm = nullptr;  // [d_model]
  const float* q_norm = nullptr;     // [head_dim]
  const float* k_norm = nullptr;
  const float* q_bias = nullptr;  // [q_rows], packed order
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* ffn_norm = nullptr;
  PackedMatrix q;  // [q_rows, d_model], rows in QueryHeadOrder
  PackedMatrix k;  // [kv_rows, d_model]
  PackedMatrix v;
  PackedMatrix output;  // [d_model, q_rows], columns in QueryHeadOrder
  PackedMatrix gate;    // [d_ff, d_model]
  PackedMatrix up;
  PackedMatrix down;  // [d_model, d_ff]
};

// The LoRA of one layer at one level; nothing of it where the level does not cut the layer, nor of
// what the level leaves out.
struct LoraWeights {
  bool attention = false;
  bool mlp = false;
  PackedMatrix attention_in;      // A of Q, K, V: [3 * rank, d_model]
  PackedMatrix attention_out_in;  // A of O: [rank, query width of the level]
  PackedMatrix ffn_in;            // A of gate, up: [2 * rank, d_model]
  PackedMatrix down_in;           // A of down: [rank, neurons of the level]
  LowRankOutputs q, k, v, attention_out, gate, up, down;  // B
};

struct ModelWeights {
  ModelShape shape;
  PackedMatrix embedding;  // [vocab, d_model]
  PackedMatrix head;       // [vocab, d_model]; the embedding when tied
  const float* output_norm = nullptr;
  std::vector<LayerWeights> layers;
  std::vector<LevelSpec> levels;               // the file's, the full one left out
  std::vector<std::vector<LoraWeights>> lora;  // [level][layer]; empty without LoRA
  int32_t lora_rank = 0;
};

// Errors: DATA_LOSS naming the tensor that is missing or has another shape than the metadata asks
// for; those of ReadShape.
absl::StatusOr<ModelWeights> CollectWeights(const PackedFile& file);

// Checks level tables against a model: nested, in whole units and panels. Errors: INVALID_ARGUMENT
// naming level, layer and limit.
absl::Status CheckLevels(const ModelWeights& weights, std::span<const LevelSpec> levels);

// The public description; levels are those of the weights and the full model.
ModelInfo DescribeModel(const PackedFile& file, const ModelWeights& weights);

}  // namespace withy::engine
