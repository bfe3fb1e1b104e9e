// The TLM in LibTorch, with gradients; its outputs equal those of engine/encoder's Encoder on the
// same weights. Neighbours: engine/encoder/checkpoint.h holds the weights before and after
// training, score_stage.cc and decision_stage.cc train it. Reads windows made by WindowMaker.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/encoder/checkpoint.h"

namespace withy::tlm {

// Windows of a batch, padded on the right.
struct PaddedWindows {
  torch::Tensor ids;   // [windows, longest] int64
  torch::Tensor mask;  // [windows, longest] f32: 1 for tokens, 0 for padding
};

PaddedWindows Pad(std::span<const std::vector<int32_t>> windows);

// Logits; undefined if not computed.
struct NetworkOutput {
  torch::Tensor keep;    // [windows, longest]
  torch::Tensor prompt;  // [windows, prompt levels]
  torch::Tensor model;   // [windows, model levels]
};

// Not thread-safe while weights change.
class Network {
 public:
  explicit Network(const engine::TlmCheckpoint& checkpoint);

  // Copies the weights to `checkpoint`.
  void Store(engine::TlmCheckpoint* checkpoint) const;

  const engine::TlmShape& shape() const { return shape_; }
  std::map<std::string, torch::Tensor>& weights() { return weights_; }

  NetworkOutput Score(const PaddedWindows& windows) const;
  NetworkOutput Decide(const PaddedWindows& windows) const;

 private:
  const torch::Tensor& W(const std::string& name) const { return weights_.at(name); }
  torch::Tensor Dense(const torch::Tensor& x, const std::string& name) const;
  torch::Tensor Norm(const torch::Tensor& x, const std::string& name, double epsilon) const;
  torch::Tensor Embed(const PaddedWindows& windows) const;
  torch::Tensor Layer(const torch::Tensor& x, const torch::Tensor& hidden_keys,
                      const std::string& name) const;
  torch::Tensor Tower(torch::Tensor x, const PaddedWindows& windows, const std::string& tower,
                      int32_t layers) const;

  engine::TlmShape shape_;
  std::map<std::string, torch::Tensor> weights_;  // a matrix is [outputs, inputs]
};

}  // namespace withy::tlm
