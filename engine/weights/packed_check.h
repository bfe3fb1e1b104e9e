// Checks every byte of a packed file as the disk has it, past the page cache where the file system
// can. Neighbours: cache.cc checks what it has written, scrubber.h checks in idle time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/huge_memory.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/source_identity.h"
#include "engine/weights/weight_loader.h"

namespace withy::engine {

// One check from the first to the last block, at the caller's pace. For one thread.
class PackedCheck {
 public:
  // Checks all but the weights. Errors: as PackedFile::Open.
  static absl::StatusOr<std::unique_ptr<PackedCheck>> Begin(const std::string& path);

  // Checks the next block and returns its bytes; 0: every byte was checked. Errors: DATA_LOSS
  // naming file, byte and tensor.
  absl::StatusOr<uint64_t> Next();

  // The file as it was when the check began.
  const FileStamp& stamp() const { return stamp_; }

 private:
  PackedCheck() = default;

  FileStamp stamp_;
  std::unique_ptr<PackedFile> file_;
  WeightFile weights_;
  HugeMemory buffer_;
  uint64_t at_ = 0;  // within the weights
};

// Runs a whole check, and remembers in `memo_path` that the file was whole. Errors: as PackedCheck.
absl::Status CheckPacked(const std::string& path, const std::string& memo_path);

// The same, unless the file is remembered as whole.
absl::Status CheckPackedOnce(const std::string& path, const std::string& memo_path);

// Where it is remembered that the packed file of `model_path`, or that file itself, was whole.
std::string CheckedMemoPath(const std::string& model_path, const std::string& cache_dir);

}  // namespace withy::engine
