// The buffers that program.h names, in device memory, for the rows of one piece. Neighbours: run.cc
// and op_products.cc use them; cpu/workspace.h has those of the CPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/cpu/activations.h"
#include "engine/cpu/bound_weights.h"
#include "engine/cuda/gpu/gpu.h"
#include "engine/cuda/kernels/args.h"
#include "engine/model/facts.h"

namespace withy::engine::cuda {

// Inputs of products in device memory.
class InputBuffer {
 public:
  explicit InputBuffer(Gpu& gpu) : memory_(gpu) {}

  // Room for rows [rows, width] in `forms` (ActivationForms).
  absl::Status Reserve(size_t rows, int width, unsigned forms);
  const Inputs& get() const { return inputs_; }
  bool quantise() const { return (forms_ & kActQ8) != 0; }
  bool keep_floats() const { return (forms_ & kActF32) != 0; }

 private:
  Buffer memory_;
  Inputs inputs_;
  unsigned forms_ = 0;
};

// What a pass needs room for.
struct PassSizes {
  size_t rows = 0;
  size_t logit_rows = 0;
  size_t tail_bytes = 0;
  int32_t runs = 1;            // of attention, of the row that sees most
  int32_t density_chunks = 0;  // 0: nobody wants densities
  bool low_rank = false;       // some rows have LoRA
  bool half_blocks = false;    // some context has blocks of 16 bits
  bool key_bias = false;
};

struct Workspace {
  explicit Workspace(Gpu& gpu);

  // Errors: as Gpu::Allocate.
  absl::Status Reserve(const ModelFacts& facts, const ProductForms& forms, const PassSizes& sizes);

  InputBuffer input;
  InputBuffer attention_input;
  InputBuffer neurons;
  InputBuffer head_input;
  Buffer x;  // the residual stream
  Buffer q;
  Buffer k;
  Buffer v;
  Buffer lora;  // A * input of each part, [rows, 7 * rank]
  Buffer query_bytes;
  Queries queries;  // in query_bytes
  Buffer parts;     // of attention
  size_t part_row_bytes = 0;
  Buffer tail;
  Buffer density;  // zeros
  Buffer tapped;
  Buffer logits;

 private:
  absl::Status ReserveAttention(const ModelShape& shape, const PassSizes& sizes);

  Gpu& gpu_;
};

}  // namespace withy::engine::cuda
