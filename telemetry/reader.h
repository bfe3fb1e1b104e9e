// The reading side of telemetry, for profiler_agent only: finds the ring files of all processes in
// one directory, drains them, and removes the files of writers that have ended. It never disturbs a
// writer: it writes only the read indices.
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

// Contents of one writer's file, except its spans. A restarted process appears twice until its old
// file is drained.
struct SourceInfo {
  std::string process;
  int32_t pid = 0;
  int64_t start_unix_ns = 0;
  uint32_t rings = 0;
  uint64_t spans = 0;
  uint64_t dropped = 0;
  uint64_t malformed = 0;
  uint64_t overflows = 0;
  std::string clock;          // of the spans: "tsc", "cntvct" or "steady_clock"
  uint64_t clock_faults = 0;  // times that the processor's counter jumped or stopped
  uint64_t untimed = 0;       // spans left out since they lie in such a time
  std::vector<MetricSample> metrics;
};

// One thread at a time. Only one reader per directory, because a ring has one consumer; a lock file
// ensures that.
class Reader {
 public:
  // Maximum number of attached files; further ones are reported and left alone.
  static constexpr size_t kFileLimit = 64;

  // Creates `directory` (mode 0700) if missing. Errors: FAILED_PRECONDITION (another reader has
  // it), those of the file system.
  static absl::StatusOr<std::unique_ptr<Reader>> Open(std::string_view directory);

  // Attaches new files, passes all new spans to `take` (in order within a thread), and after the
  // last spans of a dead writer detaches and removes its file. Returns the problems found, once per
  // file: a broken file is skipped and does not affect the others. A fault of the processor's
  // counter (UNAVAILABLE) is told once for all files.
  std::vector<absl::Status> Drain(const SpanCallback& take);

  // The present state of the attached files.
  std::vector<SourceInfo> Sources() const;

 private:
  explicit Reader(std::string directory) : directory_(std::move(directory)) {}
  void Discover(std::vector<absl::Status>* problems);

  // Device and inode: a path may later name another file.
  using FileId = std::pair<dev_t, ino_t>;

  std::string directory_;
  UniqueFd lock_;
  std::map<FileId, std::unique_ptr<RingFile>> files_;
  std::map<FileId, std::string> refused_;  // path of each broken file, so that it is reported once
};

}  // namespace withy::telemetry
