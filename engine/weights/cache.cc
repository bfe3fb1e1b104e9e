// EnsurePacked: the cache of packed files, one per GGUF path, guarded by a lock file.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/environment.h"
#include "base/ids.h"
#include "base/status.h"
#include "engine/weights/packed_check.h"
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

// Why a packed file was removed, kept beside its place until it is packed again.
struct Discarded {
  uint32_t kv_epoch = 0;  // 0: it was not removed
  std::string why;
};

std::string DiscardedPath(const std::string& packed_path) { return packed_path + ".damaged"; }

Discarded ReadDiscarded(const std::string& packed_path) {
  Discarded discarded;
  std::ifstream in(DiscardedPath(packed_path));
  if (in >> discarded.kv_epoch && in.get() == '\n') std::getline(in, discarded.why);
  return discarded;
}

// Removes it and says why. A file that cannot be removed cannot be replaced either.
absl::Status Discard(const std::string& packed_path, const absl::Status& damage) {
  Discarded discarded{.kv_epoch = static_cast<uint32_t>(RandomId64() >> 32) | 1,
                      .why = std::string(damage.message())};
  std::replace(discarded.why.begin(), discarded.why.end(), '\n', ' ');
  std::ofstream(DiscardedPath(packed_path)) << discarded.kv_epoch << "\n" << discarded.why << "\n";
  std::error_code error;
  fs::remove(packed_path, error);
  if (!error) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(damage.message(), "; it cannot be removed (",
                                                    error.message(), "): move it away"));
}

// If the disk has no room beside an outdated packed file, removes that first.
absl::Status PackWithRoom(const GgufFile& file, const SourceIdentity& source,
                          const std::string& packed_path, ThreadPool& pool,
                          const PackProgress& progress, uint32_t kv_epoch,
                          const std::atomic<bool>* cancel) {
  const absl::Status packed = PackGguf(file, source, packed_path, pool, progress, kv_epoch, cancel);
  std::error_code error;
  if (!absl::IsResourceExhausted(packed) || !fs::remove(packed_path, error)) return packed;
  return PackGguf(file, source, packed_path, pool, progress, kv_epoch, cancel);
}

// Packs, and checks what the disk then has.
absl::Status Pack(const GgufFile& file, const SourceIdentity& source,
                  const std::string& packed_path, ThreadPool& pool, const PackProgress& progress,
                  const DamageReport& on_damage, const std::atomic<bool>* cancel) {
  const Discarded discarded = ReadDiscarded(packed_path);
  if (discarded.kv_epoch != 0 && on_damage) on_damage(absl::DataLossError(discarded.why));
  WITHY_RETURN_IF_ERROR(
      PackWithRoom(file, source, packed_path, pool, progress, discarded.kv_epoch, cancel));
  std::error_code error;
  const absl::Status written = CheckPacked(packed_path, packed_path + ".checked");
  if (!written.ok()) {
    fs::remove(packed_path, error);
    return absl::Status(
        written.code(),
        absl::StrCat(
            written.message(),
            "; it had just been written: the disk does not keep what it is given; check it "
            "(dmesg, smartctl), or set state_dir to another one"));
  }
  fs::remove(DiscardedPath(packed_path), error);
  return absl::OkStatus();
}

// Not of a file that could be opened at another time: without memory or descriptors.
bool IsDamage(const absl::Status& state) {
  return !state.ok() && !absl::IsNotFound(state) && !absl::IsResourceExhausted(state) &&
         !absl::IsUnavailable(state);
}

// OK: it may be used. NOT_FOUND: it is missing or outdated.
absl::Status StateOf(const std::string& packed_path, const SourceIdentity& source) {
  const auto recorded = PackedFile::ReadSource(packed_path);
  if (absl::IsNotFound(recorded.status()) || absl::IsFailedPrecondition(recorded.status())) {
    return absl::NotFoundError(recorded.status().message());
  }
  WITHY_RETURN_IF_ERROR(recorded.status());
  if (*recorded != source) return absl::NotFoundError("made from other bytes");
  return PackedFile::Open(packed_path).status();
}

// The GGUF's files, whose number only the GGUF says.
absl::StatusOr<std::vector<SourceFile>> SourcesOf(const std::string& gguf_path) {
  WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(gguf_path));
  return StampSources(file.parts());
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

absl::Status DiscardPacked(const std::string& gguf_path, const std::string& cache_dir,
                           const absl::Status& damage) {
  const std::string packed_path = PackedPath(gguf_path, cache_dir);
  WITHY_ASSIGN_OR_RETURN(const FileLock lock, FileLock::Take(packed_path + ".lock"));
  return Discard(packed_path, damage);
}

absl::Status WithPackedState(const absl::Status& error, const std::string& gguf_path,
                             const std::string& cache_dir) {
  const std::string packed_path = PackedPath(gguf_path, cache_dir);
  if (!absl::IsNotFound(error)) return error;
  const Discarded discarded = ReadDiscarded(packed_path);
  if (discarded.kv_epoch != 0) {
    return absl::Status(error.code(), absl::StrCat(error.message(),
                                                   "; the packed file that was made from it is "
                                                   "damaged (",
                                                   discarded.why, "): put the GGUF back"));
  }
  const absl::Status state = CheckPackedOnce(packed_path, packed_path + ".checked");
  if (absl::IsNotFound(state)) return error;
  return absl::Status(
      error.code(),
      state.ok()
          ? absl::StrCat(error.message(), "; the packed file that was made from it, ", packed_path,
                         ", is whole: put the GGUF back, or name that file in model.path")
          : absl::StrCat(error.message(),
                         "; the packed file that was made from it is "
                         "damaged, too (",
                         state.message(), "): put the GGUF back"));
}

absl::StatusOr<std::string> EnsurePacked(const std::string& gguf_path, const std::string& cache_dir,
                                         ThreadPool& pool, const PackProgress& progress,
                                         const DamageReport& on_damage,
                                         const std::atomic<bool>* cancel) {
  WITHY_ASSIGN_OR_RETURN(const std::vector<SourceFile> sources, SourcesOf(gguf_path));
  // Mapped after it was stamped, so that the stamps belong to the mapped, digested and packed
  // bytes.
  WITHY_ASSIGN_OR_RETURN(const GgufFile file, GgufFile::Open(gguf_path));
  const std::string packed_path = PackedPath(gguf_path, cache_dir);
  WITHY_ASSIGN_OR_RETURN(
      const SourceIdentity source,
      IdentifySources(sources, packed_path + ".source", Clock::Real().UnixNanos(), pool));
  if (StateOf(packed_path, source).ok()) return packed_path;
  const fs::path folder = fs::path(packed_path).parent_path();
  std::error_code error;
  fs::create_directories(folder, error);
  absl::StatusOr<FileLock> lock = FileLock::Take(packed_path + ".lock");
  if (!lock.ok()) {
    return Annotate(lock.status(),
                    absl::StrCat("packed files cannot be stored in ", folder.string(),
                                 ": make it writable, or set another state_dir"));
  }
  const absl::Status state = StateOf(packed_path, source);
  if (state.ok()) return packed_path;  // another process has just created it
  if (IsDamage(state)) {
    WITHY_RETURN_IF_ERROR(Discard(packed_path, state));
  } else if (!absl::IsNotFound(state)) {
    return state;
  }
  RemoveLeftOvers(packed_path);
  WITHY_RETURN_IF_ERROR(Pack(file, source, packed_path, pool, progress, on_damage, cancel));
  const absl::StatusOr<std::vector<SourceFile>> after = StampSources(file.parts());
  if (!after.ok() || *after != sources) {
    fs::remove(packed_path, error);
    return absl::AbortedError(
        absl::StrCat(gguf_path, " changed while it was packed: start again once it is written"));
  }
  return packed_path;
}

}  // namespace withy::engine
