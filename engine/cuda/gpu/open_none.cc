// The device for tests is not part of the product: a test that links on_cpu/ replaces this.
#include "engine/cuda/gpu/open_gpu.h"

namespace withy::engine::cuda {

[[gnu::weak]] absl::StatusOr<std::unique_ptr<Gpu>> OpenGpuOnCpu() {
  return absl::UnimplementedError(
      "the device \"cuda-on-cpu\" is for tests, and not part of this program");
}

}  // namespace withy::engine::cuda
