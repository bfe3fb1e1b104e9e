// Memory in pages of 2 MiB, for data that is read again and again from end to end: with pages of
// 4 KiB a good part of that time goes to page walks. It is anonymous and private: only such memory
// gets huge pages by madvise(2) on a system as installed (for shared memory Linux has them off),
// and the kernel cannot reclaim it as it reclaims a file's pages.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace withy {

// Owns the mapping. Movable.
class HugeMemory {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;

  HugeMemory() = default;
  HugeMemory(HugeMemory&& other) noexcept { *this = std::move(other); }
  HugeMemory& operator=(HugeMemory&& other) noexcept;
  HugeMemory(const HugeMemory&) = delete;
  HugeMemory& operator=(const HugeMemory&) = delete;
  ~HugeMemory();

  // `bytes` of zeroes, aligned to kHugePage, writable, not touched yet, left out of core dumps. The
  // system is asked for huge pages and may give small ones. Errors: those of mmap(2).
  static absl::StatusOr<HugeMemory> Allocate(size_t bytes);

  // From now on read-only. Errors: those of mprotect(2).
  absl::Status Seal();
  // Gives the pages back to the system: the bytes are zeroes, writable, and not locked.
  absl::Status GiveBack();
  // Locks the pages that are there, as far as RLIMIT_MEMLOCK permits.
  void Lock();

  std::span<std::byte> bytes() { return {data_, size_}; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;    // asked for
  size_t mapped_ = 0;  // a multiple of kHugePage
};

}  // namespace withy
