// EnsurePacked: the cache of packed files, one a GGUF path, guarded by a lock file.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status.h"
#include "engine/weights/crc32c.h"
#include "engine/weights/packed_file.h"
#include "engine/weights/packer.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;

// An exclusive lock on a file, held while it lives. The file stays: removing it would let two
// holders in.
class FileLock {
 public:
  static absl::StatusOr<FileLock> Take(const std::string& path) {
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return ErrnoError(absl::StrCat("open ", path));
    FileLock lock(fd);
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

bool UpToDate(const std::string& packed_path, const SourceIdentity& source) {
  const auto recorded = PackedFile::ReadSource(packed_path);
  return recorded.ok() && *recorded == source && PackedFile::Open(packed_path).ok();
}

}  // namespace

std::string DefaultCacheDir(const std::string& gguf_path) {
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return fs::path(cache) / "withy";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home != '\0') {
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
  WITHY_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(gguf_path));
  WITHY_ASSIGN_OR_RETURN(SourceIdentity source, IdentifySource(file));
  const std::string packed_path = PackedPath(gguf_path, cache_dir);
  if (UpToDate(packed_path, source)) return packed_path;
  const fs::path folder = fs::path(packed_path).parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  absl::StatusOr<FileLock> lock = FileLock::Take(packed_path + ".lock");
  if (!lock.ok()) {
    return Annotate(lock.status(),
                    absl::StrCat("packed files cannot be kept in ", folder.string(),
                                 ": make it writable, or let the service's state_dir be another"));
  }
  if (UpToDate(packed_path, source)) return packed_path;  // another process has just made it
  WITHY_RETURN_IF_ERROR(PackGguf(file, packed_path, pool, progress));
  return packed_path;
}

}  // namespace withy::engine
