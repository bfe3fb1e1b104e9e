#include "engine/cuda/gpu/gpu.h"

#include <utility>

#include "base/round_up.h"
#include "base/status.h"

namespace withy::engine::cuda {

Buffer::Buffer(Buffer&& other) noexcept
    : gpu_(other.gpu_),
      way_(other.way_),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      shared_(std::move(other.shared_)) {}

Buffer::~Buffer() { Free(); }

void Buffer::Free() {
  if (memory_ == nullptr) return;
  if (way_ == MemoryWay::kRegistered) {
    gpu_->UnmapKv({shared_.data(), shared_.size()});
    shared_ = {};
  } else {
    gpu_->Free(way_, memory_);
  }
  memory_ = nullptr;
  bytes_ = 0;
}

std::byte* Buffer::host() const {
  if (way_ == MemoryWay::kRegistered) return shared_.data();
  return way_ == MemoryWay::kDevice ? nullptr : as<std::byte>();
}

absl::Status Buffer::Reserve(size_t bytes) {
  if (bytes <= bytes_) return absl::OkStatus();
  if (memory_ != nullptr) {
    WITHY_RETURN_IF_ERROR(gpu_->Wait());
    Free();
  }
  const size_t rounded = RoundUp(bytes, size_t{256});
  if (way_ == MemoryWay::kRegistered) {
    WITHY_ASSIGN_OR_RETURN(const UniqueFd fd, CreateSealedMemfd("withy-gpu", rounded));
    WITHY_ASSIGN_OR_RETURN(shared_,
                           SharedMemory::Map(fd.get(), rounded, SharedMemory::Access::kReadWrite));
    WITHY_ASSIGN_OR_RETURN(memory_, gpu_->MapKv({shared_.data(), rounded}));
  } else {
    WITHY_ASSIGN_OR_RETURN(memory_, gpu_->Allocate(way_, rounded));
  }
  bytes_ = rounded;
  return absl::OkStatus();
}

}  // namespace withy::engine::cuda
