// Locks a process's memory. A system that is short of memory, or reclaims it early, evicts pages
// that were not used for a while: weights and code. The next call after a pause needs them all at
// once.
#pragma once

#include <cstdint>

namespace withy {

// Locks all pages that this process has touched or will touch. `bytes` is most of what the process
// will hold. Does nothing and returns false if that is more than half of MemoryAllowed, or if
// RLIMIT_MEMLOCK limits the process (root is exempt): later mappings would then fail.
bool KeepInMemory(uint64_t bytes);
// Whether it has locked this process's memory. Any thread.
bool KeptInMemory();

}  // namespace withy
