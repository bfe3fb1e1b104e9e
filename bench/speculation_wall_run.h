// One contestant of the memory wall, in a process of its own: opens the model, decodes, and says
// what that took. Neighbours: speculation_wall.cc starts it in a memory cgroup and compares.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace withy::bench {

struct WallRun {
  std::string packed;      // a packed file
  std::string contestant;  // "resident", "mmap", "withy" or "layers"
  uint64_t budget_bytes = 0;
  int32_t threads = 2;
  int32_t tokens = 8;
  double seconds = 60;  // ends earlier than `tokens` if they take longer
  std::string cgroup;   // where memory is read; may be empty
};

struct WallResult {
  double token_s = 0;          // median
  double read_bytes_s = 0;     // streamed, while decoding
  double wait_share = 0;       // of the time, standing still for weights
  double disk_bytes_s = 0;     // plain O_DIRECT reads of the same file, right before and after
  uint64_t memory_bytes = 0;   // RSS and page cache of the cgroup at the end
  uint64_t weights_bytes = 0;  // resident and buffers, as planned; 0: not streamed
  uint64_t pass_bytes = 0;     // read for a pass, as planned
  int64_t locked_bytes = 0;
  bool direct = false;
};

// Errors: those of Model::Open and Model::Forward.
absl::StatusOr<WallResult> RunContestant(const WallRun& run);

// Bytes per second that plain O_DIRECT reads of a file get: 1 MiB, 16 at a time, about `seconds`
// long. Errors: of open(2) and read(2).
absl::StatusOr<double> MeasureDisk(const std::string& path, double seconds);

std::string ToJson(const WallResult& result);
// Errors: INTERNAL (no such JSON).
absl::StatusOr<WallResult> ParseWallResult(const std::string& json);

}  // namespace withy::bench
