// A file that is written atomically: written beside its final path, synced, renamed. Neighbours:
// writer.h (GGUF) and other writers of large files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace withy::engine {

// Not thread-safe. If destroyed without Commit(), removes the temporary file and leaves `path` as
// it was.
class OutputFile {
 public:
  // Creates PATH.XXXXXX.partial in the same directory. Errors: of the file system, naming the path.
  static absl::StatusOr<std::unique_ptr<OutputFile>> Create(const std::string& path);

  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile();

  // Appends. Errors: ResourceExhausted (the disk is full or the quota used up), others of the file
  // system; all name the path.
  absl::Status Append(std::span<const uint8_t> bytes);
  uint64_t bytes_written() const { return bytes_written_; }

  // Flushes, syncs, renames to `path`, syncs the directory. Call once, last.
  absl::Status Commit();

 private:
  OutputFile(std::string path, std::string temporary, int fd);
  absl::Status Flush();
  absl::Status WriteAll(std::span<const uint8_t> bytes);
  absl::Status Error(const char* action) const;

  std::string path_;
  std::string temporary_;
  int fd_;  // -1 once committed
  std::vector<uint8_t> buffer_;
  uint64_t bytes_written_ = 0;
};

}  // namespace withy::engine
