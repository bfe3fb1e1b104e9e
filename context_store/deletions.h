// Deletes contexts and apps, and replaces the master key. What is deleted is deleted once the batch
// that says so is on the disk, and the caller is told so. What follows frees space and takes keys
// out of the database's files; on a full disk it fails, is counted, and is tried again.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "context_store/disk/kv_storage.h"
#include "context_store/idle/idle_keeper.h"
#include "context_store/lease/lease_book.h"
#include "context_store/records/clean_up.h"
#include "context_store/records/records.h"

namespace withy::context_store {

// Thread-safe. Methods block. What the constructor is given is borrowed; `disk` is null without KV
// on disk.
class Deletions {
 public:
  Deletions(LeaseBook& book, Records& records, KvStorage* disk, IdleKeeper& idle,
            StoreMetrics& metrics, CleanUp::Pauses pauses);

  // OK: it is deleted, durably; its space and its keys in the database's files may be freed later.
  // Errors: NOT_FOUND; ABORTED while a context is leased; those of a write.
  absl::Status DeleteContext(std::string_view app_id, std::string_view context_id);
  absl::Status RemoveApp(std::string_view app_id);
  // As ContextKeys::Rotate.
  absl::StatusOr<std::string> RotateMasterKey();
  // Destroyed keys leave the database's files, if an earlier run has left any there.
  void ExpungeLeft();

 private:
  // These contexts of the app, which nobody may lease meanwhile; `*deleted` of them, from the first
  // on, are deleted.
  absl::Status DeleteAll(std::string_view app_id, const std::vector<std::string>& context_ids,
                         size_t* deleted);
  // Ends the locks on the contexts; the first `deleted` have no KV any more.
  void Unlock(const std::vector<std::string>& context_ids, size_t deleted);
  // After `context_id` was deleted: its keys leave the files, and where the bound was reached, so
  // do its records. Empty: keys alone.
  absl::Status Expunge(const std::string& context_id);
  // The same; what fails is tried again by clean_up_.
  void ExpungeOrLater(std::string_view context_id);
  absl::Status CleanUpLeft();

  LeaseBook& book_;
  Records& records_;
  KvStorage* const disk_;
  IdleKeeper& idle_;
  StoreMetrics& metrics_;
  absl::Mutex left_mutex_;
  std::set<std::string> left_ ABSL_GUARDED_BY(left_mutex_);  // of contexts; empty: of keys
  CleanUp clean_up_;                                         // last, as its thread uses the others
};

}  // namespace withy::context_store
