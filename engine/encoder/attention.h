// Attention of a bidirectional encoder: every token of a window sees every other. Uses the float
// product and softmax of kernels.h: keys and values are packed once per layer, so that scores and
// outputs are one product each on every kernel target. Neighbour: encoder.cc. Results do not depend
// on the division of rows into blocks.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/cpu/activations.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/kernels.h"

namespace withy::engine {

// Keys and values of one layer of several windows. Different threads may pack different blocks of
// rows; a window must be fully packed before it is attended to.
class AttentionMemory {
 public:
  // Every block except a window's last has a multiple of this many rows.
  static constexpr int kRowUnit = 16;

  // Allocates windows of `window_rows` rows each.
  void Reset(const int* window_rows, int windows, int heads, int head_dim);

  // Packs rows [first, first + rows) of the window. k and v: [rows, heads * head_dim], `stride`
  // floats between rows. `first` and `rows` are multiples of kRowUnit, except that the last rows of
  // the window may be fewer.
  void Pack(int window, int first, int rows, const float* k, const float* v, ptrdiff_t stride);

  int rows(int window) const { return windows_[static_cast<size_t>(window)].rows; }
  int heads() const { return heads_; }
  int head_dim() const { return head_dim_; }
  // [keys, head_dim] and [head_dim, keys] in the layout of products; keys are zero-padded to
  // kRowUnit.
  PackedMatrix Keys(int window, int head) const;
  PackedMatrix Values(int window, int head) const;

 private:
  struct Window {
    int rows = 0;
    size_t keys = 0;    // head 0, in floats
    size_t values = 0;  // head 0
  };
  size_t HeadKeyFloats(int rows) const;
  size_t HeadValueFloats(int rows) const;

  int heads_ = 0;
  int head_dim_ = 0;
  std::vector<Window> windows_;
  AlignedArray<float> floats_;
};

// Scratch of one thread for a block of rows.
struct AttentionScratch {
  Activations queries;
  Activations scores;
};

// out[rows, heads * head_dim] = softmax(q k' / sqrt(head_dim)) v over all keys of the window. q and
// out do not alias.
void AttendWindow(const Kernels& kernels, const AttentionMemory& memory, int window, int rows,
                  const float* q, ptrdiff_t q_stride, AttentionScratch* scratch, float* out,
                  ptrdiff_t out_stride);

}  // namespace withy::engine
