#include "bench/service/fault_shim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

withy::bench::FaultControl* control = nullptr;

__attribute__((constructor)) void MapControl() {
  const char* path = getenv(withy::bench::kFaultFileVariable);
  if (path == nullptr) return;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* at = mmap(nullptr, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at != MAP_FAILED) control = static_cast<withy::bench::FaultControl*>(at);
}

bool IsKvFile(int fd) {
  char link[64], path[512];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof path - 1);
  return size > 3 && memcmp(path + size - 3, ".kv", 3) == 0;
}

bool ReadFails(int fd) {
  if (control == nullptr || control->failing_reads == 0 || !IsKvFile(fd)) return false;
  uint32_t left = control->failing_reads;
  while (left > 0 && !control->failing_reads.compare_exchange_weak(left, left - 1)) continue;
  if (left == 0) return false;
  ++control->failed_reads;
  return true;
}

}  // namespace

extern "C" {

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  if (ReadFails(fd)) {
    errno = EIO;
    return -1;
  }
  return syscall(SYS_pread64, fd, data, bytes, offset);
}

ssize_t pread64(int fd, void* data, size_t bytes, off64_t offset) {
  return pread(fd, data, bytes, offset);
}

// KV is read by pread(2) where the kernel has no io_uring.
int io_uring_queue_init(unsigned /*entries*/, struct io_uring* /*ring*/, unsigned /*flags*/) {
  return -ENOSYS;
}

}  // extern "C"
