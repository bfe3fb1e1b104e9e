// A model of a plain GGUF in LibTorch, full or cut to a level, with or without LoRA; for measuring
// importance and for recovery. Neighbours: importance.h, reorder.h, recovery.h work on it, export.h
// writes it. Computes sums in f32; has no KV cache and does not generate.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/weights/levels.h"
#include "engine/weights/shape.h"
#include "offline/train/ops.h"

namespace withy::elastic {

// Weights as in the GGUF, [outputs, inputs]. Vectors that the architecture lacks are undefined.
struct Layer {
  // Where its units were in the file: query heads [heads] and neurons [d_ff], int64.
  torch::Tensor heads_were, neurons_were;
  torch::Tensor attention_norm, ffn_norm;
  torch::Tensor q, k, v, o, gate, up, down;
  torch::Tensor q_bias, k_bias, v_bias;
  torch::Tensor q_norm, k_norm;
};

// LoRA of one layer at one level: y += (x Aᵀ) Bᵀ, A [rank, inputs], B [outputs, rank]. Outputs of Q
// and inputs of O are the level's heads in the file's order, group by group.
struct Lora {
  struct Pair {
    torch::Tensor a, b;
  };
  Pair q, k, v, o, gate, up, down;
};

// A level and its recovery LoRA.
struct ElasticLevel {
  engine::LevelSpec spec;
  std::vector<Lora> lora;  // [layers]; empty: none
};

// Per-token factors on the outputs of one layer's units: [tokens, heads] and [tokens, neurons].
struct Gates {
  torch::Tensor heads, neurons;
};

// The part of a model to compute. Null members: everything, without LoRA and gates.
struct View {
  const std::vector<engine::LayerExtent>* extents = nullptr;  // [layers]
  const std::vector<Lora>* lora = nullptr;    // [layers]; undefined tensors for layers without one
  int32_t without_layer = -1;                 // index of a layer to skip; -1: none
  const std::vector<Gates>* gates = nullptr;  // [layers], for the units in `extents`
};

// Not thread-safe while weights change.
class Network {
 public:
  // Errors: as engine::ReadShape; NOT_FOUND and INVALID_ARGUMENT naming tensors.
  static absl::StatusOr<Network> FromGguf(const engine::GgufFile& file, torch::Device device);

  const engine::ModelShape& shape() const { return shape_; }
  torch::Device device() const { return device_; }
  // Product type of the layers; default f32.
  void set_products(train::Products products) { products_ = products; }
  // With bf16 products: keeps the weights that they round anyway in bf16. Not for what needs their
  // gradients or magnitudes.
  void RoundWeights();
  std::vector<Layer>& layers() { return layers_; }
  const std::vector<Layer>& layers() const { return layers_; }

  // tokens [batch, length] int64 → hidden states after the last norm, [batch * length, d_model].
  torch::Tensor Hidden(const torch::Tensor& tokens, const View& view = {}) const;
  // hidden [rows, d_model] → [rows, vocab_size], with f32 products.
  torch::Tensor Logits(const torch::Tensor& hidden) const;
  // The output head [vocab_size, d_model], as Divergence multiplies it.
  const torch::Tensor& output() const { return rounded_.defined() ? rounded_ : output_; }

 private:
  Network(engine::ModelShape shape, torch::Device device)
      : shape_(std::move(shape)), device_(device) {}
  torch::Tensor Attention(const torch::Tensor& x, int64_t batch, int64_t length, size_t layer,
                          const View& view) const;
  torch::Tensor Mlp(const torch::Tensor& x, size_t layer, const View& view) const;
  torch::Tensor Turn(const torch::Tensor& heads, int64_t length) const;
  engine::LayerExtent ExtentOf(size_t layer, const View& view) const;

  engine::ModelShape shape_;
  torch::Device device_;
  train::Products products_ = train::Products::kF32;
  torch::Tensor embedding_, output_norm_, output_;
  torch::Tensor rounded_;  // output_ in bf16, after RoundWeights
  std::vector<Layer> layers_;
  torch::Tensor cos_, sin_;  // [context_length, head_dim / 2]
};

// View of the part of a query projection's rows (or O's columns) that a level with `heads` query
// heads uses; `weight` may already be cut to a higher level. [heads * head_dim, …] along dimension
// `dim`: the first heads of each group, or the first groups if levels cut KV heads.
torch::Tensor HeadPrefix(const torch::Tensor& weight, int64_t dim, const engine::ModelShape& shape,
                         int64_t heads);

}  // namespace withy::elastic
