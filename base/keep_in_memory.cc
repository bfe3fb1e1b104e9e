#include "base/keep_in_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

namespace withy {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// A line of /proc/meminfo, in bytes.
std::optional<uint64_t> MemInfo(const std::string& root, std::string_view wanted) {
  std::ifstream file(root + "/proc/meminfo");
  std::string name;
  for (std::string line; std::getline(file, line);) {
    uint64_t kib = 0;
    std::istringstream words(line);
    if (words >> name >> kib && name == wanted) return kib << 10;
  }
  return std::nullopt;
}

uint64_t BoardMemory(const std::string& root) {
  return MemInfo(root, "MemTotal:").value_or(kUnlimited);
}

// "max" is not a number.
uint64_t LimitIn(const fs::path& file) {
  std::ifstream stream(file);
  uint64_t bytes = 0;
  return stream >> bytes ? bytes : kUnlimited;
}

uint64_t CgroupMemory(const std::string& root) {
  constexpr std::string_view kVersion2 = "0::/";
  std::ifstream file(root + "/proc/self/cgroup");
  uint64_t least = kUnlimited;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kVersion2)) continue;
    const fs::path top = root + "/sys/fs/cgroup";
    for (fs::path group = line.substr(kVersion2.size()); !group.empty();
         group = group.parent_path()) {
      least = std::min(least, LimitIn(top / group / "memory.max"));
    }
    least = std::min(least, LimitIn(top / "memory.max"));  // root cgroup of a container
  }
  return least;
}

bool MayLockAll() {
  rlimit limit{};
  return geteuid() == 0 ||
         (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur == RLIM_INFINITY);
}

}  // namespace

uint64_t MemoryAllowed(const std::string& root) {
  const uint64_t least = std::min(BoardMemory(root), CgroupMemory(root));
  return least == kUnlimited ? 0 : least;
}

uint64_t MemoryFree(const std::string& root) { return MemInfo(root, "MemAvailable:").value_or(0); }

bool KeepInMemory(uint64_t bytes) {
  if (bytes > MemoryAllowed() / 2 || !MayLockAll()) return false;
  return mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0;
}

}  // namespace withy
