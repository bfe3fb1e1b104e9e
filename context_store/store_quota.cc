// Store: opens the records, and keeps them within quotas and the bound on the disk. Neighbour:
// store.cc has everything that calls do.
#include <filesystem>
#include <utility>

#include "base/status.h"
#include "context_store/records/record_encryption.h"
#include "context_store/store.h"

namespace withy::context_store {

absl::Status Store::OpenRecords() {
  const StoreOptions& o = options_;
  WITHY_ASSIGN_OR_RETURN(db_, RecordDb::Open(o.db));
  KeyFile key = o.key;
  if (key.path.empty())
    key.path = (std::filesystem::path(o.db.path).parent_path() / kMasterKeyName).string();
  WITHY_ASSIGN_OR_RETURN(keys_, ContextKeys::Open(*db_, std::move(key)));
  db_->UseKeys(*keys_);
  WITHY_RETURN_IF_ERROR(EncryptRecords(*db_, *keys_));
  WITHY_ASSIGN_OR_RETURN(apps_, AppRegistry::Load(*db_, clock_));
  WITHY_ASSIGN_OR_RETURN(contexts_, ContextRecords::Load(*db_, *keys_, clock_, o.limits, o.former));
  backups_ = std::make_unique<Backups>(*db_, *keys_, clock_);
  MeasureRecords();
  return absl::OkStatus();
}

absl::Status Store::CheckQuotas(std::string_view app_id, std::string_view context_id) const {
  absl::Status room = contexts_->CheckQuotas(app_id, context_id);
  if (room.ok()) room = CheckDisk();
  if (!room.ok()) refused_by_quota_.Add();
  return room;
}

absl::Status Store::CheckDisk() const {
  const uint64_t bytes = record_bytes_;
  if (bytes < options_.disk_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the conversations of all apps take ", bytes, " bytes on disk; the limit is ",
      options_.disk_bytes, " (store.disk_bytes): delete contexts, or raise the limit"));
}

bool Store::OverDiskBound() const {
  return record_bytes_ + kv_->Stats().segments.disk_bytes >= options_.disk_bytes;
}

void Store::MeasureRecords() {
  record_bytes_ = db_->DiskBytes();
  record_bytes_gauge_.Set(record_bytes_);
}

absl::StatusOr<ContextSummary> Store::CreateContext(std::string_view app_id, NewContext context) {
  auto created = contexts_->Create(app_id, std::move(context), CheckDisk());
  if (absl::IsResourceExhausted(created.status())) refused_by_quota_.Add();
  MeasureRecords();
  return created;
}

absl::StatusOr<std::string> Store::FindResult(std::string_view app_id, std::string_view request_id,
                                              std::string_view digest) const {
  auto result = contexts_->FindResult(app_id, request_id, digest);
  // Without a result a call follows, which adds one.
  if (absl::IsNotFound(result.status())) {
    if (absl::Status room = CheckDisk(); !room.ok()) result = std::move(room);
  }
  if (absl::IsResourceExhausted(result.status())) refused_by_quota_.Add();
  return result;
}

}  // namespace withy::context_store
