#include "base/huge_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/round_up.h"
#include "base/status.h"

namespace withy {

HugeMemory& HugeMemory::operator=(HugeMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(mapped_, other.mapped_);
  return *this;
}

HugeMemory::~HugeMemory() {
  if (data_ != nullptr) munmap(data_, mapped_);
}

absl::StatusOr<HugeMemory> HugeMemory::Allocate(size_t bytes) {
  const size_t mapped = RoundUp(std::max<size_t>(bytes, 1), kHugePage);
  // A page more, so that an aligned place can be cut out.
  void* const range = mmap(nullptr, mapped + kHugePage, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return ErrnoError(absl::StrCat("map ", mapped, " bytes of memory"));
  std::byte* const begin = static_cast<std::byte*>(range);
  std::byte* const aligned =
      reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(begin), kHugePage));
  if (aligned > begin) munmap(begin, static_cast<size_t>(aligned - begin));
  munmap(aligned + mapped, static_cast<size_t>(begin + kHugePage - aligned));
  HugeMemory memory;
  memory.data_ = aligned;
  memory.size_ = bytes;
  memory.mapped_ = mapped;
  madvise(aligned, mapped, MADV_HUGEPAGE);  // a system that refuses gives small pages
  madvise(aligned, mapped, MADV_DONTDUMP);
  return memory;
}

absl::Status HugeMemory::GiveBack() {
  munlock(data_, mapped_);
  if (mprotect(data_, mapped_, PROT_READ | PROT_WRITE) != 0) return ErrnoError("protect memory");
  if (madvise(data_, mapped_, MADV_DONTNEED) != 0) return ErrnoError("give memory back");
  return absl::OkStatus();
}

void HugeMemory::Lock() { (void)mlock(data_, size_); }

absl::Status HugeMemory::Seal() {
  if (mprotect(data_, mapped_, PROT_READ) != 0) return ErrnoError("protect memory");
  return absl::OkStatus();
}

}  // namespace withy
