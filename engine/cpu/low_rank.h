// The second factor of a LoRA product, B [outputs, rank], in 8 bits, stored in blocks of 32 outputs
// in the order in which Kernels::add_low_rank reads it. The first factor, A [rank, inputs], is an
// ordinary PackedMatrix. Neighbours: weights/ packs it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/cpu/types.h"

namespace withy::engine {

// Each block has `rank` scales (f32), then `rank` times 32 quants.
// B[o, r] = scales(o / 32)[r] * quants(o / 32)[32 r + o % 32].
struct LowRankOutputs {
  int rank = 0;     // 0: nothing to add
  int outputs = 0;  // a multiple of 32
  const std::byte* data = nullptr;

  int blocks() const { return outputs / kQuantBlock; }
  const float* scales(int block) const { return reinterpret_cast<const float*>(At(block)); }
  const int8_t* quants(int block) const {
    return reinterpret_cast<const int8_t*>(At(block) + sizeof(float) * static_cast<size_t>(rank));
  }

 private:
  const std::byte* At(int block) const {
    constexpr size_t kRankBytes = sizeof(float) + kQuantBlock;
    return data + static_cast<size_t>(block) * static_cast<size_t>(rank) * kRankBytes;
  }
};

// Rows that the product is added to: y[row, o] += sum over r of B[o, r] * a[row, r].
struct LowRankRows {
  int rows = 0;
  const float* a = nullptr;  // [rows, rank], a_stride floats between rows
  ptrdiff_t a_stride = 0;
  float* y = nullptr;  // [rows, outputs of the range], y_stride floats between rows
  ptrdiff_t y_stride = 0;
};

constexpr size_t LowRankBytes(int rank, int outputs) {
  return static_cast<size_t>(rank) * (sizeof(float) * static_cast<size_t>(outputs / kQuantBlock) +
                                      static_cast<size_t>(outputs));
}

}  // namespace withy::engine
