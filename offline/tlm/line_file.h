// A file of JSON lines that grows line by line and survives a kill: what takes hours to make is
// kept so. The first line says what the others were made of. Neighbours: job.cc.
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
  // Opens or begins the file; an unfinished last line is cut off. Errors: from the disk, naming the
  // path; FAILED_PRECONDITION when it holds lines that were made of something else.
  static absl::StatusOr<LineFile> Open(const std::string& path, const std::string& made_of);

  const std::vector<std::string>& lines() const { return lines_; }
  absl::Status Append(const std::vector<std::string>& lines);

 private:
  explicit LineFile(std::string path) : path_(std::move(path)) {}
  std::string path_;
  std::vector<std::string> lines_;
};

// Fills `file` up to `count` lines, a few at a time, each made by one of `threads` threads:
// make(line's index, thread). `progress`: (lines done, lines in all). Errors: the first of make's;
// the disk's.
absl::Status FillLines(
    size_t count, int threads,
    const std::function<absl::StatusOr<std::string>(size_t index, int thread)>& make,
    const std::function<void(size_t done, size_t all)>& progress, LineFile* file);

}  // namespace withy::tlm
