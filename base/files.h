// What a program looks at before hours of work, so that nothing is lost at its end, and by what it
// knows a file again. Neighbours: offline/ and bench/ call it first.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace withy {

// Whether the file `path` can be written; makes nothing. `inputs`: files that are read until then
// (empty names are passed over). Errors, naming `path`: NOT_FOUND (its directory is not there),
// PERMISSION_DENIED, INVALID_ARGUMENT (it is a directory, or one of `inputs` under any name).
absl::Status CheckOutput(const std::string& path, const std::vector<std::string>& inputs);

// 16 hex digits that change when a byte of the file does. Errors: NOT_FOUND naming the path.
absl::StatusOr<std::string> FileDigest(const std::string& path);

// Makes `bytes` the content of `path`: written to PATH.partial, synced, renamed over `path`, the
// directory synced, so that after a crash or a loss of power `path` is as before or as it should
// be. On an error `path` is as before and PATH.partial is gone. One writer at a time. Errors:
// RESOURCE_EXHAUSTED (the disk is full or the quota used up), others from the disk; all name the
// path.
absl::Status WriteWhole(const std::string& path, std::string_view bytes);

}  // namespace withy
