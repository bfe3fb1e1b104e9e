// A memory cgroup of this benchmark: a limit on RSS and page cache together, what they take, and
// programs that run in it. Version 1 or 2, whichever the system has; needs root. Neighbours:
// speculation_wall_limited.cc and engine/moe.cc run contestants in it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace withy::bench {

// Owns the group and removes it; by then its processes have ended.
class MemoryCgroup {
 public:
  // Below the group of this process. Errors: PERMISSION_DENIED and others of mkdir(2), naming the
  // directory.
  static absl::StatusOr<MemoryCgroup> Create(const std::string& name);
  MemoryCgroup(MemoryCgroup&& other) noexcept;
  MemoryCgroup& operator=(MemoryCgroup&&) = delete;
  ~MemoryCgroup();

  // Errors: those of writing the limit.
  absl::Status SetLimit(uint64_t bytes) const;
  // Moves a process into the group. Errors: those of writing its id.
  absl::Status Add(int pid) const;
  const std::string& directory() const { return directory_; }

  // Runs a program in the group to its end; returns what it printed. Errors: those of pipe(2) and
  // fork(2); INTERNAL (it did not end with 0: killed for memory, among others).
  absl::StatusOr<std::string> Run(const std::vector<std::string>& command) const;

 private:
  explicit MemoryCgroup(std::string directory) : directory_(std::move(directory)) {}
  std::string directory_;
};

// RSS plus page cache of a group, in bytes; 0 if it cannot be read.
uint64_t CgroupMemory(const std::string& directory);
// The most that it was, since ForgetCgroupPeak where the system permits that, with what the kernel
// needs for it.
uint64_t CgroupPeak(const std::string& directory);
void ForgetCgroupPeak(const std::string& directory);

// Writes what is dirty of a file, and lets the page cache forget it. Errors: of open(2).
absl::Status DropFromCache(const std::string& path);

}  // namespace withy::bench
