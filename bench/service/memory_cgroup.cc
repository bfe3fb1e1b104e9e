#include "bench/service/memory_cgroup.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace withy::bench {
namespace {

constexpr char kRoot[] = "/sys/fs/cgroup";

bool IsVersion2() { return access("/sys/fs/cgroup/cgroup.controllers", F_OK) == 0; }

// This process's memory group.
std::string OwnGroup() {
  std::ifstream groups("/proc/self/cgroup");
  const bool version2 = IsVersion2();
  for (std::string line; std::getline(groups, line);) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    if (version2 && parts[0] == "0") return absl::StrCat(kRoot, parts[2]);
    if (!version2 && parts[1] == "memory") return absl::StrCat(kRoot, "/memory", parts[2]);
  }
  return version2 ? kRoot : absl::StrCat(kRoot, "/memory");
}

std::string PeakFile(const std::string& directory) {
  return directory + (IsVersion2() ? "/memory.peak" : "/memory.max_usage_in_bytes");
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file ? absl::OkStatus() : ErrnoError(absl::StrCat("write ", text, " to ", path));
}

}  // namespace

absl::StatusOr<MemoryCgroup> MemoryCgroup::Create(const std::string& name) {
  std::string own = OwnGroup();
  // A process in a container sees its group's path from outside.
  if (access(own.c_str(), W_OK) != 0) {
    own = IsVersion2() ? kRoot : absl::StrCat(kRoot, "/memory");
  }
  const std::string directory = absl::StrCat(own, "/", name, "-", getpid());
  if (mkdir(directory.c_str(), 0755) != 0 && errno != EEXIST) {
    return ErrnoError(
        absl::StrCat("create the memory cgroup ", directory, " (this benchmark needs root)"));
  }
  return MemoryCgroup(directory);
}

MemoryCgroup::MemoryCgroup(MemoryCgroup&& other) noexcept
    : directory_(std::exchange(other.directory_, "")) {}

MemoryCgroup::~MemoryCgroup() {
  if (!directory_.empty()) rmdir(directory_.c_str());
}

absl::Status MemoryCgroup::SetLimit(uint64_t bytes) const {
  const char* const file = IsVersion2() ? "/memory.max" : "/memory.limit_in_bytes";
  return WriteFile(directory_ + file, absl::StrCat(bytes));
}

absl::Status MemoryCgroup::Add(int pid) const {
  return WriteFile(directory_ + "/cgroup.procs", absl::StrCat(pid));
}

uint64_t CgroupMemory(const std::string& directory) {
  std::ifstream file(directory + "/memory.stat");
  const bool version2 = IsVersion2();
  uint64_t sum = 0;
  std::string name;
  uint64_t bytes = 0;
  while (file >> name >> bytes) {
    if (version2 ? name == "anon" || name == "file" : name == "rss" || name == "cache") {
      sum += bytes;
    }
  }
  return sum;
}

uint64_t CgroupPeak(const std::string& directory) {
  std::ifstream file(PeakFile(directory));
  uint64_t bytes = 0;
  file >> bytes;
  return std::max(bytes, CgroupMemory(directory));
}

void ForgetCgroupPeak(const std::string& directory) {
  (void)WriteFile(PeakFile(directory), "0");  // kernels that keep the peak tell more
}

absl::StatusOr<std::string> MemoryCgroup::Run(const std::vector<std::string>& command) const {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoError("make a pipe");
  const UniqueFd reads(ends[0]);
  UniqueFd writes(ends[1]);
  const int pid = fork();
  if (pid < 0) return ErrnoError("start a contestant");
  if (pid == 0) {
    dup2(writes.get(), STDOUT_FILENO);
    if (!Add(getpid()).ok()) _exit(126);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  writes.Reset();
  std::string output;
  std::array<char, 4096> buffer{};
  for (ssize_t n; (n = read(reads.get(), buffer.data(), buffer.size())) > 0;) {
    output.append(buffer.data(), static_cast<size_t>(n));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return absl::InternalError(absl::StrCat("ended with status ", status));
  }
  return output;
}

absl::Status DropFromCache(const std::string& path) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError(absl::StrCat("open ", path));
  fdatasync(fd.get());
  posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  return absl::OkStatus();
}

}  // namespace withy::bench
