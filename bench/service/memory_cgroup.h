// A memory cgroup of this benchmark: a limit on RSS and page cache together, and what they take.
// Version 1 or 2, whichever the system has; needs root. Neighbour: speculation_wall.cc.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

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

 private:
  explicit MemoryCgroup(std::string directory) : directory_(std::move(directory)) {}
  std::string directory_;
};

// RSS plus page cache of a group, in bytes; 0 if it cannot be read.
uint64_t CgroupMemory(const std::string& directory);

}  // namespace withy::bench
