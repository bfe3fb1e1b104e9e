// Locks a process's memory. A system that is short of memory, or reclaims it early, evicts pages
// that were not used for a while: weights and code. The next call after a pause needs them all at
// once.
#pragma once

#include <cstdint>
#include <string>

namespace withy {

// Bytes of memory this process may use: the minimum of the board's memory and the limits of its
// cgroup and all cgroups above (version 2). 0: not known. `root` is prepended to /proc and /sys.
uint64_t MemoryAllowed(const std::string& root = "");

// Bytes that programs can still be given without swapping (MemAvailable); 0: not known.
uint64_t MemoryFree(const std::string& root = "");

// Locks all pages that this process has touched or will touch. `bytes` is most of what the process
// will hold. Does nothing and returns false if that is more than half of MemoryAllowed, or if
// RLIMIT_MEMLOCK limits the process (root is exempt): later mappings would then fail.
bool KeepInMemory(uint64_t bytes);

}  // namespace withy
