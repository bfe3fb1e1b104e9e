// Keys without their bias. A model's K bias b is the same for all tokens; rotated to position p it
// is R_p b, a function of p. Some models (Qwen2) have biases of 100 and more in a few dimensions
// that RoPE hardly turns. Rounded together with such a bias, a key keeps little of its own numbers.
// So pairs of dimensions with a large bias are stored without it, and attention adds q.R_p b
// (attention.h). Neighbours: lower.cc stores keys and lists the arguments of attention.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cpu/attention.h"
#include "engine/cpu/bound_weights.h"
#include "engine/model/facts.h"

namespace withy::engine {

// Immutable.
class KeyBias {
 public:
  // Of the weights that are bound; they must outlive it.
  KeyBias(const ModelFacts& facts, const BoundWeights& weights);

  // What is added to K of a layer before it is stored, [kv_rows]. The layer must have a K bias.
  const float* Stored(int32_t layer) const { return stored_[static_cast<size_t>(layer)]; }
  // What attention adds; nullptr: nothing.
  const AttentionKeyBias* Added(int32_t layer) const {
    return layers_.empty() ? nullptr : layers_[static_cast<size_t>(layer)].get();
  }

 private:
  struct Layer : AttentionKeyBias {
    std::vector<float> rest;  // of the bias, stored with K
    std::vector<Pair> all_pairs;
    std::vector<int32_t> all_counts;
  };

  static std::unique_ptr<Layer> Split(const ModelShape& shape, const float* bias);
  void MakeTables(const ModelShape& shape);

  std::vector<const float*> stored_;            // by layer; nullptr without a K bias
  std::vector<float> zeros_;                    // stored where the bias changes nothing
  std::vector<std::unique_ptr<Layer>> layers_;  // empty: no layer has anything to add
  std::vector<float> in_run_;
  std::vector<float> of_run_;
};

// Chooses the pairs of a head whose bias is not stored: the largest ones, as few as leave a rest of
// no account; none if the bias as a whole is of none. `size`: of each pair's bias. Returns indices,
// ascending, at most kMaxKeyBiasPairs.
std::vector<int32_t> ChooseKeyBiasPairs(const std::vector<float>& size);

}  // namespace withy::engine
