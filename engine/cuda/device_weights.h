// A model's weights in the memory of a GPU, in the order in which its kernels read them.
// Neighbours: cpu/bound_weights.h has those of the packed file, args.h the order; run.cc looks them
// up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cpu/bound_weights.h"
#include "engine/cpu/key_bias.h"
#include "engine/cuda/gpu/gpu.h"
#include "engine/cuda/kernels/args.h"
#include "engine/model/facts.h"
#include "engine/model/program.h"

namespace withy::engine::cuda {

// Matrices of layers are either all in device memory, or (`streams`) copied for each operation into
// memory that all layers share. For one thread at a time.
class DeviceWeights {
 public:
  // Copies and converts the weights to memory of `way`. All arguments must outlive it. Errors: as
  // Gpu::Allocate.
  static absl::StatusOr<std::unique_ptr<DeviceWeights>> Create(Gpu& gpu, const ModelFacts& facts,
                                                               const BoundWeights& weights,
                                                               const KeyBias& key_bias,
                                                               MemoryWay way, bool streams,
                                                               bool embeds);

  const Matrix& matrix(const WeightName& name) const { return matrices_[IndexOf(name)]; }
  const float* vector(const WeightName& name) const { return vectors_[IndexOf(name)]; }
  const Matrix& lora_input(const LoraWeightName& name) const { return lora_inputs_[IndexOf(name)]; }
  const LowRank& lora_output(const LoraWeightName& name) const {
    return lora_outputs_[IndexOf(name)];
  }
  // What K of a layer gets before it is stored; null: nothing.
  const float* stored_key_bias(int32_t layer) const {
    return stored_bias_[static_cast<size_t>(layer)];
  }
  const KeyBiasTables& key_bias(int32_t layer) const {
    return bias_tables_[static_cast<size_t>(layer)];
  }
  bool has_key_bias() const { return has_key_bias_; }
  bool streams() const { return streams_; }

  // Queues the copies of an operation's streamed matrices, as far as `extent` needs them. Their
  // bytes may change once it returns.
  absl::Status LoadStage(const Op& op, const LayerExtent& extent);

  size_t bytes() const { return bytes_; }

 private:
  DeviceWeights(Gpu& gpu, const ModelFacts& facts, const BoundWeights& weights, MemoryWay way,
                bool streams)
      : gpu_(gpu), facts_(facts), weights_(weights), way_(way), streams_(streams) {
    for (int stage = 0; stage < Gpu::kStages; ++stage) stages_.emplace_back(gpu);
  }

  size_t IndexOf(const WeightName& name) const {
    return static_cast<size_t>(name.layer + 1) * kWeightRoles + static_cast<size_t>(name.role);
  }
  size_t IndexOf(const LoraWeightName& name) const {
    return (static_cast<size_t>(name.level) * static_cast<size_t>(facts_.shape.layers) +
            static_cast<size_t>(name.layer)) *
               kLoraParts +
           static_cast<size_t>(name.part);
  }
  absl::Status LoadAll(const KeyBias& key_bias, bool embeds);
  absl::Status LoadLayers();
  absl::Status LoadLora();
  absl::Status LoadBiases(const KeyBias& key_bias);
  absl::StatusOr<uint8_t*> Copy(const void* from, size_t bytes);
  absl::StatusOr<uint8_t*> NewMemory(size_t bytes);
  // Room for a matrix of this shape.
  absl::StatusOr<Matrix> NewMatrix(const PackedMatrix& packed);
  // Copies and converts outputs [0, n_out) and inputs [0, n_in), or what contains them.
  absl::Status Convert(const PackedMatrix& packed, int n_out, int n_in, const Matrix& to);
  absl::Status ConvertBytes(const std::byte* from, size_t bytes, PackedArgs args);
  absl::StatusOr<Matrix> Load(const PackedMatrix& packed);

  Gpu& gpu_;
  const ModelFacts& facts_;
  const BoundWeights& weights_;
  const MemoryWay way_;
  const bool streams_;
  std::vector<Buffer> stages_;  // packed bytes on their way; empty once all weights are there
  size_t next_stage_ = 0;
  std::vector<Buffer> memory_;
  size_t bytes_ = 0;
  std::vector<Matrix> matrices_;
  std::vector<const float*> vectors_;
  std::vector<Matrix> lora_inputs_;
  std::vector<LowRank> lora_outputs_;
  std::vector<const float*> stored_bias_;
  std::vector<KeyBiasTables> bias_tables_;
  bool has_key_bias_ = false;
};

}  // namespace withy::engine::cuda
