#include "engine/weights/weight_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/keep_in_memory.h"
#include "base/round_up.h"
#include "base/status.h"

namespace withy::engine {
namespace {

constexpr size_t kReadBytes = size_t{8} << 20;
// Caches and few page walks serve smaller ones.
constexpr uint64_t kLeastBytes = uint64_t{32} << 20;

}  // namespace

WeightMemory& WeightMemory::operator=(WeightMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

WeightMemory::~WeightMemory() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

absl::StatusOr<WeightMemory> WeightMemory::Allocate(size_t bytes) {
  const size_t mapped = RoundUp(std::max<size_t>(bytes, 1), kHugePage);
  // A page more, so that an aligned place can be cut out.
  void* const range = mmap(nullptr, mapped + kHugePage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return ErrnoError(absl::StrCat("map ", mapped, " bytes for weights"));
  std::byte* const begin = static_cast<std::byte*>(range);
  std::byte* const aligned =
      reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage));
  if (aligned > begin) munmap(begin, static_cast<size_t>(aligned - begin));
  munmap(aligned + mapped, static_cast<size_t>(begin + kHugePage - aligned));
  WeightMemory memory;
  memory.data_ = aligned;
  memory.size_ = bytes;
  memory.mapped_ = mapped;
  madvise(aligned, mapped, MADV_HUGEPAGE);  // a system that refuses gives small pages
  madvise(aligned, mapped, MADV_DONTDUMP);
  return memory;
}

absl::Status WeightMemory::ReadFrom(int fd, uint64_t offset) {
  posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(size_), POSIX_FADV_SEQUENTIAL);
  for (size_t done = 0; done < size_;) {
    const ssize_t got = pread(fd, data_ + done, std::min(kReadBytes, size_ - done),
                              static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      return ErrnoError("read weights");
    }
    if (got == 0) return absl::DataLossError("weights end before their last byte");
    done += static_cast<size_t>(got);
  }
  posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(size_), POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

absl::Status WeightMemory::Seal() {
  if (mprotect(data_, mapped_, PROT_READ) != 0) return ErrnoError("protect weights");
  return absl::OkStatus();
}

bool RoomForWeights(uint64_t bytes) {
  return bytes >= kLeastBytes && 2 * bytes <= MemoryAllowed() && 2 * bytes <= MemoryFree();
}

}  // namespace withy::engine
