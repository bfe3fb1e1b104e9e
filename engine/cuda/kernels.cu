// The kernels for GPUs, compiled by nvcc.
#include <cuda_runtime.h>

// clang-format off
#include "engine/cuda/device-inl.cuh"
// clang-format on
#include "engine/cuda/cuda_kernels.h"
#include "engine/kv/block.h"

namespace withy::engine::gpu {

struct Grid {
  int x;
  int y;
  int z;
};

template <typename Args>
void Launch(const char*, void (*kernel)(Args), Grid grid, int threads, size_t shared_bytes,
            void* stream, const Args& args) {
  constexpr size_t kSharedOfAnyCard = 48 << 10;  // more has to be asked for
  if (shared_bytes > kSharedOfAnyCard) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(shared_bytes));  // the launch tells of an error
  }
  const dim3 blocks(static_cast<unsigned>(grid.x), static_cast<unsigned>(grid.y),
                    static_cast<unsigned>(grid.z));
  kernel<<<blocks, static_cast<unsigned>(threads), shared_bytes,
           static_cast<cudaStream_t>(stream)>>>(args);
}

}  // namespace withy::engine::gpu

#include "engine/cuda/kernels-inl.cuh"

namespace withy::engine::cuda {

const Kernels& CudaKernels() { return gpu::kKernels; }

int CheckKernelImage() {
  cudaFuncAttributes attributes;
  return cudaFuncGetAttributes(&attributes, gpu::EmbedKernel);
}

}  // namespace withy::engine::cuda
