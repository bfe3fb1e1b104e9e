// A llama-architecture transformer for training: RMSNorm, RoPE on adjacent pairs, grouped-query
// attention, SwiGLU, untied output head. Neighbours: ops.h computes, optimizer.h updates, export.h
// writes GGUF. Has no KV cache and does not generate.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "offline/train/ops.h"
#include "offline/train/shape.h"

namespace withy::train {

// A parameter with its GGUF name and layout: [outputs, inputs] row-major, or [width].
struct Parameter {
  std::string name;
  torch::Tensor value;
};

// Not thread-safe.
class Model {
 public:
  // Initialised from `seed`.
  Model(const Shape& shape, uint64_t seed, torch::Device device);

  // Shares the weights but has its own gradients, for another thread or batch.
  Model Replica() const;

  const Shape& shape() const { return shape_; }
  // Product type of the layers; the head uses f32. Existing replicas keep theirs. Default f32.
  Products products() const { return products_; }
  void set_products(Products products) { products_ = products; }
  torch::Device device() const { return device_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }

  // tokens [batch, length] int64, padded on the right → hidden states after the last norm,
  // [batch * length, d_model].
  torch::Tensor Hidden(const torch::Tensor& tokens) const;
  // hidden [rows, d_model] → logits [rows, vocab_size].
  torch::Tensor Logits(const torch::Tensor& hidden) const;

 private:
  struct Layer {
    torch::Tensor attention_norm, q, k, v, o, ffn_norm, gate, up, down;
  };

  Model(const Shape& shape, torch::Device device) : shape_(shape), device_(device) {}
  void Bind();
  torch::Tensor Attention(const Layer& layer, const torch::Tensor& x, int64_t batch,
                          int64_t length) const;

  Shape shape_;
  torch::Device device_;
  Products products_ = Products::kF32;
  std::vector<Parameter> parameters_;
  torch::Tensor embedding_;
  std::vector<Layer> layers_;
  torch::Tensor output_norm_, output_;
  torch::Tensor cos_, sin_;  // [context_length, head_dim / 2]
};

}  // namespace withy::train
