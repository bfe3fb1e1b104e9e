// By what a packed file knows the GGUF that it was made from: a digest of every byte, and what
// spares reading them all at each start. Neighbours: cache.cc decides by it whether to pack again,
// packed_format.h keeps it.
//
// Names, sizes, modification times and metadata do not tell two models apart: updates by rsync -t,
// cp -p, ostree or image layers keep them. So the content decides. A digest costs one read of the
// file, at the speed of memory or of the disk; it is remembered with the file's stamp, and taken
// over while the stamp and a sample of the pages stay the same. That is safe because no program can
// set a file's change time (ctime): every write, rename, link, chmod or utimes moves it. Where that
// does not hold (see ChangeTimeIsSafe) the file is read whole at every start.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cpu/thread_pool.h"
#include "engine/weights/packed_format.h"

namespace withy::engine {

// What the system says of a file without reading it.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  int64_t btime_ns = 0;      // of birth; 0 where the file system keeps none
  uint64_t file_system = 0;  // statfs(2)'s f_type
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// Follows links. Errors: those of stat(2), naming the path; INVALID_ARGUMENT for what is no regular
// file.
absl::StatusOr<FileStamp> StampOf(const std::string& path);

// Whether two files with this stamp must be the same bytes: the file system gives each file its own
// inode and stamps changes by this machine's clock (ext4, XFS, Btrfs, F2FS, bcachefs, tmpfs), and
// the change time is a moment, not one that was written into an image: those are whole seconds.
// False for FAT and exFAT (their ctime is the mtime), images such as squashfs and EROFS (theirs is
// as old as the image's maker says), overlays (whose lower layer may be one), network and FUSE file
// systems. Pure.
bool ChangeTimeIsSafe(const FileStamp& stamp);

// Whether a digest taken at `now_ns` (since the epoch) may be remembered: the file had been left
// alone for a minute. A later write in the same tick of the kernel's clock, or through a mapping
// whose pages were dirty already, would not move the change time. Pure.
bool HasSettled(const FileStamp& stamp, int64_t now_ns);

// The digest of every byte: one that differs in a byte has another digest; of two unrelated files
// they are the same once in 2^64 or less. No defence against forgery. Reads through `pool`. Errors:
// from the disk, naming the path; ABORTED when the file changed meanwhile or is not what `stamp`
// says.
absl::StatusOr<SourceIdentity> DigestFile(const std::string& path, const FileStamp& stamp,
                                          ThreadPool& pool);

// DigestFile, or what was remembered in the file `memo_path`, which is made or renewed where it may
// be; that it cannot be written is no error. `now_ns`: since the epoch.
absl::StatusOr<SourceIdentity> IdentifySource(const std::string& path, const FileStamp& stamp,
                                              const std::string& memo_path, int64_t now_ns,
                                              ThreadPool& pool);

}  // namespace withy::engine
