// The kernels for the runner.
// clang-format off
#include "engine/cuda/kernels/device-inl.cuh"
// clang-format on
#include "engine/cuda/on_cpu/kernels_on_cpu.h"

#include "engine/kv/block.h"

namespace withy::engine::gpu_on_cpu {

// Runs one thread of a kernel with arguments of this type.
template <typename Args>
constexpr auto CallOf() {
  return +[](const void* kernel, const void* args) {
    reinterpret_cast<void (*)(Args)>(const_cast<void*>(kernel))(*static_cast<const Args*>(args));
  };
}

}  // namespace withy::engine::gpu_on_cpu

#include "engine/cuda/kernels/kernels-inl.cuh"

namespace withy::engine::on_cpu {

const cuda::Kernels& KernelsOnCpu() { return gpu_on_cpu::kKernels; }

}  // namespace withy::engine::on_cpu
