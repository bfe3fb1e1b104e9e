// Copies of the records that wait beside the database until somebody has taken them away.
// Neighbours: record_db.h makes the copy, cli/backup_files.h takes it away.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "context_store/records/context_keys.h"
#include "context_store/records/record_db.h"

namespace withy::context_store {

inline constexpr size_t kMaxBackups = 4;

struct Backup {
  std::string id;
  std::string directory;      // has records/ and, if asked for, master.key
  std::string master_key_id;  // of the key that opens it
};

// Thread-safe. Methods block on the disk. The arguments of the constructor are borrowed.
class Backups {
 public:
  // Removes what earlier runs have left.
  Backups(const RecordDb& db, const ContextKeys& keys, const Clock& clock);

  // Makes a consistent copy of the records, without KV, which the caller copies away and then ends.
  // Calls go on meanwhile. A copy that nobody ends is removed by a Begin an hour later. Errors:
  // RESOURCE_EXHAUSTED (the disk, or kMaxBackups are under way), UNAVAILABLE.
  absl::StatusOr<Backup> Begin(bool with_master_key);
  // Removes the copy. Errors: NOT_FOUND.
  absl::Status End(std::string_view id);

 private:
  absl::Status Enter(const std::string& id);
  absl::Status Make(bool with_master_key, Backup* backup);
  std::string DirectoryOf(std::string_view id) const;

  const RecordDb& db_;
  const ContextKeys& keys_;
  const Clock& clock_;
  const std::string directory_;
  absl::Mutex mutex_;
  std::map<std::string, int64_t, std::less<>> begun_ ABSL_GUARDED_BY(mutex_);  // steady times
};

}  // namespace withy::context_store
