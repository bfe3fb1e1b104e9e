// Memory of weights under a budget. Every tensor has addresses in one piece, as kernels read it.
// Behind the addresses of a matrix's resident prefix is memory of its own; behind the rest is the
// ring of buffers, the same memory for every layer, which is mapped there once, at the start: what
// is read into the ring appears at its place, and no address ever changes. Neighbours:
// weight_plan.h says how much of what, weight_loader.h fills it, weight_stream.h fills the ring.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/weight_plan.h"

namespace withy::engine {

// Resident memory is anonymous and the ring a sealed memfd: the kernel reclaims neither without
// swap, and with swap not what is locked. Both are in huge pages where the system gives them: a
// read into pages of 4 KiB is a request of many pieces, which takes some disks three times as long.
// Left out of core dumps.
class WeightMemory {
 public:
  // Memory for `plan` and for all other tensors of `file`. The ring is touched, the rest is not
  // yet. Errors: those of mmap(2) and memfd_create(2).
  static absl::StatusOr<std::unique_ptr<WeightMemory>> Create(const PackedFile& file,
                                                              const WeightPlan& plan);
  ~WeightMemory();
  WeightMemory(const WeightMemory&) = delete;
  WeightMemory& operator=(const WeightMemory&) = delete;

  // Where a tensor begins; index into PackedFile::tensors(). Null for a streamed embedding and for
  // streamed experts. A
  // resident prefix is writable until Seal.
  std::byte* tensor(size_t index) const { return addresses_[index]; }
  // A slot of the ring, writable.
  std::span<std::byte> slot(int32_t slot) const {
    return ring_.subspan(slot_offsets_[static_cast<size_t>(slot)],
                         slot_bytes_[static_cast<size_t>(slot)]);
  }
  std::span<std::byte> ring() const { return ring_; }

  // Makes what is resident read-only. Errors: those of mprotect(2).
  absl::Status Seal();
  // Locks resident memory and ring, as far as RLIMIT_MEMLOCK permits; returns the bytes locked.
  // After everything was filled.
  uint64_t Lock();

 private:
  WeightMemory() = default;
  absl::Status MapResident(std::byte* at, uint64_t bytes);
  absl::Status MapRing(const UniqueFd& fd, std::byte* at, uint64_t bytes, uint64_t offset);
  absl::Status CreateRing(const WeightPlan& plan, UniqueFd* fd);
  absl::Status Place(const PackedFile& file, const WeightPlan& plan, const UniqueFd& ring_fd);

  std::byte* base_ = nullptr;
  size_t reserved_ = 0;
  std::vector<std::byte*> addresses_;
  std::vector<std::span<std::byte>> resident_;
  std::byte* ring_base_ = nullptr;
  size_t ring_reserved_ = 0;
  std::span<std::byte> ring_;
  std::vector<uint64_t> slot_offsets_;
  std::vector<uint64_t> slot_bytes_;
};

}  // namespace withy::engine
