// The buffers that program.h names, in device memory, for the rows of one piece. Neighbours: run.cc
// uses them; cpu/workspace.h has those of the CPU.
#pragma once

#include "absl/status/status.h"
#include "engine/cpu/activations.h"
#include "engine/cuda/gpu/gpu.h"
#include "engine/cuda/kernels/args.h"

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

}  // namespace withy::engine::cuda
