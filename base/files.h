// Checks before long work, so that its result can be written, and file digests and atomic writes.
// Neighbours: offline/ and bench/ call CheckOutput first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace withy {

// Checks that the file `path` can be written; creates nothing. `inputs` are files that will be read
// before that (empty names are skipped). Errors, naming `path`: NOT_FOUND (no such directory),
// PERMISSION_DENIED, INVALID_ARGUMENT (it is a directory, or the same file as one of `inputs`).
absl::Status CheckOutput(const std::string& path, const std::vector<std::string>& inputs);

// A digest of the file's content: 16 hexadecimal digits. Errors: NOT_FOUND naming the path.
absl::StatusOr<std::string> FileDigest(const std::string& path);

// The content of a regular file of at most `most_bytes`. Waits for no pipe. Errors, naming the
// path: those of open(2) and read(2), FAILED_PRECONDITION (no regular file), RESOURCE_EXHAUSTED
// (larger).
absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t most_bytes);

// As ReadRegularFile, of any file: a pipe is waited for.
absl::StatusOr<std::string> ReadFile(const std::string& path, size_t most_bytes);

// Replaces the content of `path` by `bytes` atomically: writes and syncs PATH.partial, renames it
// to `path` and syncs the directory. After a crash or a loss of power `path` has its old or its new
// content. On an error `path` is unchanged and PATH.partial is removed. One writer at a time.
// Errors: RESOURCE_EXHAUSTED (the disk is full or the quota used up), others of the file system;
// all name the path.
absl::Status WriteAtomically(const std::string& path, std::string_view bytes);

// Syncs the directory that `path` lies in: files created, renamed or removed there stay so after a
// loss of power. Errors: those of open(2) and fsync(2), naming the path.
absl::Status SyncDirectoryOf(const std::string& path);

}  // namespace withy
