#include "engine/weights/source_identity.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <span>
#include <vector>

#include "base/crc32c.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "engine/weights/hasher.h"

namespace withy::engine {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kSettleNs = 60 * kSecond;
constexpr uint64_t kDigestBlock = uint64_t{1} << 20;
constexpr uint64_t kSamplePages = 64;
constexpr uint64_t kPage = 4096;
// Missing from linux/magic.h of Debian 12.
constexpr uint64_t kBcachefsMagic = 0xca451a4e;
constexpr uint64_t kXfsMagic = 0x58465342;

constexpr std::array<char, 8> kMemoMagic = {'W', 'I', 'T', 'H', 'Y', 'S', 'R', '1'};

using LaneSums = std::array<uint32_t, 4>;

std::array<uint64_t, 2> HashSums(const std::vector<LaneSums>& sums) {
  std::array<uint64_t, 2> hash{};
  for (uint64_t half = 0; half < 2; ++half) {
    Hasher hasher(half + 1);
    hasher.Add(std::as_bytes(std::span(sums)));
    hash[half] = hasher.Finish();
  }
  return hash;
}

// Stored form of a digest, in its own file.
struct Memo {
  std::array<char, 8> magic = kMemoMagic;
  FileStamp stamp;
  std::array<uint64_t, 2> sample{};
  SourceIdentity identity;
  uint32_t crc = 0;  // CRC of this structure with this field zero
  uint32_t reserved = 0;
};

int64_t Nanos(const struct statx_timestamp& time) { return time.tv_sec * kSecond + time.tv_nsec; }

absl::StatusOr<FileStamp> StampOfFd(int fd, const std::string& path) {
  struct statx info {};
  struct statfs system {};
  if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &info) != 0 ||
      fstatfs(fd, &system) != 0) {
    return ErrnoError(absl::StrCat("stat ", path));
  }
  if (!S_ISREG(info.stx_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  FileStamp stamp;
  stamp.device = (uint64_t{info.stx_dev_major} << 32) | info.stx_dev_minor;
  stamp.inode = info.stx_ino;
  stamp.size = info.stx_size;
  stamp.mtime_ns = Nanos(info.stx_mtime);
  stamp.ctime_ns = Nanos(info.stx_ctime);
  if ((info.stx_mask & STATX_BTIME) != 0) stamp.btime_ns = Nanos(info.stx_btime);
  stamp.file_system = static_cast<uint32_t>(system.f_type);
  return stamp;
}

absl::StatusOr<UniqueFd> OpenForReading(const std::string& path) {
  // Non-blocking, so that a pipe is not waited for.
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return ErrnoError(absl::StrCat("open ", path));
  return fd;
}

absl::Status Changed(const std::string& path) {
  return absl::AbortedError(
      absl::StrCat(path, " changed while it was read: start again once it is written"));
}

absl::Status ReadAt(int fd, const std::string& path, uint64_t offset, std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoError(absl::StrCat("read ", path, " at byte ", offset));
    if (got == 0) return Changed(path);
    bytes = bytes.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

// Hashes pages spread over the file, including the first and the last.
absl::StatusOr<std::array<uint64_t, 2>> SampleOf(int fd, const std::string& path, uint64_t size) {
  const uint64_t pages = (size + kPage - 1) / kPage;
  const uint64_t count = std::min(pages, kSamplePages);
  std::vector<LaneSums> sums;
  std::array<std::byte, kPage> page;
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t offset = (count == 1 ? 0 : i * (pages - 1) / (count - 1)) * kPage;
    const std::span<std::byte> bytes(page.data(), std::min(kPage, size - offset));
    WITHY_RETURN_IF_ERROR(ReadAt(fd, path, offset, bytes));
    sums.push_back(Crc32cLanes(bytes));
  }
  return HashSums(sums);
}

uint32_t MemoCrc(Memo memo) {
  memo.crc = 0;
  return Crc32c(0, std::as_bytes(std::span(&memo, 1)));
}

// Reads the memo at `index` of the file with this stamp; returns false if there is none.
bool Recall(const std::string& memo_path, size_t index, const FileStamp& stamp, Memo* memo) {
  const UniqueFd fd(open(memo_path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  return fd.valid() &&
         pread(fd.get(), memo, sizeof *memo, static_cast<off_t>(index * sizeof *memo)) ==
             sizeof *memo &&
         memo->magic == kMemoMagic && memo->crc == MemoCrc(*memo) && memo->stamp == stamp;
}

// Not synced: a memo torn by a crash fails its checksum.
void Remember(const std::string& memo_path, std::span<const Memo> memos) {
  std::string temporary = memo_path + ".XXXXXX";
  const UniqueFd fd(mkostemp(temporary.data(), O_CLOEXEC));
  if (!fd.valid()) return;
  const auto bytes = static_cast<ssize_t>(memos.size_bytes());
  const bool written = write(fd.get(), memos.data(), memos.size_bytes()) == bytes;
  if (!written || rename(temporary.c_str(), memo_path.c_str()) != 0) unlink(temporary.c_str());
}

// Returns the stored memo if the file's sample confirms it, else one of the file's bytes; `*is_new`
// becomes true then.
absl::StatusOr<Memo> MemoOf(const SourceFile& file, size_t index, const std::string& memo_path,
                            ThreadPool& pool, bool* is_new) {
  Memo memo;
  const bool known = ChangeTimeIsSafe(file.stamp) && Recall(memo_path, index, file.stamp, &memo);
  WITHY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForReading(file.path));
  WITHY_ASSIGN_OR_RETURN(const auto sample, SampleOf(fd.get(), file.path, file.stamp.size));
  if (known && sample == memo.sample) return memo;
  *is_new = true;
  memo = Memo{};
  memo.stamp = file.stamp;
  WITHY_ASSIGN_OR_RETURN(memo.identity, DigestFile(file.path, file.stamp, pool));
  memo.sample = sample;
  memo.crc = MemoCrc(memo);
  return memo;
}

SourceIdentity Combine(std::span<const Memo> memos) {
  if (memos.size() == 1) return memos[0].identity;
  SourceIdentity all;
  for (const Memo& memo : memos) all.size += memo.identity.size;
  for (uint64_t half = 0; half < 2; ++half) {
    Hasher hasher(half + 1);
    for (const Memo& memo : memos) hasher.Add(std::as_bytes(std::span(&memo.identity, 1)));
    all.digest[half] = hasher.Finish();
  }
  return all;
}

}  // namespace

absl::StatusOr<FileStamp> StampOf(const std::string& path) {
  WITHY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForReading(path));
  return StampOfFd(fd.get(), path);
}

bool ChangeTimeIsSafe(const FileStamp& stamp) {
  constexpr std::array<uint64_t, 6> kStampedByTheKernel = {EXT4_SUPER_MAGIC,  kXfsMagic,
                                                           BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC,
                                                           kBcachefsMagic,    TMPFS_MAGIC};
  return stamp.ctime_ns % kSecond != 0 &&
         std::find(kStampedByTheKernel.begin(), kStampedByTheKernel.end(), stamp.file_system) !=
             kStampedByTheKernel.end();
}

bool HasSettled(const FileStamp& stamp, int64_t now_ns) {
  return stamp.ctime_ns <= now_ns - kSettleNs;
}

absl::StatusOr<SourceIdentity> DigestFile(const std::string& path, const FileStamp& stamp,
                                          ThreadPool& pool) {
  WITHY_ASSIGN_OR_RETURN(const UniqueFd fd, OpenForReading(path));
  (void)posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  const uint64_t blocks = (stamp.size + kDigestBlock - 1) / kDigestBlock;
  std::vector<LaneSums> sums(blocks);
  std::mutex mutex;
  absl::Status failure;
  pool.ParallelFor(static_cast<int>(blocks), /*size=*/1, [&](int begin, int end) {
    std::vector<std::byte> buffer(kDigestBlock);
    for (int block = begin; block < end; ++block) {
      const uint64_t offset = static_cast<uint64_t>(block) * kDigestBlock;
      const auto bytes = std::span(buffer).first(std::min(kDigestBlock, stamp.size - offset));
      absl::Status read = ReadAt(fd.get(), path, offset, bytes);
      if (!read.ok()) {
        const std::lock_guard lock(mutex);
        failure = std::move(read);
        return;
      }
      sums[static_cast<size_t>(block)] = Crc32cLanes(bytes);
    }
  });
  WITHY_RETURN_IF_ERROR(failure);
  WITHY_ASSIGN_OR_RETURN(const FileStamp after, StampOfFd(fd.get(), path));
  if (after != stamp) return Changed(path);
  return SourceIdentity{.size = stamp.size, .digest = HashSums(sums)};
}

absl::StatusOr<std::vector<SourceFile>> StampSources(std::span<const GgufPart> parts) {
  std::vector<SourceFile> files;
  for (const GgufPart& part : parts) {
    WITHY_ASSIGN_OR_RETURN(const FileStamp stamp, StampOf(part.path));
    files.push_back({part.path, stamp});
  }
  return files;
}

absl::StatusOr<SourceIdentity> IdentifySources(std::span<const SourceFile> files,
                                               const std::string& memo_path, int64_t now_ns,
                                               ThreadPool& pool) {
  std::vector<Memo> memos;
  bool is_new = false;
  for (size_t i = 0; i < files.size(); ++i) {
    WITHY_ASSIGN_OR_RETURN(memos.emplace_back(), MemoOf(files[i], i, memo_path, pool, &is_new));
  }
  const bool may_be_kept = std::all_of(files.begin(), files.end(), [&](const SourceFile& file) {
    return ChangeTimeIsSafe(file.stamp) && HasSettled(file.stamp, now_ns);
  });
  if (is_new && may_be_kept) Remember(memo_path, memos);
  return Combine(memos);
}

bool IsRememberedWhole(const std::string& memo_path, const FileStamp& stamp) {
  Memo memo;
  return ChangeTimeIsSafe(stamp) && Recall(memo_path, 0, stamp, &memo);
}

void RememberWhole(const std::string& memo_path, const FileStamp& stamp, int64_t now_ns) {
  if (!ChangeTimeIsSafe(stamp) || !HasSettled(stamp, now_ns)) return;
  Memo memo;
  memo.stamp = stamp;
  memo.crc = MemoCrc(memo);
  Remember(memo_path, {&memo, 1});
}

}  // namespace withy::engine
