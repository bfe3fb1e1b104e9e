#include "context_store/records/records.h"

#include <filesystem>
#include <utility>

#include "base/status.h"
#include "context_store/records/record_encryption.h"
#include "rpc/error_reason.h"

namespace withy::context_store {

Records::Records(RecordsOptions options, telemetry::Recorder& recorder)
    : options_(std::move(options)),
      refused_by_quota_(recorder.counter(
          {"withy_store_quota_refusals_total", "Calls and contexts that a quota refused."})),
      bytes_gauge_(recorder.gauge(
          {"withy_store_record_bytes", "Conversations on disk.", telemetry::Unit::kBytes})) {}

absl::StatusOr<std::unique_ptr<Records>> Records::Open(RecordsOptions options, const Clock& clock,
                                                       telemetry::Recorder& recorder) {
  std::unique_ptr<Records> records(new Records(std::move(options), recorder));
  const RecordsOptions& o = records->options_;
  WITHY_ASSIGN_OR_RETURN(records->db_, RecordDb::Open(o.db));
  RecordDb& db = *records->db_;
  KeyFile key = o.key;
  if (key.path.empty()) {
    key.path = (std::filesystem::path(o.db.path).parent_path() / kMasterKeyName).string();
  }
  WITHY_ASSIGN_OR_RETURN(records->keys_, ContextKeys::Open(db, std::move(key)));
  ContextKeys& keys = *records->keys_;
  db.UseKeys(keys);
  WITHY_RETURN_IF_ERROR(EncryptRecords(db, keys));
  WITHY_ASSIGN_OR_RETURN(records->apps_, AppRegistry::Load(db, clock));
  WITHY_ASSIGN_OR_RETURN(records->contexts_,
                         ContextRecords::Load(db, keys, clock, o.limits, o.former));
  records->backups_ = std::make_unique<Backups>(db, keys, clock);
  records->Measure();
  return records;
}

absl::Status Records::CheckQuotas(std::string_view app_id, std::string_view context_id) const {
  absl::Status room = contexts_->CheckQuotas(app_id, context_id);
  if (room.ok()) room = CheckDisk();
  if (!room.ok()) refused_by_quota_.Add();
  return room;
}

absl::Status Records::CheckDisk() const {
  const uint64_t bytes = bytes_;
  if (bytes < options_.disk_bytes) return absl::OkStatus();
  return WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          "the conversations of all apps take ", bytes, " bytes on disk; the limit is ",
          options_.disk_bytes, " (store.disk_bytes): delete contexts, or raise the limit")),
      "QUOTA_REACHED");
}

void Records::Measure() {
  bytes_ = db_->DiskBytes();
  bytes_gauge_.Set(bytes_);
}

absl::StatusOr<ContextSummary> Records::Create(std::string_view app_id, NewContext context) {
  auto created = contexts_->Create(app_id, std::move(context), CheckDisk());
  if (absl::IsResourceExhausted(created.status())) refused_by_quota_.Add();
  Measure();
  return created;
}

absl::StatusOr<std::string> Records::FindResult(std::string_view app_id,
                                                std::string_view request_id,
                                                std::string_view digest) const {
  auto result = contexts_->FindResult(app_id, request_id, digest);
  // Without a result a call follows, which adds one.
  if (absl::IsNotFound(result.status())) {
    if (absl::Status room = CheckDisk(); !room.ok()) result = std::move(room);
  }
  if (absl::IsResourceExhausted(result.status())) refused_by_quota_.Add();
  return result;
}

int64_t Records::LastUse(std::string_view context_id) const {
  const auto summary = contexts_->Find(contexts_->AppOf(context_id), context_id);
  return summary.ok() ? summary->record.last_used_unix_ns : 0;
}

}  // namespace withy::context_store
