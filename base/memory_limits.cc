#include "base/memory_limits.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "absl/strings/str_split.h"
#include "base/strings.h"

namespace withy {
namespace {

namespace fs = std::filesystem;

// Version 1 has no word for "no limit"; its largest number is just below this.
constexpr uint64_t kNoLimit = uint64_t{1} << 62;

// Names and numbers, one pair a line: /proc/meminfo, memory.stat.
std::map<std::string, uint64_t> ReadTable(const std::string& path) {
  std::map<std::string, uint64_t> table;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value) table.emplace(std::move(name), value);
  }
  return table;
}

uint64_t Entry(const std::map<std::string, uint64_t>& table, const char* name) {
  const auto found = table.find(name);
  return found == table.end() ? 0 : found->second;
}

// "max" is not a number.
std::optional<uint64_t> ReadBytesIn(const std::string& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// Where a cgroup hierarchy is mounted, and which of its cgroups the mount shows as its root.
struct Mount {
  std::string at;
  std::string shown = "/";
};

struct Hierarchy {
  std::vector<const char*> limit_files;
  const char* usage_file;
  const char* active_file;  // of memory.stat: page cache
  const char* inactive_file;
  Mount mount;
  std::string path;  // of the process's cgroup; empty: it has none
};

bool Names(std::string_view list, std::string_view wanted) {
  for (const auto word : absl::StrSplit(ToAbsl(list), ',')) {
    if (ToStd(word) == wanted) return true;
  }
  return false;
}

// A line: "36 35 98:0 /shown /at options - type source options", with optional fields before "-".
void ReadMounts(const std::string& root, Hierarchy* first, Hierarchy* second) {
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash)), after(line.substr(dash + 3));
    std::string id, parent, device, type, source, options;
    Mount mount;
    if (!(before >> id >> parent >> device >> mount.shown >> mount.at)) continue;
    if (!(after >> type >> source >> options)) continue;
    if (type == "cgroup2") second->mount = mount;
    if (type == "cgroup" && Names(options, "memory")) first->mount = mount;
  }
}

// A line: "5:cpu,memory:/path", "0::/path" of version 2.
void ReadPaths(const std::string& root, Hierarchy* first, Hierarchy* second) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t one = line.find(':');
    const size_t two = one == std::string::npos ? one : line.find(':', one + 1);
    if (two == std::string::npos) continue;
    const std::string controllers = line.substr(one + 1, two - one - 1);
    const std::string path = line.substr(two + 1);
    if (controllers.empty()) second->path = path;
    if (Names(controllers, "memory")) first->path = path;
  }
}

// The process's cgroup as a path below the mount. Empty for the mount's own root, and for what the
// mount does not show (of a container, whose limit the root then has).
fs::path BelowMount(const Hierarchy& hierarchy) {
  const fs::path path = fs::path(hierarchy.path).lexically_normal();
  const fs::path below = path.lexically_relative(hierarchy.mount.shown);
  if (below.empty() || below == "." || *below.begin() == "..") return {};
  return below;
}

void AddLevel(const std::string& root, const Hierarchy& hierarchy, const fs::path& below,
              bool alone, std::vector<MemoryLimit>* limits) {
  const std::string shown = (fs::path(hierarchy.mount.at) / below).lexically_normal().string();
  const std::string folder = root + shown;
  MemoryLimit least{.bytes = kNoLimit};
  for (const char* name : hierarchy.limit_files) {
    const uint64_t bytes = ReadBytesIn(folder + "/" + name).value_or(kNoLimit);
    if (bytes >= least.bytes) continue;
    least.bytes = bytes;
    least.file = shown + "/" + name;
  }
  if (least.bytes == kNoLimit) return;
  least.alone = alone;
  const auto stat = ReadTable(folder + "/memory.stat");
  const uint64_t cache = Entry(stat, hierarchy.active_file) + Entry(stat, hierarchy.inactive_file);
  const uint64_t used = ReadBytesIn(folder + "/" + hierarchy.usage_file).value_or(0);
  least.used_bytes = used - std::min(used, cache);
  limits->push_back(std::move(least));
}

void AddCgroups(const std::string& root, std::vector<MemoryLimit>* limits) {
  Hierarchy first{{"memory.limit_in_bytes"}, "memory.usage_in_bytes",   "total_active_file",
                  "total_inactive_file",     {"/sys/fs/cgroup/memory"}, ""};
  Hierarchy second{{"memory.max", "memory.high"},
                   "memory.current",
                   "active_file",
                   "inactive_file",
                   {"/sys/fs/cgroup"},
                   ""};
  ReadMounts(root, &first, &second);
  ReadPaths(root, &first, &second);
  std::error_code error;
  const std::string service =
      fs::read_symlink(root + "/proc/self/exe", error).filename().string() + ".service";
  for (const Hierarchy* hierarchy : {&first, &second}) {
    if (hierarchy->path.empty()) continue;
    fs::path below = BelowMount(*hierarchy);
    bool alone = false;
    for (const fs::path& name : below) alone = alone || name == service;
    for (; !below.empty(); below = below.parent_path()) {
      AddLevel(root, *hierarchy, below, alone, limits);
      if (below.filename() == service) alone = false;
    }
    AddLevel(root, *hierarchy, {}, false, limits);
  }
}

// A limit that was inherited is of all its owner's processes in name only: each has its own.
void AddAddressSpace(std::vector<MemoryLimit>* limits) {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  std::ifstream statm("/proc/self/statm");
  uint64_t pages = 0;
  statm >> pages;
  limits->push_back({.bytes = limit.rlim_cur,
                     .used_bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)),
                     .file = "RLIMIT_AS",
                     .alone = true});
}

}  // namespace

std::vector<MemoryLimit> MemoryLimits(const std::string& root) {
  std::vector<MemoryLimit> limits;
  AddCgroups(root, &limits);
  if (root.empty()) AddAddressSpace(&limits);
  const auto board = ReadTable(root + "/proc/meminfo");
  const uint64_t total = Entry(board, "MemTotal:") << 10;
  const uint64_t available = Entry(board, "MemAvailable:") << 10;
  if (total > 0) {
    limits.push_back({.bytes = total,
                      .used_bytes = available == 0 ? 0 : total - std::min(total, available),
                      .file = kBoardLimit,
                      .alone = false});
  }
  return limits;
}

uint64_t MemoryAllowed(const std::string& root) {
  uint64_t least = kNoLimit;
  for (const MemoryLimit& limit : MemoryLimits(root)) least = std::min(least, limit.bytes);
  return least == kNoLimit ? 0 : least;
}

uint64_t MemoryFree(const std::string& root) {
  if (!ReadTable(root + "/proc/meminfo").contains("MemAvailable:")) return 0;
  uint64_t least = kNoLimit;
  for (const MemoryLimit& limit : MemoryLimits(root)) least = std::min(least, limit.room_bytes());
  return least;
}

}  // namespace withy
