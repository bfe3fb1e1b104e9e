#include "context_store/records/backups.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/status.h"
#include "context_store/disk/kv_index.h"

namespace withy::context_store {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLongestNanos = 3600 * kNanosPerSecond;

void RemoveAll(const std::string& directory) {
  std::error_code ignored;
  fs::remove_all(directory, ignored);
}

}  // namespace

// Beside the database, so that its tables can be linked.
Backups::Backups(const RecordDb& db, const ContextKeys& keys, const Clock& clock)
    : db_(db),
      keys_(keys),
      clock_(clock),
      directory_((fs::path(db.path()).parent_path() / "backups").string()) {
  RemoveAll(directory_);
}

std::string Backups::DirectoryOf(std::string_view id) const {
  return absl::StrCat(directory_, "/", ToAbsl(id));
}

absl::Status Backups::Enter(const std::string& id) {
  const int64_t now = clock_.SteadyNanos();
  std::vector<std::string> old;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [begun_id, begun] : begun_) {
      if (now - begun >= kLongestNanos) old.push_back(begun_id);
    }
    for (const std::string& one : old) begun_.erase(one);
    if (begun_.size() < kMaxBackups) {
      begun_.emplace(id, now);
    } else {
      status = absl::ResourceExhaustedError(
          absl::StrCat(kMaxBackups, " backups are under way, which is the limit: wait for one"));
    }
  }
  for (const std::string& one : old) RemoveAll(DirectoryOf(one));
  return status;
}

absl::Status Backups::Make(bool with_master_key, Backup* backup) {
  std::error_code error;
  fs::create_directories(backup->directory, error);
  if (error) return absl::ErrnoToStatus(error.value(), "create " + backup->directory);
  // No rotation between the copy of the records and that of their key.
  const ContextKeys::Writing no_rotation(keys_);
  backup->master_key_id = keys_.master_key_id();
  WITHY_RETURN_IF_ERROR(db_.Copy(backup->directory + "/records", kKvIndexPrefix));
  if (!with_master_key) return absl::OkStatus();
  const std::string& from = keys_.file().path;
  fs::copy_file(from, fs::path(backup->directory) / kMasterKeyName, error);
  if (!error) return absl::OkStatus();
  return absl::ErrnoToStatus(error.value(), absl::StrCat("copy ", from, " to ", backup->directory));
}

absl::StatusOr<Backup> Backups::Begin(bool with_master_key) {
  Backup backup;
  backup.id = NewId("backup");
  backup.directory = DirectoryOf(backup.id);
  WITHY_RETURN_IF_ERROR(Enter(backup.id));
  const absl::Status made = Make(with_master_key, &backup);
  if (made.ok()) return backup;
  (void)End(backup.id);
  return made;
}

absl::Status Backups::End(std::string_view id) {
  {
    absl::MutexLock lock(&mutex_);
    const auto found = begun_.find(id);
    if (found == begun_.end()) {
      return absl::NotFoundError(absl::StrCat("no backup ", PrintableKey(id), " is under way"));
    }
    begun_.erase(found);
  }
  RemoveAll(DirectoryOf(id));
  return absl::OkStatus();
}

}  // namespace withy::context_store
