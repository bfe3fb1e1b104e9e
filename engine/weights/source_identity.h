// Identifies the GGUF, or all parts of a split one, that a packed file was made from by a digest of
// every byte, and avoids reading the whole file at each start. Neighbours: cache.cc decides whether
// to pack again, packed_format.h stores the identity.
//
// Names, sizes, modification times and metadata do not identify a file: rsync -t, cp -p, ostree and
// image layers preserve them. A digest is stored with the file's stamp and reused while the stamp
// and a sample of pages are unchanged. That is safe because no program can set a file's change time
// (ctime): every write, rename, link, chmod or utimes moves it. Where that does not hold (see
// ChangeTimeIsSafe), the whole file is read at every start.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cpu/thread_pool.h"
#include "engine/gguf/reader.h"
#include "engine/weights/packed_format.h"

namespace withy::engine {

// File attributes available without reading the file.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  int64_t btime_ns = 0;      // birth time; 0 if the file system has none
  uint64_t file_system = 0;  // f_type of statfs(2)
  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// Follows links. Errors: those of stat(2), naming the path; INVALID_ARGUMENT if it is not a regular
// file.
absl::StatusOr<FileStamp> StampOf(const std::string& path);

// Whether equal stamps imply equal bytes. True if the file system gives each file its own inode and
// stamps changes with this machine's clock (ext4, XFS, Btrfs, F2FS, bcachefs, tmpfs), and the
// change time was not written into an image (those are whole seconds). False for FAT and exFAT
// (their ctime is the mtime), images such as squashfs and EROFS (the image's author sets it),
// overlays (a lower layer may be an image), network and FUSE file systems. Pure.
bool ChangeTimeIsSafe(const FileStamp& stamp);

// Whether a digest taken at `now_ns` (since the Unix epoch) may be stored: the file had not changed
// for a minute. A later write within the same tick of the kernel's clock, or through a mapping with
// already dirty pages, would not move the change time. Pure.
bool HasSettled(const FileStamp& stamp, int64_t now_ns);

// Digests every byte. Changing a byte changes the digest; unrelated files collide with probability
// 2^-64 or less. Does not resist forgery. Reads through `pool`. Errors: of the file system, naming
// the path; ABORTED if the file changed meanwhile or does not match `stamp`.
absl::StatusOr<SourceIdentity> DigestFile(const std::string& path, const FileStamp& stamp,
                                          ThreadPool& pool);

// A part of the GGUF as it was when it was stamped.
struct SourceFile {
  std::string path;
  FileStamp stamp;
  friend bool operator==(const SourceFile&, const SourceFile&) = default;
};

// Stamps each part. Errors: as StampOf.
absl::StatusOr<std::vector<SourceFile>> StampSources(std::span<const GgufPart> parts);

// The identity of these files, in their order; of one file it is DigestFile()'s. Takes digests that
// are stored in the file `memo_path` if they are still valid, else digests the file, and updates
// `memo_path` if allowed. Failure to write it is not an error. `now_ns`: since the Unix epoch.
// Errors: as DigestFile.
absl::StatusOr<SourceIdentity> IdentifySources(std::span<const SourceFile> files,
                                               const std::string& memo_path, int64_t now_ns,
                                               ThreadPool& pool);

// Whether RememberChecked said of the file with this stamp that it is whole, and its change time
// proves that it was not written to since.
bool IsRememberedWhole(const std::string& memo_path, const FileStamp& stamp);
// Remembers that every byte of the file was checked, where a later write would move its change time
// (ChangeTimeIsSafe, HasSettled). Failure to write it is not an error.
void RememberWhole(const std::string& memo_path, const FileStamp& stamp, int64_t now_ns);

}  // namespace withy::engine
