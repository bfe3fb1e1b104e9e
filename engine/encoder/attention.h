// Attention of a bidirectional encoder: every token of a window sees every other. Built from the
// float product and softmax of kernels.h: keys and values are laid out as packed matrices once a
// layer, so that scores are one product and outputs another, on every kernel target. Neighbours:
// encoder.cc. Results do not depend on how rows are cut into blocks.
#pragma once

#include <cstddef>
#include <vector>

#include "engine/cpu/activations.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/kernels.h"

namespace withy::engine {

// Keys and values of one layer of several windows. Different blocks of rows may be packed by
// different threads; all of a window are packed before it is attended to.
class AttentionMemory {
 public:
  // Rows of a block but a window's last are a multiple of this many.
  static constexpr int kRowUnit = 16;

  // Lays out room for windows of `window_rows` rows each.
  void Reset(const int* window_rows, int windows, int heads, int head_dim);

  // Packs rows [first, first + rows) of the window. k and v: [rows, heads * head_dim], `stride`
  // floats between rows. `first` is a multiple of kRowUnit; `rows` too, or up to the window's end.
  void Pack(int window, int first, int rows, const float* k, const float* v, ptrdiff_t stride);

  int rows(int window) const { return windows_[static_cast<size_t>(window)].rows; }
  int heads() const { return heads_; }
  int head_dim() const { return head_dim_; }
  // [keys, head_dim] and [head_dim, keys] as products read them; keys are padded to kRowUnit with
  // zeros.
  PackedMatrix Keys(int window, int head) const;
  PackedMatrix Values(int window, int head) const;

 private:
  struct Window {
    int rows = 0;
    size_t keys = 0;    // of head 0, in floats
    size_t values = 0;  // of head 0
  };
  size_t HeadKeyFloats(int rows) const;
  size_t HeadValueFloats(int rows) const;

  int heads_ = 0;
  int head_dim_ = 0;
  std::vector<Window> windows_;
  AlignedArray<float> floats_;
};

// Room for one thread's block of rows.
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
