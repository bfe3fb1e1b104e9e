#include "engine/weights/packed_check.h"

#include <algorithm>

#include "base/clock.h"
#include "base/status.h"
#include "engine/weights/packer.h"

namespace withy::engine {

absl::StatusOr<std::unique_ptr<PackedCheck>> PackedCheck::Begin(const std::string& path) {
  std::unique_ptr<PackedCheck> check(new PackedCheck());
  WITHY_ASSIGN_OR_RETURN(check->stamp_, StampOf(path));
  WITHY_ASSIGN_OR_RETURN(check->file_, PackedFile::Open(path, PackedFile::Verify::kHead));
  WITHY_ASSIGN_OR_RETURN(check->weights_, OpenWeightFile(path));
  WITHY_ASSIGN_OR_RETURN(check->buffer_, HugeMemory::Allocate(kPackedChecksumBlock));
  return check;
}

absl::StatusOr<uint64_t> PackedCheck::Next() {
  const uint64_t left = file_->data_bytes() - at_;
  const auto block = buffer_.bytes().first(std::min(kPackedChecksumBlock, left));
  if (block.empty()) return 0;
  WITHY_RETURN_IF_ERROR(weights_.Read(file_->path(), file_->data_offset() + at_, block));
  WITHY_RETURN_IF_ERROR(file_->CheckBlocks(at_, block));
  at_ += block.size();
  return block.size();
}

absl::Status CheckPacked(const std::string& path, const std::string& memo_path) {
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<PackedCheck> check, PackedCheck::Begin(path));
  while (true) {
    WITHY_ASSIGN_OR_RETURN(const uint64_t bytes, check->Next());
    if (bytes == 0) break;
  }
  RememberWhole(memo_path, check->stamp(), Clock::Real().UnixNanos());
  return absl::OkStatus();
}

absl::Status CheckPackedOnce(const std::string& path, const std::string& memo_path) {
  WITHY_ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(path));
  return IsRememberedWhole(memo_path, stamp) ? absl::OkStatus() : CheckPacked(path, memo_path);
}

std::string CheckedMemoPath(const std::string& model_path, const std::string& cache_dir) {
  return PackedPath(model_path, cache_dir) + ".checked";
}

}  // namespace withy::engine
