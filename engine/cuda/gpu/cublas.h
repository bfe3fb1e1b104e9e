// Dense products by cuBLAS, which is loaded when it is first wanted: nothing is linked with it, and
// no header of it is needed to build. Neighbours: cuda_gpu.cc opens it on its stream.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/cuda/gpu/dense_math.h"
#include "engine/cuda/gpu/gpu.h"

namespace withy::engine::cuda {

// How a shared library is found; tests replace it.
struct LibraryLoader {
  std::function<void*(const char* name)> open;                   // null: there is none
  std::function<void*(void* library, const char* name)> symbol;  // null: it lacks this one
  std::function<void(void* library)> close;
};
LibraryLoader DynamicLoader();

// `gpu` must outlive it. Errors: NOT_FOUND (no library, with the names tried), FAILED_PRECONDITION
// (one that lacks a function, or that refuses the GPU), RESOURCE_EXHAUSTED (no memory for its
// workspace).
absl::StatusOr<std::unique_ptr<DenseMath>> OpenCublas(
    Gpu& gpu, const LibraryLoader& loader = DynamicLoader());

}  // namespace withy::engine::cuda
