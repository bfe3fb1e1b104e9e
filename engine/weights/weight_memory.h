// Memory for weights in pages of 2 MiB. It is anonymous and private: only such memory gets huge
// pages by madvise(2) on a system as installed (for shared memory Linux has them off), and the
// kernel cannot reclaim it as it reclaims a file's pages. Decoding reads every weight once a token;
// with pages of 4 KiB a good part of that time goes to page walks. Neighbours: packed_file.h fills
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"

namespace withy::engine {

// Owns the mapping. Movable.
class WeightMemory {
 public:
  static constexpr size_t kHugePage = size_t{2} << 20;

  WeightMemory() = default;
  WeightMemory(WeightMemory&& other) noexcept { *this = std::move(other); }
  WeightMemory& operator=(WeightMemory&& other) noexcept;
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;
  ~WeightMemory();

  // `bytes` of zeroes, aligned to kHugePage, writable, not touched yet. The system is asked for
  // huge pages and may give small ones. Errors: those of mmap(2).
  static absl::StatusOr<WeightMemory> Allocate(size_t bytes);

  // Reads `bytes().size()` bytes of `fd` from `offset` on, and tells the system that it need not
  // keep the file's pages. Errors: DATA_LOSS (the file ends before), those of pread(2).
  absl::Status ReadFrom(int fd, uint64_t offset);
  // From now on read-only.
  absl::Status Seal();

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;    // asked for
  size_t mapped_ = 0;  // a multiple of kHugePage
};

// Whether weights of so many bytes had better be copied into a WeightMemory: there is twice the
// room that they take, in the board's memory, in the cgroup's and in what is free at present, and
// they are large enough to gain by it.
bool RoomForWeights(uint64_t bytes);

}  // namespace withy::engine
