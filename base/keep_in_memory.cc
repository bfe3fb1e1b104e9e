#include "base/keep_in_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/memory_limits.h"

namespace withy {
namespace {

bool MayLockAll() {
  rlimit limit{};
  return geteuid() == 0 ||
         (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY);
}

}  // namespace

bool KeepInMemory(uint64_t bytes) {
  if (bytes > MemoryAllowed() / 2 || !MayLockAll()) return false;
  return mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0;
}

}  // namespace withy
