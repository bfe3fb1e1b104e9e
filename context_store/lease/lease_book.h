// The lease table with its lock, the listeners of open leases, and what of the arena stays locked
// into memory for them. Whatever changes the table does it under this lock and passes the table's
// effects through Apply; no disk access happens under it. Neighbours: lease_desk.h serves calls,
// context_load.h brings a context back, idle/ works on contexts that no call uses.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "context_store/arena/arena.h"
#include "context_store/arena/arena_directory.h"
#include "context_store/lease/lease_listener.h"
#include "context_store/lease/lease_table.h"
#include "context_store/store_metrics.h"

namespace withy::context_store {

class ContextLoad;

struct OpenLease {
  LeaseSpec spec;
  // Shared with the stream's reactor, which may live longer or shorter than the store's use of it.
  std::shared_ptr<LeaseListener> listener;
  int64_t opened_ns = 0;
  SegmentRange replaces = {};  // set by LeaseDesk::Load
  // What is being read for it; null: nothing. Shared with the reader's functions.
  std::shared_ptr<ContextLoad> load = nullptr;
};

// What is to be told once the lock is released.
struct LeaseNotices {
  std::vector<std::shared_ptr<LeaseListener>> granted;
  std::vector<std::pair<std::shared_ptr<LeaseListener>, LateClaim>> claims;

  void Tell();
};

// Lives as long as the store. Thread-safe; methods that say so are for the holder of mutex().
// `arena` and `metrics` are borrowed.
class LeaseBook {
 public:
  using Listeners = std::vector<std::shared_ptr<LeaseListener>>;

  LeaseBook(const LeaseLimits& limits, uint64_t first_epoch, Arena& arena, StoreMetrics& metrics);
  LeaseBook(const LeaseBook&) = delete;
  LeaseBook& operator=(const LeaseBook&) = delete;

  absl::Mutex& mutex() const ABSL_LOCK_RETURNED(mutex_) { return mutex_; }
  LeaseTable& table() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return table_; }
  const LeaseTable& table() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return table_; }
  ArenaDirectory& directory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return directory_; }
  Arena& arena() const { return arena_; }

  Geometry geometry() const;
  uint64_t NewChunkBytes() const;  // of a slot of 8 bits

  void Add(LeaseId lease, OpenLease open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // nullptr: the lease is over.
  OpenLease* Find(LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  const std::map<LeaseId, OpenLease>& leases() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return leases_;
  }
  // Errors: ABORTED (the lease is over).
  absl::StatusOr<OpenLease> Get(LeaseId lease) const;
  // The lease is over.
  void Forget(LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Forgets these leases and returns the listeners to notify.
  Listeners TakeEnded(const std::vector<LeaseId>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The lease's call writes these slots from now on: they get fresh headers and stay in memory.
  void Stamp(LeaseId lease, uint64_t epoch, std::span<const ChunkSlot> chunks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The lease's call uses these slots: they stay in memory until the lease is forgotten.
  void KeepInMemory(LeaseId lease, std::span<const KvSlot> slots)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Effects of an operation of the table. The caller tells the notices once it has no lock.
  LeaseNotices Apply(Effects effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Work has ended that kept room which leases may wait for.
  void AdvanceWaiting() ABSL_LOCKS_EXCLUDED(mutex_);
  void RecordGauges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Demotions and loads that write to slots outside the lock. The arena is not emptied for another
  // model before they have ended, which AwaitWriters waits for.
  void BeginWriting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { ++writers_; }
  void EndWriting() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { --writers_; }
  void AwaitWriters() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

 private:
  Arena& arena_;
  StoreMetrics& metrics_;
  mutable absl::Mutex mutex_;
  ArenaDirectory directory_ ABSL_GUARDED_BY(mutex_);
  LeaseTable table_ ABSL_GUARDED_BY(mutex_);
  std::map<LeaseId, OpenLease> leases_ ABSL_GUARDED_BY(mutex_);
  int writers_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace withy::context_store
