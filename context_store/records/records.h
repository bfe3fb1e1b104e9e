// All that is durable of apps and conversations: opens the database and what stands on it, and
// keeps the records within quotas and the bound on the disk. Neighbours: context_records.h,
// app_registry.h and context_keys.h are its parts; deletions.h deletes from them.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "context_store/records/app_registry.h"
#include "context_store/records/backups.h"
#include "context_store/records/context_keys.h"
#include "context_store/records/context_records.h"
#include "context_store/records/record_db.h"
#include "telemetry/recorder.h"

namespace withy::context_store {

struct RecordsOptions {
  RecordDbOptions db;
  ContextLimits limits;
  LegacyResults former;
  // Master key of what is encrypted at rest. Empty path: master.key beside the database.
  KeyFile key;
  // Bytes of records and KV on disk together. If the records alone reach it, calls and contexts are
  // refused.
  uint64_t disk_bytes = UINT64_MAX;
};

// Thread-safe. `clock` and `recorder` are borrowed.
class Records {
 public:
  // Blocks. Errors: as RecordDb::Open, ContextKeys::Open and EncryptRecords.
  static absl::StatusOr<std::unique_ptr<Records>> Open(RecordsOptions options, const Clock& clock,
                                                       telemetry::Recorder& recorder);

  RecordDb& db() const { return *db_; }
  ContextKeys& keys() const { return *keys_; }
  AppRegistry& apps() const { return *apps_; }
  ContextRecords& contexts() const { return *contexts_; }
  Backups& backups() const { return *backups_; }

  // As ContextRecords::Create and FindResult. Errors: also RESOURCE_EXHAUSTED (`disk_bytes`).
  absl::StatusOr<ContextSummary> Create(std::string_view app_id, NewContext context);
  absl::StatusOr<std::string> FindResult(std::string_view app_id, std::string_view request_id,
                                         std::string_view digest) const;
  // RESOURCE_EXHAUSTED if the records have reached `disk_bytes`.
  absl::Status CheckDisk() const;
  // Also if a quota of the app, or of the context unless that is empty, is reached.
  absl::Status CheckQuotas(std::string_view app_id, std::string_view context_id) const;
  // Whether records and so many bytes of KV together have reached `disk_bytes`: KV has to give way.
  bool OverBound(uint64_t kv_bytes) const { return bytes_ + kv_bytes >= options_.disk_bytes; }
  // Looks at the records' size on disk again. Blocks.
  void Measure();

  bool Knows(std::string_view context_id) const { return !contexts_->AppOf(context_id).empty(); }
  int64_t LastUse(std::string_view context_id) const;  // Unix time in ns; 0: no such context

 private:
  Records(RecordsOptions options, telemetry::Recorder& recorder);

  const RecordsOptions options_;
  telemetry::Counter& refused_by_quota_;
  telemetry::Gauge& bytes_gauge_;
  std::unique_ptr<RecordDb> db_;
  std::unique_ptr<ContextKeys> keys_;
  std::unique_ptr<AppRegistry> apps_;
  std::unique_ptr<ContextRecords> contexts_;
  std::unique_ptr<Backups> backups_;
  std::atomic<uint64_t> bytes_{0};  // on disk
};

}  // namespace withy::context_store
