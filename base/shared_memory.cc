#include "base/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/huge_memory.h"
#include "base/round_up.h"
#include "base/status.h"

namespace withy {

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  if (this != &other) {
    Unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

SharedMemory::~SharedMemory() { Unmap(); }

void SharedMemory::Unmap() {
  if (data_ != nullptr) munmap(data_, size_);
  data_ = nullptr;
}

absl::StatusOr<SharedMemory> SharedMemory::Map(int fd, size_t bytes, Access access) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return ErrnoError("stat shared memory");
  if (bytes == 0 || static_cast<size_t>(info.st_size) < bytes) {
    return absl::InvalidArgumentError(absl::StrCat("cannot map ", bytes,
                                                   " bytes of shared memory: the file has ",
                                                   static_cast<int64_t>(info.st_size)));
  }
  const int protection = access == Access::kReadOnly ? PROT_READ : PROT_READ | PROT_WRITE;
  if (bytes < HugeMemory::kHugePage) {
    void* address = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) return ErrnoError("map shared memory");
    return SharedMemory(static_cast<std::byte*>(address), bytes);
  }
  // A range with room for an aligned place, which the mapping then replaces.
  const size_t mapped = RoundUp(bytes, size_t{4096});
  const size_t range_bytes = mapped + HugeMemory::kHugePage;
  void* const range =
      mmap(nullptr, range_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) return ErrnoError("map shared memory");
  std::byte* const begin = static_cast<std::byte*>(range);
  std::byte* const aligned = reinterpret_cast<std::byte*>(
      RoundUp(reinterpret_cast<uintptr_t>(begin), HugeMemory::kHugePage));
  const bool failed = mmap(aligned, bytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED;
  const absl::Status error = failed ? ErrnoError("map shared memory") : absl::OkStatus();
  if (failed) {
    munmap(range, range_bytes);
    return error;
  }
  if (aligned > begin) munmap(begin, static_cast<size_t>(aligned - begin));
  munmap(aligned + mapped, static_cast<size_t>(begin + range_bytes - (aligned + mapped)));
  return SharedMemory(aligned, bytes);
}

absl::Status SharedMemory::ExcludeFromCoreDumps() {
  if (madvise(data_, size_, MADV_DONTDUMP) != 0) {
    return ErrnoError("leave shared memory out of core dumps");
  }
  return absl::OkStatus();
}

absl::Status SharedMemory::Prefault() {
#ifdef MADV_POPULATE_WRITE
  if (madvise(data_, size_, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) return ErrnoError("prefault shared memory");
#endif
  // Kernels before 5.14: reading a page of a memfd allocates it.
  volatile const std::byte* page = data_;
  for (size_t offset = 0; offset < size_; offset += 4096) (void)page[offset];
  return absl::OkStatus();
}

absl::StatusOr<UniqueFd> CreateSealedMemfd(std::string_view name, size_t bytes) {
  UniqueFd fd(memfd_create(std::string(name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoError("create memfd");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoError(absl::StrCat("size memfd to ", bytes, " bytes"));
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoError("seal memfd");
  }
  return fd;
}

}  // namespace withy
