// The reading side of telemetry: finds the ring files of all processes in one directory, drains
// them, notices writers that ended and removes their files. profiler_agent alone uses it. It never
// disturbs a writer: the only bytes it writes are the read indices.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "telemetry/ring_file.h"

namespace withy::telemetry {

// What one writer's file says. One per file; a restarted process shows up twice until its old file
// is drained.
struct SourceInfo {
  std::string process;
  int32_t pid = 0;
  int64_t start_unix_ns = 0;
  uint32_t rings = 0;
  uint64_t spans = 0;
  uint64_t dropped = 0;
  uint64_t malformed = 0;
  uint64_t overflows = 0;
  std::vector<MetricSample> metrics;
};

// One thread at a time. One reader a directory: a lock file keeps a second one out, because a ring
// has one consumer.
class Reader {
 public:
  static constexpr size_t kFileLimit =
      64;  // files attached at one time; more are reported and left alone

  // `directory` is created (mode 0700) when missing. Errors: FAILED_PRECONDITION when another
  // reader is there, and what the file system says.
  static absl::StatusOr<std::unique_ptr<Reader>> Open(std::string_view directory);

  // Attaches new files, takes all new spans (oldest first within a thread), detaches and removes
  // files of dead writers after taking their last spans. Returns what was found wrong, once a file:
  // a broken file is left out and never stops the others.
  std::vector<absl::Status> Drain(const SpanCallback& take);

  // What the attached files say now.
  std::vector<SourceInfo> Sources() const;

 private:
  explicit Reader(std::string directory) : directory_(std::move(directory)) {}
  void Discover(std::vector<absl::Status>* problems);

  // Device and inode: a path may come back with another file behind it.
  using FileId = std::pair<dev_t, ino_t>;

  std::string directory_;
  UniqueFd lock_;
  std::map<FileId, std::unique_ptr<RingFile>> files_;
  std::map<FileId, std::string> refused_;  // broken files, by path, so that each is reported once
};

}  // namespace withy::telemetry
