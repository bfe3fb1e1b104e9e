// The kernels for the runner.
// clang-format off
#include "engine/cuda/device-inl.cuh"
// clang-format on
#include "engine/cuda/on_cpu/kernels_on_cpu.h"

#include "engine/kv/block.h"

namespace withy::engine::gpu_on_cpu {

// `stream` is the runner.
template <typename Args>
void Launch(const char* name, void (*kernel)(Args), on_cpu::Dim grid, int threads,
            size_t shared_bytes, void* stream, const Args& args) {
  static_cast<on_cpu::Runner*>(stream)->Launch(name, grid, threads, shared_bytes,
                                               [&] { kernel(args); });
}

}  // namespace withy::engine::gpu_on_cpu

#include "engine/cuda/kernels-inl.cuh"

namespace withy::engine::on_cpu {

const cuda::Kernels& KernelsOnCpu() { return gpu_on_cpu::kKernels; }

}  // namespace withy::engine::on_cpu
