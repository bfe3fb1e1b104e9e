#include "engine/gguf/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::engine {
namespace {

constexpr size_t kBufferBytes = 1 << 20;
constexpr char kSuffix[] = ".XXXXXX.partial";
constexpr int kSuffixTail = sizeof(".partial") - 1;

}  // namespace

absl::StatusOr<std::unique_ptr<OutputFile>> OutputFile::Create(const std::string& path) {
  std::string temporary = path + kSuffix;
  const int fd = mkostemps(temporary.data(), kSuffixTail, O_CLOEXEC);
  if (fd < 0) return ErrnoError(absl::StrCat("create a file beside ", path));
  // mkostemps creates private files, but services of other users read models.
  if (fchmod(fd, 0644) != 0) {
    const absl::Status status = ErrnoError(absl::StrCat("set the mode of ", temporary));
    close(fd);
    unlink(temporary.c_str());
    return status;
  }
  return std::unique_ptr<OutputFile>(new OutputFile(path, std::move(temporary), fd));
}

OutputFile::OutputFile(std::string path, std::string temporary, int fd)
    : path_(std::move(path)), temporary_(std::move(temporary)), fd_(fd) {
  buffer_.reserve(kBufferBytes);
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

absl::Status OutputFile::Append(std::span<const uint8_t> bytes) {
  bytes_written_ += bytes.size();
  if (buffer_.size() + bytes.size() > kBufferBytes) WITHY_RETURN_IF_ERROR(Flush());
  if (bytes.size() >= kBufferBytes) return WriteAll(bytes);
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return absl::OkStatus();
}

absl::Status OutputFile::Commit() {
  WITHY_RETURN_IF_ERROR(Flush());
  if (fsync(fd_) != 0) return Error("sync");
  if (rename(temporary_.c_str(), path_.c_str()) != 0) return Error("rename to");
  close(std::exchange(fd_, -1));
  const std::filesystem::path directory = std::filesystem::path(path_).parent_path();
  const int directory_fd =
      open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory_fd < 0) return Error("sync the directory of");
  const int result = fsync(directory_fd);
  const int error = errno;
  close(directory_fd);
  errno = error;
  return result == 0 ? absl::OkStatus() : Error("sync the directory of");
}

absl::Status OutputFile::Flush() {
  absl::Status status = WriteAll(buffer_);
  buffer_.clear();
  return status;
}

absl::Status OutputFile::WriteAll(std::span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return Error("write");
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

absl::Status OutputFile::Error(const char* action) const {
  const std::string what = absl::StrCat(action, " ", path_, " (", bytes_written_, " bytes so far)");
  if (errno == ENOSPC || errno == EDQUOT || errno == EFBIG) {
    return absl::ResourceExhaustedError(
        absl::StrCat(ErrnoError(what).message(), "; free some space and try again"));
  }
  return ErrnoError(what);
}

}  // namespace withy::engine
