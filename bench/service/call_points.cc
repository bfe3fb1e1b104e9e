#include "bench/service/call_points.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

namespace {

using withy::bench::CallPoint;
using withy::bench::CallPoints;
using withy::bench::PointState;

constexpr size_t kLeastBuffer = size_t{64} << 10;

CallPoints* table = nullptr;
// What naming a point calls is no point.
thread_local bool naming = false;

__attribute__((constructor)) void MapTable() {
  const char* path = getenv(withy::bench::kCallPointsVariable);
  if (path == nullptr) return;
  const long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
  if (fd < 0) return;
  const long at =
      syscall(SYS_mmap, nullptr, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(static_cast<int>(fd));
  if (at != -1) table = reinterpret_cast<CallPoints*>(at);
}

void NamePoint(CallPoint& point, const char* call, void* address) {
  Dl_info info{};
  naming = true;
  if (dladdr(address, &info) != 0 && info.dli_fname != nullptr) {
    const char* const slash = strrchr(info.dli_fname, '/');
    snprintf(point.name, sizeof point.name, "%s %s+0x%lx", call,
             slash == nullptr ? info.dli_fname : slash + 1,
             static_cast<unsigned long>(static_cast<char*>(address) -
                                        static_cast<char*>(info.dli_fbase)));
  } else {
    snprintf(point.name, sizeof point.name, "%s %p", call, address);
  }
  naming = false;
  point.named.store(true, std::memory_order_release);
}

// The point of this place; null: the table is full.
CallPoint* Find(const char* call, void* address) {
  const auto key = reinterpret_cast<uintptr_t>(address);
  for (uint32_t i = 0, at = static_cast<uint32_t>(key * 0x9E3779B97F4A7C15ull >> 52);
       i < withy::bench::kMostCallPoints; ++i, ++at) {
    CallPoint& point = table->points[at % withy::bench::kMostCallPoints];
    uintptr_t taken = point.address.load(std::memory_order_acquire);
    if (taken == 0 && point.address.compare_exchange_strong(taken, key)) {
      NamePoint(point, call, address);
      return &point;
    }
    if (taken == key) return &point;
  }
  ++table->lost;
  return nullptr;
}

// Whether the call at `address` is to fail.
bool Fails(const char* call, void* address) {
  if (table == nullptr || naming) return false;
  CallPoint* const point = Find(call, address);
  if (point == nullptr) return false;
  point->calls.fetch_add(1, std::memory_order_relaxed);
  if (table->state.load(std::memory_order_acquire) != PointState::kArmed) return false;
  if (!point->named.load(std::memory_order_acquire)) return false;  // another thread is naming it
  if (strcmp(point->name, table->armed) != 0) return false;
  PointState armed = PointState::kArmed;
  return table->state.compare_exchange_strong(armed, PointState::kFired);
}

// What reading or writing the file could fail with; 0: nothing that a board would show.
int FileFault(int fd, bool writes) {
  struct stat file {};
  const int saved = errno;
  const bool known = fstat(fd, &file) == 0;
  errno = saved;
  if (!known) return 0;
  if (S_ISREG(file.st_mode)) return writes ? ENOSPC : EIO;
  return S_ISSOCK(file.st_mode) ? ECONNRESET : 0;
}

bool FileFails(const char* call, int fd, bool writes, void* address) {
  if (table == nullptr || naming) return false;
  const int fault = FileFault(fd, writes);
  if (fault == 0 || !Fails(call, address)) return false;
  errno = fault;
  return true;
}

bool FailsWith(int fault, const char* call, void* address) {
  if (!Fails(call, address)) return false;
  errno = fault;
  return true;
}

// Abseil's allocator of thread records ends its process when it gets no memory: its calls are no
// points.
bool MapFails(void* address) {
  if (table == nullptr || naming) return false;
  Dl_info info{};
  naming = true;
  const bool abseils = dladdr(address, &info) != 0 && info.dli_fname != nullptr &&
                       strstr(info.dli_fname, "libabsl_malloc_internal") != nullptr;
  naming = false;
  return !abseils && FailsWith(ENOMEM, "mmap", address);
}

template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

#define WITHY_CALLER __builtin_return_address(0)

extern "C" {

ssize_t read(int fd, void* data, size_t bytes) {
  if (FileFails("read", fd, false, WITHY_CALLER)) return -1;
  return syscall(SYS_read, fd, data, bytes);
}
ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  if (FileFails("pread", fd, false, WITHY_CALLER)) return -1;
  return syscall(SYS_pread64, fd, data, bytes, offset);
}
ssize_t pread64(int fd, void* data, size_t bytes, off64_t offset) {
  if (FileFails("pread", fd, false, WITHY_CALLER)) return -1;
  return syscall(SYS_pread64, fd, data, bytes, offset);
}
ssize_t write(int fd, const void* data, size_t bytes) {
  if (FileFails("write", fd, true, WITHY_CALLER)) return -1;
  return syscall(SYS_write, fd, data, bytes);
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t offset) {
  if (FileFails("pwrite", fd, true, WITHY_CALLER)) return -1;
  return syscall(SYS_pwrite64, fd, data, bytes, offset);
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t offset) {
  if (FileFails("pwrite", fd, true, WITHY_CALLER)) return -1;
  return syscall(SYS_pwrite64, fd, data, bytes, offset);
}
ssize_t writev(int fd, const struct iovec* parts, int count) {
  if (FileFails("writev", fd, true, WITHY_CALLER)) return -1;
  return syscall(SYS_writev, fd, parts, count);
}
ssize_t recvmsg(int fd, struct msghdr* message, int flags) {
  if (FailsWith(ECONNRESET, "recvmsg", WITHY_CALLER)) return -1;
  return syscall(SYS_recvmsg, fd, message, flags);
}
ssize_t sendmsg(int fd, const struct msghdr* message, int flags) {
  if (FailsWith(ECONNRESET, "sendmsg", WITHY_CALLER)) return -1;
  return syscall(SYS_sendmsg, fd, message, flags);
}
int fsync(int fd) {
  if (FailsWith(EIO, "fsync", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_fsync, fd));
}
int fdatasync(int fd) {
  if (FailsWith(EIO, "fdatasync", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_fdatasync, fd));
}
int rename(const char* from, const char* to) {
  if (FailsWith(EIO, "rename", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int ftruncate(int fd, off_t bytes) {
  if (FailsWith(ENOSPC, "ftruncate", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_ftruncate, fd, bytes));
}
int ftruncate64(int fd, off64_t bytes) {
  if (FailsWith(ENOSPC, "ftruncate", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_ftruncate, fd, bytes));
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (FailsWith(ENOSPC, "fallocate", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}
int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
  if (FailsWith(ENOSPC, "fallocate", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}
int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  if (FailsWith(EMFILE, "open", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
  va_end(list);
  if (FailsWith(EMFILE, "open", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags | O_LARGEFILE, mode));
}
void* mmap(void* at, size_t bytes, int protection, int flags, int fd, off_t offset) {
  if (MapFails(WITHY_CALLER)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
void* mmap64(void* at, size_t bytes, int protection, int flags, int fd, off64_t offset) {
  if (MapFails(WITHY_CALLER)) return MAP_FAILED;
  return reinterpret_cast<void*>(syscall(SYS_mmap, at, bytes, protection, flags, fd, offset));
}
int memfd_create(const char* name, unsigned flags) {
  if (FailsWith(ENFILE, "memfd_create", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_memfd_create, name, flags));
}
int socket(int domain, int type, int protocol) {
  if (FailsWith(EMFILE, "socket", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_socket, domain, type, protocol));
}
int connect(int fd, const struct sockaddr* address, socklen_t bytes) {
  if (FailsWith(ECONNREFUSED, "connect", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_connect, fd, address, bytes));
}
int accept4(int fd, struct sockaddr* address, socklen_t* bytes, int flags) {
  if (FailsWith(EMFILE, "accept", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_accept4, fd, address, bytes, flags));
}
int accept(int fd, struct sockaddr* address, socklen_t* bytes) {
  if (FailsWith(EMFILE, "accept", WITHY_CALLER)) return -1;
  return static_cast<int>(syscall(SYS_accept4, fd, address, bytes, 0));
}
pid_t fork() {
  if (FailsWith(EAGAIN, "fork", WITHY_CALLER)) return -1;
  static auto* const next = Next<pid_t()>("fork");
  return next();
}
int posix_spawn(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions,
                const posix_spawnattr_t* attributes, char* const argv[], char* const envp[]) {
  if (Fails("posix_spawn", WITHY_CALLER)) return EAGAIN;
  static auto* const next = Next<decltype(posix_spawn)>("posix_spawn");
  return next(pid, path, actions, attributes, argv, envp);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  if (bytes >= kLeastBuffer && Fails("posix_memalign", WITHY_CALLER)) return ENOMEM;
  static auto* const next = Next<decltype(posix_memalign)>("posix_memalign");
  return next(memory, alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  if (bytes >= kLeastBuffer && FailsWith(ENOMEM, "aligned_alloc", WITHY_CALLER)) return nullptr;
  static auto* const next = Next<decltype(aligned_alloc)>("aligned_alloc");
  return next(alignment, bytes);
}

// KV is read by pread(2) where the kernel has no io_uring.
int io_uring_queue_init(unsigned /*entries*/, struct io_uring* /*ring*/, unsigned /*flags*/) {
  return -ENOSYS;
}

}  // extern "C"
