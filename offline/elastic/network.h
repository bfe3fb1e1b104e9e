// A model of a plain GGUF in LibTorch, whole or cut down to a level, with or without LoRA: what
// units are judged and recovered with. Neighbours: importance.h, reorder.h, recovery.h work on it,
// export.h writes it back. Sums in f32; has no KV cache and does not generate.
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

// Weights as the GGUF has them, [outputs, inputs]; vectors that the architecture lacks are
// undefined.
struct Layer {
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

// A level and what it is recovered with.
struct ElasticLevel {
  engine::LevelSpec spec;
  std::vector<Lora> lora;  // [layers]; empty: none
};

// Factors of what one layer's units give, of each token: [tokens, heads] and [tokens, neurons].
struct Gates {
  torch::Tensor heads, neurons;
};

// What is computed of a model. Null members: all, and none.
struct View {
  const std::vector<engine::LayerExtent>* extents = nullptr;  // [layers]
  const std::vector<Lora>* lora = nullptr;    // [layers]; undefined tensors where a layer has none
  int32_t without_layer = -1;                 // this layer is left out
  const std::vector<Gates>* gates = nullptr;  // [layers], of the extents
};

// Not thread-safe while weights change.
class Network {
 public:
  // Errors: as engine::ReadShape; NOT_FOUND and INVALID_ARGUMENT naming tensors.
  static absl::StatusOr<Network> FromGguf(const engine::GgufFile& file, torch::Device device);

  const engine::ModelShape& shape() const { return shape_; }
  torch::Device device() const { return device_; }
  // Of the layers; f32 unless set.
  void set_products(train::Products products) { products_ = products; }
  std::vector<Layer>& layers() { return layers_; }
  const std::vector<Layer>& layers() const { return layers_; }

  // tokens [batch, length] int64 → hidden states after the last norm, [batch * length, d_model].
  torch::Tensor Hidden(const torch::Tensor& tokens, const View& view = {}) const;
  // hidden [rows, d_model] → [rows, vocab_size].
  torch::Tensor Logits(const torch::Tensor& hidden) const;

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
  std::vector<Layer> layers_;
  torch::Tensor cos_, sin_;  // [context_length, head_dim / 2]
};

// The rows of a query projection (or columns of O), whole or cut to a higher level, of a level with
// so many query heads, as a view: [heads * head_dim, …] along dimension `dim`; the first ones of
// each group, or of the first groups where levels cut KV heads.
torch::Tensor HeadPrefix(const torch::Tensor& weight, int64_t dim, const engine::ModelShape& shape,
                         int64_t heads);

}  // namespace withy::elastic
