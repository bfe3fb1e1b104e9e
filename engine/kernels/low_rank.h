// The second factor of a LoRA product, B [outputs, rank], kept column by column in 8 bits, so that
// adding it to a run of outputs streams rank rows. The first factor, A [rank, inputs], is an
// ordinary PackedMatrix. Neighbours: weights/ packs it, kernels.h adds it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kernels/types.h"

namespace withy::engine {

// B[o, r] = scales[r][o / 32] * quants[r][o]: rank rows of scales, then rank rows of quants.
struct LowRankOutputs {
  int rank = 0;     // 0: nothing to add
  int outputs = 0;  // a multiple of 32
  const std::byte* data = nullptr;

  int blocks() const { return outputs / kQuantBlock; }
  const float* scales(int r) const {
    return reinterpret_cast<const float*>(data) + static_cast<ptrdiff_t>(r) * blocks();
  }
  const int8_t* quants(int r) const {
    return reinterpret_cast<const int8_t*>(data + sizeof(float) * static_cast<size_t>(rank) *
                                                      static_cast<size_t>(blocks())) +
           static_cast<ptrdiff_t>(r) * outputs;
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
