// What memory the system lets this process have: the limits of its cgroup and of all cgroups above
// it (versions 1 and 2), of the board, and of its own resource limits. Only reads; neighbours
// decide (policy/kv/arena_size.h, engine/model/open.cc, keep_in_memory.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace withy {

// One limit and what is charged to it.
struct MemoryLimit {
  uint64_t bytes = 0;
  uint64_t used_bytes = 0;  // without page cache, which the kernel takes back first
  std::string file = {};    // what says so, such as /sys/fs/cgroup/withy.slice/memory.max
  // Nobody but this process is charged to it: its systemd service (a cgroup named after its program
  // and ".service"), or a limit of the process.
  bool alone = false;

  uint64_t room_bytes() const { return bytes - (used_bytes < bytes ? used_bytes : bytes); }
};

// MemoryLimit::file of the board's memory.
inline constexpr char kBoardLimit[] = "/proc/meminfo";

// All limits that are known, the board's last. memory.high counts as memory.max: above it a process
// is slowed down until it stands still. `root` is prepended to /proc and /sys.
std::vector<MemoryLimit> MemoryLimits(const std::string& root = "");

// The least of the limits; 0: none is known.
uint64_t MemoryAllowed(const std::string& root = "");

// The least room below the limits; 0: the kernel does not say what is available.
uint64_t MemoryFree(const std::string& root = "");

}  // namespace withy
