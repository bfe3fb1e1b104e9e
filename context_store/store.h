// The store as one object, without a wire: records, KV leases and the arena put together, with one
// lock over the lease table and no disk access under it. Neighbours: service.cc and
// lease_reactor.cc speak gRPC over it, side_socket.cc hands out the arena.
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
#include "context_store/lease_table.h"
#include "context_store/record_db.h"
#include "telemetry/recorder.h"

namespace withy::context_store {

struct StoreOptions {
  RecordDbOptions db;
  ContextLimits limits;
  uint64_t arena_bytes = 256 << 20;
  uint32_t max_leases = 1024;
  uint32_t max_waiting_leases = 256;
  FormerResults former;
  UniqueFd kept_arena;  // what systemd kept of the store that ran before; may be empty
};

// Hears of a lease from other threads, never under a lock of the store, never after it was told of
// the end. Neither call may block.
class LeaseListener {
 public:
  virtual ~LeaseListener() = default;
  // The lease waited and holds its context now: Load() it.
  virtual void OnGranted() = 0;
  // The store ended the lease (its epoch is over, its worker is dead).
  virtual void OnEnded(const absl::Status& status) = 0;
};

struct LeaseSpec {
  uint64_t epoch = 0;
  std::string app_id;      // empty: of a stateless call that has not come yet
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
  std::vector<ChunkIdentity> chunks;  // of the context after the call, from the first on
  uint32_t tokens = 0;
  std::optional<NewResult> result;
  std::optional<RequestKey> unfinished = {};
  uint32_t dropped = 0;  // as RecordCommit
};

struct StoreStats {
  uint64_t epoch = 0;
  BlockPool::Counts blocks;
  uint32_t block_bytes = 0;
  uint32_t leases_open = 0;
  uint32_t leases_ahead = 0;  // of those: their calls have not come
  uint32_t leases_waiting = 0;
  uint32_t waiting_limit = 0;
  uint64_t faults = 0;
};

// Thread-safe. Methods that say so block on the disk and must not run in a gRPC callback. `clock`
// and `recorder` are borrowed.
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
  uint64_t ResidentBytes(std::string_view context_id) const;

  // See LeaseTable::NextUpgrade.
  struct Upgrade {
    std::string app_id;
    std::string context_id;
    uint32_t level_percent = 0;
  };
  std::optional<Upgrade> NextUpgrade() const;

  // Block. Errors: NOT_FOUND; ABORTED while a context is leased; those of a write.
  absl::Status DeleteContext(std::string_view app_id, std::string_view context_id);
  absl::Status RemoveApp(std::string_view app_id);

  // A worker starts anew: see LeaseTable::Attach. Also FAILED_PRECONDITION while another worker of
  // the store that ran before still has the arena mapped.
  absl::StatusOr<Attached> Attach(WorkerInstance worker, const Geometry& geometry);
  // A process is about to get the arena (blocks on the disk). Errors: ABORTED (stale epoch).
  absl::StatusOr<ArenaOffer> ConnectWorker(WorkerInstance worker, uint64_t epoch, pid_t pid);
  // Its connection is gone: it is dead. Blocks on the disk.
  void DisconnectWorker(WorkerInstance worker);

  // A lease. What follows `OpenLease` is for the one who opened it, one call at a time, except
  // Abort and Break, which are safe at any time and do nothing to a lease that is over or being
  // committed. Errors: see LeaseTable; NOT_FOUND and DATA_LOSS of the context.
  absl::StatusOr<LeaseOpening> OpenLease(const LeaseSpec& spec,
                                         std::shared_ptr<LeaseListener> listener);
  // The call of a lease that was opened without an app has come. Errors: ABORTED (the lease is
  // over), INVALID_ARGUMENT (it has an app).
  absl::Status Begin(LeaseId lease, std::string app_id, uint64_t call_id);
  // Ends the leases whose calls have not come, and opens no more of them: the store is to stop.
  void EndLeasesAhead();
  // The record and what is resident. Blocks.
  absl::StatusOr<LoadedContext> Load(LeaseId lease);
  absl::StatusOr<std::vector<ChunkBlocks>> Claim(LeaseId lease, uint32_t first, uint32_t count);
  absl::Status Fault(LeaseId lease, uint32_t chunk, std::string_view reason);
  // Durable on return, and the lease is over; also when the disk failed (the record is as it was
  // before). Returns the context's revision. Blocks. Errors: those of LeaseTable::BeginCommit (the
  // lease lives on: break it) and of ContextRecords::Commit (the lease is over).
  absl::StatusOr<uint64_t> Commit(LeaseId lease, LeaseOutcome outcome);
  void Abort(LeaseId lease);
  void Break(LeaseId lease);

 private:
  struct OpenedLease {
    LeaseSpec spec;
    // Shared with the stream's reactor, which may be done with it before or after the store is.
    std::shared_ptr<LeaseListener> listener;
    int64_t opened_ns = 0;
    SegmentRange replaces = {};  // as it was loaded
  };
  using Listeners = std::vector<std::shared_ptr<LeaseListener>>;

  Store(StoreOptions options, const Clock& clock, telemetry::Recorder& recorder);
  absl::Status LoadFormerWorkers();
  bool FormerWorkerLives(WorkerInstance attaching);
  absl::StatusOr<OpenedLease> Find(LeaseId lease) const;
  void EndLease(LeaseId lease, bool broken);
  // Apply what the table did: forget ended leases, collect whom to tell.
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
  telemetry::Gauge& blocks_free_;
  telemetry::Gauge& blocks_used_;
  telemetry::Gauge& blocks_quarantined_;
  telemetry::Gauge& leases_gauge_;

  std::unique_ptr<RecordDb> db_;
  std::unique_ptr<AppRegistry> apps_;
  std::unique_ptr<ContextRecords> contexts_;
  std::unique_ptr<Arena> arena_;

  mutable absl::Mutex mutex_;
  std::unique_ptr<LeaseTable> table_ ABSL_GUARDED_BY(mutex_);
  std::map<LeaseId, OpenedLease> leases_ ABSL_GUARDED_BY(mutex_);
  std::vector<WorkerRecord> former_workers_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace withy::context_store
