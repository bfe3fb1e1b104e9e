// Opens GPUs by name. Neighbours: cuda_gpu.cc is what a build with nvcc has, no_cuda.cc what one
// without has, on_cpu/open_on_cpu.cc what tests link; model/devices.cc chooses.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/cuda/gpu/gpu.h"

namespace withy::engine::cuda {

// Opens GPU number `index` and checks that its kernels compute what the CPU computes. Errors:
// UNIMPLEMENTED (built without CUDA), NOT_FOUND (no driver, or no such GPU), FAILED_PRECONDITION (a
// driver that is too old, no kernels for this GPU, a failed self-check). Each names what is missing
// and what to do.
absl::StatusOr<std::unique_ptr<Gpu>> OpenCudaGpu(int32_t index);

// The device for tests. Error: UNIMPLEMENTED where it is not linked.
absl::StatusOr<std::unique_ptr<Gpu>> OpenGpuOnCpu();

}  // namespace withy::engine::cuda
