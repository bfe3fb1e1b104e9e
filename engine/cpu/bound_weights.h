// Addresses of a model's weights by name, for the CPU kernels. Neighbours: model/weight_name.h has
// the names, weights/packed_file.h the bytes; lower.cc looks them up for each operation.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/cpu/low_rank.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/model/facts.h"
#include "engine/model/weight_name.h"
#include "engine/weights/packed_file.h"

namespace withy::engine {

// Forms (ActivationForms) that the inputs of each kind of product need.
struct ProductForms {
  unsigned input = 0;      // Q, K, V, gate, up, router
  unsigned experts = 0;    // gate and up of experts
  unsigned attention = 0;  // O
  unsigned neurons = 0;    // down
  unsigned head = 0;
  unsigned merge = 0;      // copies of the stream
  unsigned laurel = 0;     // the second matrix of LAuReL
  unsigned layer_out = 0;  // gated inputs of a layer
};

// Immutable. Views into the file, which must outlive it.
class BoundWeights {
 public:
  // `facts` must come from ReadFacts(file).
  BoundWeights(const PackedFile& file, const ModelFacts& facts);

  // The model must have the weight.
  const PackedMatrix& Matrix(const WeightName& name) const { return matrices_[IndexOf(name)]; }
  const float* Vector(const WeightName& name) const { return vectors_[IndexOf(name)]; }
  const PackedMatrix& LoraInput(const LoraWeightName& name) const {
    return lora_inputs_[IndexOf(name)];
  }
  const LowRankOutputs& LoraOutput(const LoraWeightName& name) const {
    return lora_outputs_[IndexOf(name)];
  }
  const ProductForms& forms() const { return forms_; }

 private:
  static size_t IndexOf(const WeightName& name) {
    return static_cast<size_t>(name.layer + 1) * kWeightRoles + static_cast<size_t>(name.role);
  }
  size_t IndexOf(const LoraWeightName& name) const {
    return (static_cast<size_t>(name.level) * layers_ + static_cast<size_t>(name.layer)) *
               kLoraParts +
           static_cast<size_t>(name.part);
  }
  void Bind(const PackedFile& file, const WeightName& name);
  void BindLora(const PackedFile& file, const ModelFacts& facts);
  void CollectForms();

  const size_t layers_;
  // By IndexOf. Entries are empty where the model has no such weight.
  std::vector<PackedMatrix> matrices_;
  std::vector<const float*> vectors_;
  std::vector<PackedMatrix> lora_inputs_;
  std::vector<LowRankOutputs> lora_outputs_;
  ProductForms forms_;
};

}  // namespace withy::engine
