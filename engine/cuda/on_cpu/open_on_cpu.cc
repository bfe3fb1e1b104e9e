#include "engine/cuda/gpu/open_gpu.h"
#include "engine/cuda/on_cpu/gpu_on_cpu.h"

namespace withy::engine::cuda {

absl::StatusOr<std::unique_ptr<Gpu>> OpenGpuOnCpu() {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    return absl::UnimplementedError("the test device needs a CPU with AVX2 and FMA");
  }
#endif
  return std::make_unique<on_cpu::GpuOnCpu>();
}

}  // namespace withy::engine::cuda
