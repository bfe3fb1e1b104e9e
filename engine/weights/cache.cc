// EnsurePacked: the cache of packed files, one per GGUF path, guarded by a lock file.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/environment.h"
#include "base/status.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/packer.h"
#include "engine/weights/source_identity.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;

// An exclusive lock on a file while the object lives. The file is not removed: that would allow two
// holders.
class FileLock {
 public:
  static absl::StatusOr<FileLock> Take(const std::string& path) {
    // Refuses anything but a regular file; does not wait for pipes or follow links.
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (fd < 0) return ErrnoError(absl::StrCat("open ", path));
    FileLock lock(fd);
    struct stat info {};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is not a regular file and cannot be locked: move it away"));
    }
    while (flock(fd, LOCK_EX) != 0) {
      if (errno != EINTR) return ErrnoError(absl::StrCat("lock ", path));
    }
    return lock;
  }
  FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock() {
    if (fd_ >= 0) close(fd_);
  }

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_;
};

std::string PackedName(const fs::path& gguf_path) {
  std::error_code error;
  const fs::path canonical = fs::weakly_canonical(gguf_path, error);
  const std::string text = error ? gguf_path.string() : canonical.string();
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return absl::StrFormat("%s-%08x.withy", gguf_path.stem().string(), Crc32c(0, bytes));
}

// Removes files left by a process killed while packing. The lock ensures that no other process
// packs.
void RemoveLeftOvers(const std::string& packed_path) {
  std::error_code ignored;
  const std::string prefix = fs::path(packed_path).filename().string() + ".";
  for (const auto& entry : fs::directory_iterator(fs::path(packed_path).parent_path(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(prefix) && name.ends_with(".partial")) fs::remove(entry.path(), ignored);
  }
}

// If the disk has no room beside an outdated packed file, removes that first.
absl::Status Pack(const GgufFile& file, const SourceIdentity& source,
                  const std::string& packed_path, ThreadPool& pool, const PackProgress& progress) {
  const absl::Status packed = PackGguf(file, source, packed_path, pool, progress);
  std::error_code error;
  if (!absl::IsResourceExhausted(packed) || !fs::remove(packed_path, error)) return packed;
  return PackGguf(file, source, packed_path, pool, progress);
}

bool UpToDate(const std::string& packed_path, const SourceIdentity& source) {
  const auto recorded = PackedFile::ReadSource(packed_path);
  return recorded.ok() && *recorded == source && PackedFile::Open(packed_path).ok();
}

}  // namespace

std::string DefaultCacheDir(const std::string& gguf_path) {
  if (const std::string cache = Environment("XDG_CACHE_HOME"); !cache.empty()) {
    return fs::path(cache) / "withy";
  }
  if (const std::string home = Environment("HOME"); !home.empty()) {
    return fs::path(home) / ".cache" / "withy";
  }
  const fs::path parent = fs::path(gguf_path).parent_path();
  return parent.empty() ? "." : parent.string();
}

std::string PackedPath(const std::string& gguf_path, const std::string& cache_dir) {
  const fs::path folder = cache_dir.empty() ? DefaultCacheDir(gguf_path) : cache_dir;
  return folder / PackedName(gguf_path);
}

absl::StatusOr<std::string> EnsurePacked(const std::string& gguf_path, const std::string& cache_dir,
                                         ThreadPool& pool, const PackProgress& progress) {
  // Taken before the file is mapped, so that the stamp belongs to the mapped, digested and packed
  // bytes.
  const absl::StatusOr<FileStamp> stamp = StampOf(gguf_path);
  WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(gguf_path));
  WITHY_RETURN_IF_ERROR(stamp.status());
  const std::string packed_path = PackedPath(gguf_path, cache_dir);
  WITHY_ASSIGN_OR_RETURN(
      const SourceIdentity source,
      IdentifySource(gguf_path, *stamp, packed_path + ".source", Clock::Real().UnixNanos(), pool));
  if (UpToDate(packed_path, source)) return packed_path;
  const fs::path folder = fs::path(packed_path).parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  absl::StatusOr<FileLock> lock = FileLock::Take(packed_path + ".lock");
  if (!lock.ok()) {
    return Annotate(lock.status(),
                    absl::StrCat("packed files cannot be stored in ", folder.string(),
                                 ": make it writable, or set another state_dir"));
  }
  if (UpToDate(packed_path, source)) return packed_path;  // another process has just created it
  RemoveLeftOvers(packed_path);
  WITHY_RETURN_IF_ERROR(Pack(file, source, packed_path, pool, progress));
  const absl::StatusOr<FileStamp> after = StampOf(gguf_path);
  if (!after.ok() || *after != *stamp) {
    fs::remove(packed_path, error);
    return absl::AbortedError(
        absl::StrCat(gguf_path, " changed while it was packed: start again once it is written"));
  }
  return packed_path;
}

}  // namespace withy::engine
