// The buffers that program.h names, for the rows of one piece. Neighbours: lower.cc uses them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/cpu/activations.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/bound_weights.h"
#include "engine/kv/block.h"
#include "engine/weights/shape.h"

namespace withy::engine {

// Rows of floats, padded so that they do not fall into the same cache sets.
class RowBuffer {
 public:
  void Resize(size_t rows, int32_t width) {
    stride_ = width + kPad;
    floats_.Resize(rows * static_cast<size_t>(stride_));
  }
  ptrdiff_t stride() const { return stride_; }  // floats between rows
  float* data() { return floats_.data(); }
  float* row(int32_t i) { return floats_.data() + i * stride_; }

 private:
  static constexpr ptrdiff_t kPad = 16;  // keeps equal columns of rows out of one cache set
  AlignedArray<float> floats_;
  ptrdiff_t stride_ = 0;
};

// Contents are undefined after Resize.
struct Workspace {
  RowBuffer x;         // residual stream [d_model]
  RowBuffer q;         // [q_rows], packed head order
  RowBuffer k;         // [kv_rows]
  RowBuffer v;         // [kv_rows]
  RowBuffer attended;  // [q_rows]
  // [d_ff]; with experts, gate, up, neurons, expert_input and expert_output have `experts_used`
  // rows of an expert for each row, in the order of lowering/experts.h.
  RowBuffer gate;
  RowBuffer up;
  RowBuffer branch;  // what attention or MLP give [d_model]; empty if it enters x as it is
  RowBuffer out;     // input of the output head [d_model]
  RowBuffer angles;  // RopeAngles() of the row's position [2 * rope_dims], for each RoPE base
  // Of models with copies of the stream, with LAuReL, with inputs of each layer; else empty.
  RowBuffer streams;       // [streams * d_model], as in program.h
  RowBuffer laurel;        // [d_model]
  RowBuffer layer_inputs;  // [layers * layer_width]
  RowBuffer narrow;        // [laurel_rank] or [layer_width]
  RowBuffer lora;          // A * inputs of Q, K, V, O, gate, up and down [7 * rank]
  Activations input;
  Activations attention_input;
  Activations neurons;
  Activations head_input;
  Activations merge_input;   // copy 1 of all rows, then copy 2
  Activations laurel_input;  // `narrow` of LAuReL
  Activations layer_gated;   // `narrow` of inputs of a layer
  RowBuffer router;          // router * input [experts]
  Activations expert_input;  // rows of `input`
  RowBuffer expert_output;   // [d_model]
  AlignedArray<std::byte> tail_bytes;
  std::vector<std::byte*> tails;  // scratch blocks within tail_bytes; a row's are consecutive

  void Resize(size_t rows, const ModelShape& s, const ProductForms& forms, int32_t lora_rank,
              size_t tail_blocks, size_t block_bytes);
};

}  // namespace withy::engine
