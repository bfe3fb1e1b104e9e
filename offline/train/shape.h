// The shape of a llama-architecture model and the two shapes that ship. Knows no LibTorch.
#pragma once

#include <cstdint>

namespace withy::train {

struct Shape {
  int64_t vocab_size = 0;
  int64_t d_model = 0;
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 64;
  int64_t ffn = 0;  // neurons
  int64_t context_length = 2048;
  double rope_theta = 100000.0;
  double norm_eps = 1e-5;

  int64_t parameters() const {
    const int64_t attention = d_model * head_dim * 2 * (heads + kv_heads);
    return 2 * vocab_size * d_model + layers * (attention + 3 * d_model * ffn + 2 * d_model) +
           d_model;
  }
  friend bool operator==(const Shape&, const Shape&) = default;
};

inline Shape TargetShape(int64_t vocab_size) {
  return {
      .vocab_size = vocab_size, .d_model = 256, .layers = 8, .heads = 8, .kv_heads = 2, .ffn = 512};
}
inline Shape DraftShape(int64_t vocab_size) {
  return {
      .vocab_size = vocab_size, .d_model = 128, .layers = 4, .heads = 2, .kv_heads = 1, .ffn = 384};
}

}  // namespace withy::train
