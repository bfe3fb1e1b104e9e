// Helpers of the kernel tests: random data by seed, random packed matrices, bit comparison.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstring>
#include <random>
#include <vector>

#include "engine/cpu/aligned.h"
#include "engine/cpu/packed_matrix.h"

namespace withy::engine {

inline std::vector<float> RandomFloats(std::mt19937& rng, size_t n, float sigma = 1.0f) {
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> v(n);
  for (float& x : v) x = normal(rng);
  return v;
}

inline bool SameBits(const float* a, const float* b, size_t n) {
  return std::memcmp(a, b, n * sizeof(float)) == 0;
}

// A packed matrix that owns its bytes.
struct OwnedMatrix {
  PackedMatrix m;
  AlignedArray<std::byte> bytes;
};

// Random weights of the type. The same seed gives the same weights for any panel_inputs.
inline OwnedMatrix RandomMatrix(unsigned seed, WeightType type, int n_out, int n_in,
                                int panel_inputs) {
  OwnedMatrix owned;
  owned.m = {type, n_out, n_in, panel_inputs, nullptr};
  owned.bytes.Resize(PackedBytes(owned.m));
  ZeroPacked(owned.m, owned.bytes.data());
  std::mt19937 rng(seed);
  const size_t n = static_cast<size_t>(n_in);
  std::vector<uint16_t> half(n);
  std::vector<int8_t> q8(n);
  std::vector<uint8_t> q4(n);
  std::vector<uint16_t> scales(n / kQuantBlock + 1);
  std::vector<uint16_t> mins(n / kQuantBlock + 1);
  for (int row = 0; row < n_out; ++row) {
    const std::vector<float> f32 = RandomFloats(rng, n, 0.05f);
    for (size_t i = 0; i < n; ++i) {
      half[i] = type == WeightType::kBf16 ? F32ToBf16(f32[i]) : F32ToF16(f32[i]);
      q8[i] = static_cast<int8_t>(static_cast<int>(rng() % 256) - 128);
      q4[i] = static_cast<uint8_t>(rng() % 16);
    }
    for (size_t b = 0; b < scales.size(); ++b) {
      scales[b] = F32ToF16(0.0005f + 0.001f * static_cast<float>(rng() % 100) / 100.0f);
      mins[b] = F32ToF16(-0.008f + 0.004f * static_cast<float>(rng() % 100) / 100.0f);
    }
    const WeightRow weights = {f32.data(), half.data(),   q8.data(),
                               q4.data(),  scales.data(), mins.data()};
    PackRow(owned.m, row, weights, owned.bytes.data());
  }
  owned.m.data = owned.bytes.data();
  return owned;
}

}  // namespace withy::engine
