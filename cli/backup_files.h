// A backup on disk: a directory with the records, the master key, INFO and SHA256SUMS, which
// `sha256sum -c` checks, too. Copies, checks and restores it. Neighbours: store.cc has the
// commands; context_store makes the copy of the records that a backup is made from. Knows no gRPC.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace withy::cli {

struct BackupInfo {
  std::string master_key_id;
  int64_t created_unix_s = 0;
  uint64_t files = 0;
  uint64_t bytes = 0;
  bool has_master_key = false;
};

// Copies the directory `from`, as BeginBackup made it, to `to`, which must be empty or not exist,
// and syncs it. SHA256SUMS is written last, so a backup without it is not complete. Sets the number
// of files and bytes in `*info`. Errors: ALREADY_EXISTS (`to` is not empty), PERMISSION_DENIED
// (`from` cannot be read), RESOURCE_EXHAUSTED, others of the file system; all name the path.
absl::Status WriteBackup(const std::string& from, const std::string& to, BackupInfo* info);

// Checks every file of a backup. Errors: NOT_FOUND (no backup there, or not a complete one),
// DATA_LOSS naming the file (missing or changed), UNIMPLEMENTED (made by a newer withy).
absl::StatusOr<BackupInfo> CheckBackup(const std::string& directory);

// Checks the backup, and puts records and master key into `state_dir`, with its owner. The records
// appear there at once, at the end. Errors: those of CheckBackup; FAILED_PRECONDITION (`state_dir`
// has records, or another master key: nothing was changed), RESOURCE_EXHAUSTED, others of the file
// system.
absl::StatusOr<BackupInfo> RestoreBackup(const std::string& directory,
                                         const std::string& state_dir);

}  // namespace withy::cli
