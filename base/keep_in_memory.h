// Keeps what a process uses in memory. A system that is short of it, or that makes room ahead of
// need, writes out or drops pages that were not used for a while: weights and code, of which the
// next call after a pause needs all at once.
#pragma once

#include <cstdint>
#include <string>

namespace withy {

// The least of the board's memory and of what the process' cgroup and those above it allow (version
// 2); 0: not known. `root` stands before /proc and /sys.
uint64_t MemoryAllowed(const std::string& root = "");

// From now on, what this process has touched or touches stays. `bytes`: what it will hold, most of
// it. Does nothing, and says false, where that is more than half of MemoryAllowed, or where the
// process may not lock as much as it likes (RLIMIT_MEMLOCK; root may): with less, later mappings
// would fail.
bool KeepInMemory(uint64_t bytes);

}  // namespace withy
