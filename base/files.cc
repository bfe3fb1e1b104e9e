#include "base/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fnv1a.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace withy {

namespace fs = std::filesystem;

namespace {

absl::Status DiskError(std::string_view action, const std::string& path, size_t bytes) {
  const absl::Status status = ErrnoError(absl::StrCat(ToAbsl(action), " ", path));
  if (errno != ENOSPC && errno != EDQUOT && errno != EFBIG) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), ": ", bytes, " bytes are needed; free some space and try again"));
}

// Writes and syncs `path`, which is created or overwritten.
absl::Status WriteSynced(const std::string& path, std::string_view bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return DiskError("create", path, bytes.size());
  absl::Status status;
  for (std::string_view left = bytes; status.ok() && !left.empty();) {
    const ssize_t written = write(fd, left.data(), left.size());
    if (written >= 0) {
      left.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      status = DiskError("write", path, bytes.size());
    }
  }
  if (status.ok() && fsync(fd) != 0) status = DiskError("sync", path, bytes.size());
  if (close(fd) != 0 && status.ok()) status = DiskError("close", path, bytes.size());
  return status;
}

absl::StatusOr<std::string> ReadAll(const UniqueFd& fd, const std::string& path,
                                    size_t most_bytes) {
  std::string bytes;
  std::array<char, 1 << 14> piece;
  while (bytes.size() <= most_bytes) {
    const ssize_t got = read(fd.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError("read " + path);
    if (got == 0) return bytes;
    bytes.append(piece.data(), static_cast<size_t>(got));
  }
  return absl::ResourceExhaustedError(
      absl::StrCat(path, " has more than the ", most_bytes, " bytes that are possible"));
}

}  // namespace

absl::Status CheckOutput(const std::string& path, const std::vector<std::string>& inputs) {
  std::error_code error;  // a missing file is not an error
  fs::path directory = fs::path(path).parent_path();
  if (directory.empty()) directory = ".";
  if (!fs::is_directory(directory, error)) {
    return absl::NotFoundError(
        absl::StrCat(path, ": there is no directory ", directory.string(), ": make it first"));
  }
  if (fs::is_directory(path, error)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is a directory: name a file"));
  }
  const bool there = fs::exists(path, error);
  if (access(directory.c_str(), W_OK) != 0 || (there && access(path.c_str(), W_OK) != 0)) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": cannot be written"));
  }
  for (const std::string& input : inputs) {
    if (there && !input.empty() && fs::equivalent(path, input, error)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is also an input: give the output another name"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> FileDigest(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  Fnv1a hash;
  std::array<char, 1 << 16> bytes;
  do {
    in.read(bytes.data(), bytes.size());
    hash.AddBytes(std::string_view(bytes.data(), static_cast<size_t>(in.gcount())));
  } while (in);
  if (!in.eof()) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  return absl::StrFormat("%016x", hash.value());
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoError("open " + path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoError("stat " + path);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(path + " is no regular file: move it away");
  }
  return ReadAll(fd, path, most_bytes);
}

absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most_bytes) {
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoError("open " + path);
  return ReadAll(fd, path, most_bytes);
}

absl::Status SyncDirectoryOf(const std::string& path) {
  const fs::path directory = fs::path(path).parent_path();
  const int fd = open(directory.empty() ? "." : directory.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return ErrnoError("open the directory of " + path);
  const absl::Status status =
      fsync(fd) == 0 ? absl::OkStatus() : ErrnoError("sync the directory of " + path);
  close(fd);
  return status;
}

absl::Status WriteAtomically(const std::string& path, std::string_view bytes) {
  const std::string partial = path + ".partial";
  absl::Status status = WriteSynced(partial, bytes);
  if (status.ok() && std::rename(partial.c_str(), path.c_str()) != 0) {
    status = ErrnoError("rename to " + path);
  }
  if (status.ok()) return SyncDirectoryOf(path);
  unlink(partial.c_str());
  return status;
}

}  // namespace withy
