#include "base/keep_in_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>

#include "base/memory_limits.h"

namespace withy {
namespace {

std::atomic<bool> kept{false};

bool MayLockAll() {
  rlimit limit{};
  return geteuid() == 0 ||
         (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY);
}

}  // namespace

bool KeepInMemory(uint64_t bytes) {
  if (bytes > MemoryAllowed() / 2 || !MayLockAll()) return false;
  kept = mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0;
  return kept;
}

bool KeptInMemory() { return kept; }

}  // namespace withy
