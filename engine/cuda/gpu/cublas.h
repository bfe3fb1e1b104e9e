// Dense products by cuBLAS, which is loaded when it is first wanted (library_loader.h). Neighbours:
// cuda_gpu.cc opens it on its stream.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/cuda/gpu/dense_math.h"
#include "engine/cuda/gpu/gpu.h"
#include "engine/cuda/gpu/library_loader.h"

namespace withy::engine::cuda {

// `gpu` must outlive it. Errors: NOT_FOUND (no library, with the names tried), FAILED_PRECONDITION
// (one that lacks a function, or that refuses the GPU), RESOURCE_EXHAUSTED (no memory for its
// workspace).
absl::StatusOr<std::unique_ptr<DenseMath>> OpenCublas(
    Gpu& gpu, const LibraryLoader& loader = DynamicLoader());

}  // namespace withy::engine::cuda
