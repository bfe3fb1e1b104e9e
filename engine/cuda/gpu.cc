#include "engine/cuda/gpu.h"

#include <utility>

#include "base/round_up.h"
#include "base/status.h"

namespace withy::engine::cuda {

Buffer::Buffer(Buffer&& other) noexcept
    : gpu_(other.gpu_),
      way_(other.way_),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Buffer::~Buffer() {
  if (memory_ != nullptr) gpu_->Free(way_, memory_);
}

absl::Status Buffer::Reserve(size_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  if (memory_ != nullptr) {
    WITHY_RETURN_IF_ERROR(gpu_->Wait());
    gpu_->Free(way_, memory_);
    memory_ = nullptr;
    bytes_ = 0;
  }
  const size_t rounded = RoundUp(bytes, size_t{256});
  WITHY_ASSIGN_OR_RETURN(memory_, gpu_->Allocate(way_, rounded));
  bytes_ = rounded;
  return absl::OkStatus();
}

}  // namespace withy::engine::cuda
