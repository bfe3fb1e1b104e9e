// Memory that processes share: sealed memfds for the KV arena, mapped files for span rings.
// Neighbours: context_store creates the arena, model_worker maps it; telemetry maps rings.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"

namespace withy {

// A mapping that unmaps itself. Movable; the holder owns the mapping. The protocol of the memory
// decides who may access which bytes.
class SharedMemory {
 public:
  enum class Access { kReadOnly, kReadWrite };

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  // Maps `bytes` of `fd` shared, from a multiple of 2 MiB on if they are as many, so that pages of
  // that size can be mapped. `fd` may be closed afterwards. Errors: INVALID_ARGUMENT if the
  // file is shorter than `bytes`.
  static absl::StatusOr<SharedMemory> Map(int fd, size_t bytes, Access access);

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

  // Excludes the mapping from core dumps, because it holds users' text.
  absl::Status ExcludeFromCoreDumps();
  // Touches every page, so that first use does not fault. Takes about one second per gigabyte and
  // keeps the content.
  absl::Status Prefault();

 private:
  SharedMemory(std::byte* data, size_t size) : data_(data), size_(size) {}
  void Unmap();

  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// An anonymous file of `bytes` that can neither grow nor shrink; close-on-exec.
// Errors: RESOURCE_EXHAUSTED and others of memfd_create(2) and ftruncate(2).
absl::StatusOr<UniqueFd> CreateSealedMemfd(std::string_view name, size_t bytes);

}  // namespace withy
