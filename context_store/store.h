// The store as one object, without gRPC: combines records, KV leases and the arena. One lock guards
// the lease table; no disk access happens under it. Neighbours: service.cc and lease_reactor.cc
// speak gRPC over it, side_socket.cc hands out the arena.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/arena_socket.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "context_store/app_registry.h"
#include "context_store/arena.h"
#include "context_store/context_records.h"
#include "context_store/kv_storage.h"
#include "context_store/lease_table.h"
#include "context_store/record_db.h"
#include "context_store/work_pool.h"
#include "telemetry/recorder.h"

namespace withy::context_store {

struct StoreOptions {
  RecordDbOptions db;
  ContextLimits limits;
  uint64_t arena_bytes = 256 << 20;
  uint32_t max_leases = 1024;
  uint32_t max_waiting_leases = 256;
  LegacyResults former;
  // Bytes that a context's KV may take after a call, as a share of its bytes at 8 bits. 100: chunks
  // stay at 8 bits.
  uint32_t kv_ratio_percent = 50;
  KvSegmentsOptions kv;  // empty directory: no KV on disk
  KeyFile key;           // master key of what is encrypted at rest
  UniqueFd kept_arena;   // arena that systemd kept from an earlier store process; may be invalid
};

// Receives notices about a lease on other threads, never under a lock of the store, and none after
// OnEnded. Neither call may block.
class LeaseListener {
 public:
  virtual ~LeaseListener() = default;
  // The lease had to wait and now holds its context: call Load().
  virtual void OnGranted() = 0;
  // The store ended the lease (its epoch is over, or its worker is dead).
  virtual void OnEnded(const absl::Status& status) = 0;
};

struct LeaseSpec {
  uint64_t epoch = 0;
  std::string app_id;      // empty: opened ahead for a stateless call that has not arrived
  std::string context_id;  // empty = stateless
  uint64_t call_id = 0;
  bool rebuild = false;  // see LeaseTable::Open
  RequestKey request = {};
};

struct LoadedContext {
  std::vector<std::string> segments;
  uint32_t left_out = 0;  // segments of the record that the call replaces
  std::vector<ResidentChunk> resident;
};

struct LeaseOutcome {
  std::vector<std::string> segments;  // appended
  std::vector<ChunkIdentity> chunks;  // the context's chunks after the call, from the first on
  uint32_t tokens = 0;
  std::optional<NewResult> result;
  std::optional<RequestKey> unfinished = {};
  uint32_t dropped = 0;  // as RecordCommit
};

struct StoreStats {
  uint64_t epoch = 0;
  bool attached = false;  // a worker has told its geometry
  SlotPool::Counts space;
  uint64_t largest_gap = 0;  // bytes
  uint32_t leases_open = 0;
  uint32_t leases_ahead = 0;  // of leases_open: opened ahead, their calls have not arrived
  uint32_t leases_waiting = 0;
  uint32_t waiting_limit = 0;
  uint64_t faults = 0;
};

// Thread-safe. Methods documented to block use the disk and must not run in a gRPC callback.
// `clock` and `recorder` are borrowed.
class Store {
 public:
  // Blocks. Errors: as RecordDb::Open and Arena::Create.
  static absl::StatusOr<std::unique_ptr<Store>> Open(StoreOptions options, const Clock& clock,
                                                     telemetry::Recorder& recorder);
  ~Store();

  AppRegistry& apps() { return *apps_; }
  ContextRecords& contexts() { return *contexts_; }
  const Arena& arena() const { return *arena_; }
  StoreStats Stats() const;
  ContextKv KvOf(std::string_view context_id) const;
  std::vector<ContextChunk> ChunksOf(std::string_view context_id) const;

  // See LeaseTable::NextUpgrade.
  struct Upgrade {
    std::string app_id;
    std::string context_id;
    uint32_t level_percent = 0;
  };
  std::optional<Upgrade> NextUpgrade() const;

  // Both block. Errors: NOT_FOUND; ABORTED while a context is leased; those of a write.
  absl::Status DeleteContext(std::string_view app_id, std::string_view context_id);
  absl::Status RemoveApp(std::string_view app_id);

  // A worker starts or restarts: see LeaseTable::Attach. Blocks. Also FAILED_PRECONDITION while a
  // worker of an earlier store process still has the arena mapped.
  absl::StatusOr<Attached> Attach(WorkerInstance worker, const Geometry& geometry);
  // Registers a process that is about to get the arena. Blocks. Errors: ABORTED (stale epoch).
  absl::StatusOr<ArenaOffer> ConnectWorker(WorkerInstance worker, uint64_t epoch, pid_t pid);
  // The worker's connection closed: it is dead. Blocks.
  void DisconnectWorker(WorkerInstance worker);

  // The methods below, except Abort and Break, are for the holder of the lease, one call at a time.
  // Abort and Break may be called at any time; they ignore a lease that is over or being committed.
  // Errors: see LeaseTable; NOT_FOUND and DATA_LOSS of the context.
  absl::StatusOr<LeaseOpening> OpenLease(const LeaseSpec& spec,
                                         std::shared_ptr<LeaseListener> listener);
  // The call of a lease that was opened ahead has arrived. Errors: ABORTED (the lease is over),
  // INVALID_ARGUMENT (it already has an app).
  absl::Status Begin(LeaseId lease, std::string app_id, uint64_t call_id);
  // Ends all leases that were opened ahead and refuses new ones, because the store is stopping.
  void EndLeasesAhead();
  // Reads the record and the resident chunks. Blocks.
  absl::StatusOr<LoadedContext> Load(LeaseId lease);
  absl::StatusOr<std::vector<ChunkSlot>> Claim(LeaseId lease, uint32_t first, uint32_t count);
  absl::Status Fault(LeaseId lease, uint32_t chunk, std::string_view reason);
  // On return the commit is durable and the lease is over; the lease is also over if the disk
  // failed (the record is then unchanged). Returns the context's revision. Blocks. Errors: those of
  // LeaseTable::BeginCommit (the lease continues: break it) and of ContextRecords::Commit (the
  // lease is over).
  absl::StatusOr<uint64_t> Commit(LeaseId lease, LeaseOutcome outcome);
  void Abort(LeaseId lease);
  void Break(LeaseId lease);

  // Waits until the work on idle contexts that earlier calls have caused is done. For tests.
  void AwaitTidy();

 private:
  struct OpenedLease {
    LeaseSpec spec;
    // Shared with the stream's reactor, which may live longer or shorter than the store's use of
    // it.
    std::shared_ptr<LeaseListener> listener;
    int64_t opened_ns = 0;
    SegmentRange replaces = {};  // set by Load
  };
  using Listeners = std::vector<std::shared_ptr<LeaseListener>>;

  Store(StoreOptions options, const Clock& clock, telemetry::Recorder& recorder);
  absl::Status LoadPreviousWorkers();
  bool PreviousWorkerLives(WorkerInstance attaching);
  absl::StatusOr<OpenedLease> Find(LeaseId lease) const;
  void EndLease(LeaseId lease, bool broken);
  // Work on a context that a call has left: stores its chunks in smaller formats, as far as the
  // ratio asks for (store_tidy.cc). On the thread of tidy_.
  void Tidy(const std::string& context_id);
  // Both end early if a call has come.
  void DemoteIdle(const std::string& context_id, const Geometry& geometry);
  void WriteIdle(const std::string& context_id, const Geometry& geometry);
  // Reads chunks of the lease's context into the arena.
  void LoadStored(LeaseId lease, const LeaseSpec& spec);
  void ReleaseCopies();
  // Apply the table's effects: remove ended leases and return the listeners to notify.
  Listeners TakeEnded(const std::vector<LeaseId>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Listeners FindGranted(const std::vector<LeaseId>& granted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void RecordGauges() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const StoreOptions options_;
  const Clock& clock_;
  telemetry::Recorder& recorder_;
  const telemetry::NameId claim_span_;
  telemetry::Counter& commits_;
  telemetry::Counter& broken_;
  telemetry::Counter& faults_;
  telemetry::Counter& evicted_;
  telemetry::Counter& refused_claims_;
  telemetry::Counter& demoted_;
  telemetry::Counter& written_;
  telemetry::Counter& read_;
  telemetry::Gauge& space_free_;
  telemetry::Gauge& space_used_;
  telemetry::Gauge& space_quarantined_;
  telemetry::Gauge& leases_gauge_;

  std::unique_ptr<RecordDb> db_;
  std::unique_ptr<AppRegistry> apps_;
  std::unique_ptr<ContextRecords> contexts_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<KvStorage> kv_;  // null: no KV on disk

  mutable absl::Mutex mutex_;
  std::unique_ptr<LeaseTable> table_ ABSL_GUARDED_BY(mutex_);
  std::map<LeaseId, OpenedLease> leases_ ABSL_GUARDED_BY(mutex_);
  std::vector<WorkerRecord> previous_workers_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Demotions and loads that write to slots now, outside the lock. The arena is not emptied for
  // another model before they have ended.
  int writers_ ABSL_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<WorkPool> tidy_;  // one thread; last, because its tasks use all of the above
};

}  // namespace withy::context_store
