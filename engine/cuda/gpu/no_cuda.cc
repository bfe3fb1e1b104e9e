// What stands for CUDA in builds without nvcc.
#include "engine/cuda/gpu/open_gpu.h"

namespace withy::engine::cuda {

absl::StatusOr<std::unique_ptr<Gpu>> OpenCudaGpu(int32_t) {
  return absl::UnimplementedError(
      "this build has no CUDA: nvcc was not found when it was built (./withy setup cuda says how "
      "to "
      "install it; then build again)");
}

}  // namespace withy::engine::cuda
