// Store: deletes contexts and apps, and replaces the master key. What is deleted is deleted once
// the batch that says so is on the disk, and the caller is told so. What follows frees space and
// takes keys out of the database's files; on a full disk it fails, is counted, and is tried again.
#include <spdlog/spdlog.h>

#include <set>
#include <utility>
#include <vector>

#include "base/status.h"
#include "context_store/store.h"

namespace withy::context_store {

absl::Status Store::DeleteContext(std::string_view app_id, std::string_view context_id) {
  absl::Status found = contexts_->Find(app_id, context_id).status();
  if (absl::IsNotFound(found)) return found;
  {
    absl::MutexLock lock(&mutex_);
    WITHY_RETURN_IF_ERROR(table_->LockContext(context_id));
  }
  const absl::Status deleted = contexts_->Delete(app_id, context_id);
  if (deleted.ok()) ExpungeOrLater(context_id);
  {
    absl::MutexLock lock(&mutex_);
    table_->UnlockContext(context_id, deleted.ok());
    RecordGauges();
  }
  AdvanceWaiting();
  ReleaseCopies();
  return deleted;
}

absl::Status Store::RemoveApp(std::string_view app_id) {
  if (!apps_->Has(app_id))
    return absl::NotFoundError(absl::StrCat("no app ", PrintableKey(app_id)));
  WITHY_RETURN_IF_ERROR(contexts_->BlockCreation(app_id));
  absl::Status status;
  std::vector<std::string> locked;
  {
    absl::MutexLock lock(&mutex_);
    for (std::string& context_id : contexts_->ContextsOf(app_id)) {
      status = table_->LockContext(context_id);
      if (!status.ok()) break;
      locked.push_back(std::move(context_id));
    }
  }
  std::vector<bool> deleted(locked.size(), false);
  for (size_t i = 0; i < locked.size() && status.ok(); ++i) {
    status = contexts_->Delete(app_id, locked[i]);
    deleted[i] = status.ok();
    if (status.ok()) ExpungeOrLater(locked[i]);
  }
  if (status.ok()) status = contexts_->DeleteResultsOf(app_id);
  if (status.ok()) ExpungeOrLater("");
  if (status.ok()) status = apps_->Remove(app_id);
  {
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < locked.size(); ++i) table_->UnlockContext(locked[i], deleted[i]);
    RecordGauges();
  }
  AdvanceWaiting();
  ReleaseCopies();
  contexts_->UnblockCreation(app_id);
  return status;
}

absl::StatusOr<std::string> Store::RotateMasterKey() {
  WITHY_ASSIGN_OR_RETURN(std::string id, keys_->Rotate());
  if (keys_->expunge_left()) ExpungeOrLater("");
  return id;
}

absl::Status Store::ExpungeContext(const std::string& context_id) {
  if (context_id.empty()) return keys_->Expunge();
  std::set<StoredCopy> lost;
  const absl::Status expunged = kv_ != nullptr ? kv_->Delete(context_id, &lost) : keys_->Expunge();
  ForgetCopies(lost);
  // RocksDB would give the space back at some later compaction only.
  if (expunged.ok() && !CheckDisk().ok()) {
    WITHY_RETURN_IF_ERROR(db_->Rewrite(SegmentPrefix(context_id)));
  }
  MeasureRecords();
  return expunged;
}

void Store::ExpungeOrLater(std::string_view context_id) {
  const std::string id(context_id);
  const absl::Status expunged = ExpungeContext(id);
  if (expunged.ok()) return;
  metrics_.failed_cleanups.Add();
  spdlog::warn("{} is deleted; freeing what it had is tried again: {}",
               id.empty() ? "a key" : "context " + id, std::string(expunged.message()));
  {
    absl::MutexLock lock(&left_mutex_);
    left_.insert(id);
    metrics_.cleanups_left.Set(static_cast<int64_t>(left_.size()));
  }
  clean_up_->Begin();
}

absl::Status Store::CleanUpDeleted() {
  std::set<std::string> left;
  {
    absl::MutexLock lock(&left_mutex_);
    left = left_;
  }
  absl::Status status;
  for (const std::string& id : left) {
    status = ExpungeContext(id);
    if (!status.ok()) {
      metrics_.failed_cleanups.Add();
      break;
    }
    absl::MutexLock lock(&left_mutex_);
    left_.erase(id);
    metrics_.cleanups_left.Set(static_cast<int64_t>(left_.size()));
  }
  if (status.ok() && !left.empty()) {
    spdlog::info("what {} deletions had left behind is freed", left.size());
  }
  return status;
}

}  // namespace withy::context_store
