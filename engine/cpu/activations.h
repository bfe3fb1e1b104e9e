// Input rows of matrix products in the form that kernels read: 8-bit with a scale per 32 inputs,
// float, or both. Made once for all matrices that multiply the same rows (Q/K/V, gate/up).
// Kernels::prepare fills them, Kernels::matmul reads them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/round_up.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/types.h"

namespace withy::engine {

// Forms of the rows: kActQ8 for quantised weights, kActF32 for float weights.
enum ActivationForms : unsigned { kActQ8 = 1, kActF32 = 2 };

constexpr unsigned FormFor(WeightType type) { return IsQuantized(type) ? kActQ8 : kActF32; }

// Rows [rows, n_in]. The caller owns it and reuses it. Different threads may write different rows,
// and different 32-column blocks of a row.
class Activations {
 public:
  // Sets shape and forms; contents are undefined until written.
  void Reset(int rows, int n_in, unsigned forms) {
    rows_ = rows;
    n_in_ = n_in;
    forms_ = forms;
    blocks_ = (n_in + kQuantBlock - 1) / kQuantBlock;
    // An odd number of cache lines per row keeps rows out of the same cache sets.
    quant_stride_ = RoundUp(static_cast<size_t>(blocks_) * kQuantBlock, 128) + 64;
    meta_stride_ = RoundUp(static_cast<size_t>(blocks_), 16) + 16;
    float_stride_ = RoundUp(static_cast<size_t>(blocks_) * kQuantBlock, 32) + 16;
    const size_t n = static_cast<size_t>(rows);
    if ((forms & kActQ8) != 0) {
      quants_.Resize(n * quant_stride_);
      scales_.Resize(n * meta_stride_);
      init8_.Resize(n * meta_stride_);
      init4_.Resize(n * meta_stride_);
      sums_.Resize(n * meta_stride_);
    }
    if ((forms & kActF32) != 0) floats_.Resize(n * float_stride_);
  }

  int rows() const { return rows_; }
  int n_in() const { return n_in_; }
  int blocks() const { return blocks_; }
  unsigned forms() const { return forms_; }
  size_t quant_stride() const { return quant_stride_; }  // bytes between rows
  size_t meta_stride() const {
    return meta_stride_;
  }  // elements between rows of scales, inits, sums
  size_t float_stride() const { return float_stride_; }

  int8_t* quants(int row) { return quants_.data() + row * quant_stride_; }
  const int8_t* quants(int row) const { return quants_.data() + row * quant_stride_; }
  float* scales(int row) { return scales_.data() + row * meta_stride_; }
  const float* scales(int row) const { return scales_.data() + row * meta_stride_; }
  // Start value of a block's integer accumulator: -(the block's sum) * the offset of unsigned
  // weights (128 for kQ8, 8 for kQ4).
  int32_t* init8(int row) { return init8_.data() + row * meta_stride_; }
  const int32_t* init8(int row) const { return init8_.data() + row * meta_stride_; }
  int32_t* init4(int row) { return init4_.data() + row * meta_stride_; }
  const int32_t* init4(int row) const { return init4_.data() + row * meta_stride_; }
  // Sum of the block's dequantised inputs, scale * sum(q). It multiplies the minima of kQ4M.
  float* sums(int row) { return sums_.data() + row * meta_stride_; }
  const float* sums(int row) const { return sums_.data() + row * meta_stride_; }
  float* floats(int row) { return floats_.data() + row * float_stride_; }
  const float* floats(int row) const { return floats_.data() + row * float_stride_; }

 private:
  int rows_ = 0;
  int n_in_ = 0;
  int blocks_ = 0;
  unsigned forms_ = 0;
  size_t quant_stride_ = 0;
  size_t meta_stride_ = 0;
  size_t float_stride_ = 0;
  AlignedArray<int8_t> quants_;
  AlignedArray<float> scales_;
  AlignedArray<int32_t> init8_;
  AlignedArray<int32_t> init4_;
  AlignedArray<float> sums_;
  AlignedArray<float> floats_;
};

}  // namespace withy::engine
