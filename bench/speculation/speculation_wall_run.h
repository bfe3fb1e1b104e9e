// One contestant of the memory wall, in a process of its own: opens the model, decodes, and says
// what that took. Neighbours: speculation_wall.cc starts it in a memory cgroup and compares,
// speculation_wall_pair.h answers prompts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/speculation/speculation_wall_figures.h"

namespace withy::bench {

struct WallRun {
  std::string packed;  // a packed file
  // "resident", "mmap", "stream", "layers", "peer", "pair" or "service"
  std::string contestant;
  uint64_t budget_bytes = 0;  // of the target; 0: "pair" and "service" keep it in memory
  int32_t threads = 2;
  int32_t tokens = 8;
  double seconds = 60;  // ends earlier than `tokens` if they take longer
  std::string cgroup;   // where memory is read; may be empty
  // Of "peer".
  std::string gguf;
  std::string program;
  // Of "pair" and "service".
  std::string draft;              // a packed file; may be empty if no way needs it
  std::vector<std::string> ways;  // speculation_wall_figures.h
  std::string prompt_file;        // of its lines the first; empty: held-out prompts of the corpus
  int32_t prompts = 6;            // whose answers end where the model ends them
  int32_t open_prompts = 1;       // whose answers go on (speculation_wall_pair.h)
  int32_t answer_tokens = 32;
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
  // Of "pair" and "service".
  std::vector<WallAnswer> answers;
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
