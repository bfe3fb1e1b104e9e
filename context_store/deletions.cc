#include "context_store/deletions.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "base/status.h"

namespace withy::context_store {

Deletions::Deletions(LeaseBook& book, Records& records, KvStorage* disk, IdleKeeper& idle,
                     StoreMetrics& metrics, CleanUp::Pauses pauses)
    : book_(book),
      records_(records),
      disk_(disk),
      idle_(idle),
      metrics_(metrics),
      clean_up_([this] { return CleanUpLeft(); }, pauses) {}

absl::Status Deletions::DeleteContext(std::string_view app_id, std::string_view context_id) {
  absl::Status found = records_.contexts().Find(app_id, context_id).status();
  if (absl::IsNotFound(found)) return found;
  {
    absl::MutexLock lock(&book_.mutex());
    WITHY_RETURN_IF_ERROR(book_.table().LockContext(context_id));
  }
  const std::vector<std::string> locked = {std::string(context_id)};
  size_t deleted = 0;
  absl::Status status = DeleteAll(app_id, locked, &deleted);
  Unlock(locked, deleted);
  return status;
}

absl::Status Deletions::RemoveApp(std::string_view app_id) {
  ContextRecords& contexts = records_.contexts();
  if (!records_.apps().Has(app_id))
    return absl::NotFoundError(absl::StrCat("no app ", PrintableKey(app_id)));
  WITHY_RETURN_IF_ERROR(contexts.BlockCreation(app_id));
  absl::Status status;
  std::vector<std::string> locked;
  {
    absl::MutexLock lock(&book_.mutex());
    for (std::string& context_id : contexts.ContextsOf(app_id)) {
      status = book_.table().LockContext(context_id);
      if (!status.ok()) break;
      locked.push_back(std::move(context_id));
    }
  }
  size_t deleted = 0;
  if (status.ok()) status = DeleteAll(app_id, locked, &deleted);
  if (status.ok()) status = contexts.DeleteResultsOf(app_id);
  if (status.ok()) ExpungeOrLater("");
  if (status.ok()) status = records_.apps().Remove(app_id);
  Unlock(locked, deleted);
  contexts.UnblockCreation(app_id);
  return status;
}

absl::Status Deletions::DeleteAll(std::string_view app_id,
                                  const std::vector<std::string>& context_ids, size_t* deleted) {
  for (const std::string& context_id : context_ids) {
    WITHY_RETURN_IF_ERROR(records_.contexts().Delete(app_id, context_id));
    ExpungeOrLater(context_id);
    ++*deleted;
  }
  return absl::OkStatus();
}

void Deletions::Unlock(const std::vector<std::string>& context_ids, size_t deleted) {
  {
    absl::MutexLock lock(&book_.mutex());
    for (size_t i = 0; i < context_ids.size(); ++i) {
      book_.table().UnlockContext(context_ids[i], /*erase=*/i < deleted);
    }
    book_.RecordGauges();
  }
  book_.AdvanceWaiting();
  idle_.ReleaseCopies();
}

absl::StatusOr<std::string> Deletions::RotateMasterKey() {
  WITHY_ASSIGN_OR_RETURN(std::string id, records_.keys().Rotate());
  ExpungeLeft();
  return id;
}

void Deletions::ExpungeLeft() {
  if (records_.keys().expunge_left()) ExpungeOrLater("");
}

absl::Status Deletions::Expunge(const std::string& context_id) {
  if (context_id.empty()) return records_.keys().Expunge();
  std::set<StoredCopy> lost;
  const absl::Status expunged =
      disk_ != nullptr ? disk_->Delete(context_id, &lost) : records_.keys().Expunge();
  idle_.ForgetCopies(lost);
  // RocksDB would give the space back at some later compaction only.
  if (expunged.ok() && !records_.CheckDisk().ok()) {
    WITHY_RETURN_IF_ERROR(records_.db().Rewrite(SegmentPrefix(context_id)));
  }
  records_.Measure();
  return expunged;
}

void Deletions::ExpungeOrLater(std::string_view context_id) {
  const std::string id(context_id);
  const absl::Status expunged = Expunge(id);
  if (expunged.ok()) return;
  metrics_.failed_cleanups.Add();
  spdlog::warn("{} is deleted; freeing what it had is tried again: {}",
               id.empty() ? "a key" : "context " + id, std::string(expunged.message()));
  {
    absl::MutexLock lock(&left_mutex_);
    left_.insert(id);
    metrics_.cleanups_left.Set(static_cast<int64_t>(left_.size()));
  }
  clean_up_.Begin();
}

absl::Status Deletions::CleanUpLeft() {
  std::set<std::string> left;
  {
    absl::MutexLock lock(&left_mutex_);
    left = left_;
  }
  absl::Status status;
  for (const std::string& id : left) {
    status = Expunge(id);
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
