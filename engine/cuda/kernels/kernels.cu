// The kernels for GPUs, compiled by nvcc.
#include <cuda_runtime.h>

// clang-format off
#include "engine/cuda/kernels/device-inl.cuh"
// clang-format on
#include "engine/cuda/kernels/cuda_kernels.h"
#include "engine/kv/block.h"

namespace withy::engine::gpu {

template <typename Args>
constexpr auto CallOf() {
  return static_cast<void (*)(const void*, const void*)>(nullptr);
}

}  // namespace withy::engine::gpu

#include "engine/cuda/kernels/kernels-inl.cuh"

namespace withy::engine::cuda {

const Kernels& CudaKernels() { return gpu::kKernels; }

int CheckKernelImage() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, gpu::EmbedKernel);
}

}  // namespace withy::engine::cuda
