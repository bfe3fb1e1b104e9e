// Checks that a GPU computes what the CPU computes, all kernels together: rows of a small random
// model on both. Neighbours: devices.cc asks before a GPU serves, cuda/self_check.h checks products
// by themselves and every weight type.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/gpu/gpu.h"

namespace withy::engine {

struct GpuCheck {
  double least_cosine = 0;  // of the logits of a row with the CPU's
  int32_t rows = 0;         // compared
};

// Two layers with LoRA, key biases and KV of several formats behind them; plain rows, rows of a
// lower level, and a token tree, of which those with logits are compared. Writes the model to a
// temporary folder, which is removed. Some 50 ms. Errors: FAILED_PRECONDITION naming row and
// cosine; as cuda::Gpu, and of the file system.
absl::StatusOr<GpuCheck> CheckGpu(cuda::Gpu& gpu);

}  // namespace withy::engine
