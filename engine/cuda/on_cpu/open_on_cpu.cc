#include "engine/cuda/on_cpu/gpu_on_cpu.h"
#include "engine/cuda/open_gpu.h"

namespace withy::engine::cuda {

absl::StatusOr<std::unique_ptr<Gpu>> OpenGpuOnCpu() { return std::make_unique<on_cpu::GpuOnCpu>(); }

}  // namespace withy::engine::cuda
