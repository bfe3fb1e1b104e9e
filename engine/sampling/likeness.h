// How alike two sets of logits are. Neighbours: model/gpu_check.h compares a GPU with the CPU by
// it.
#pragma once

#include <cmath>
#include <span>

namespace withy::engine {

// Cosine between two vectors of one length.
inline double Cosine(std::span<const float> a, std::span<const float> b) {
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace withy::engine
