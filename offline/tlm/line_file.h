// A file of JSON lines that grows line by line and survives a kill; for results that take hours.
// The first line identifies the inputs of the others. Neighbour: job.cc.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace withy::tlm {

// Not thread-safe.
class LineFile {
 public:
  // Opens or creates the file and cuts off an incomplete last line. Errors: of the file system,
  // naming the path; FAILED_PRECONDITION if its lines come from other inputs.
  static absl::StatusOr<LineFile> Open(const std::string& path, const std::string& made_of);

  const std::vector<std::string>& lines() const { return lines_; }
  absl::Status Append(const std::vector<std::string>& lines);

 private:
  explicit LineFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::vector<std::string> lines_;
};

// Fills `file` up to `count` lines, a few at a time, each computed by one of `threads` threads as
// make(line index, thread). `progress`: (lines done, all lines). Errors: the first of `make`; those
// of the file system.
absl::Status FillLines(
    size_t count, int threads,
    const std::function<absl::StatusOr<std::string>(size_t index, int thread)>& make,
    const std::function<void(size_t done, size_t all)>& progress, LineFile* file);

}  // namespace withy::tlm
