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
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/arena_socket.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "context_store/arena/arena.h"
#include "context_store/arena/arena_directory.h"
#include "context_store/arena/memory_pressure.h"
#include "context_store/disk/kv_costs.h"
#include "context_store/disk/kv_storage.h"
#include "context_store/disk/work_pool.h"
#include "context_store/lease/lease_table.h"
#include "context_store/records/app_registry.h"
#include "context_store/records/backups.h"
#include "context_store/records/clean_up.h"
#include "context_store/records/context_keys.h"
#include "context_store/records/context_records.h"
#include "context_store/records/record_db.h"
#include "context_store/store_metrics.h"
#include "policy/kv/kv_eviction.h"
#include "policy/kv/kv_load_plan.h"
#include "policy/kv/kv_precision.h"
#include "policy/kv/kv_shrink.h"
#include "telemetry/recorder.h"

namespace withy::context_store {

struct PressureOptions {
  std::string file;  // of the kernel's pressure stall information; empty: the arena keeps its size
  policy::ShrinkRules rules;
  absl::Duration interval = absl::Seconds(1);  // between two observations
};

struct StoreOptions {
  RecordDbOptions db;
  ContextLimits limits;
  uint64_t arena_bytes = 256 << 20;
  uint64_t wanted_arena_bytes = 0;  // as configured, where memory is short
  std::string arena_sum = {};       // why it is smaller than that, for the status; empty: it is not
  uint32_t max_leases = 1024;
  uint32_t max_waiting_leases = 256;
  LegacyResults former;
  // Least bytes that a context's KV may be brought to, as a share of its bytes at 8 bits. 100:
  // chunks stay at 8 bits.
  uint32_t kv_ratio_percent = 50;
  // How KV is treated; see policy/kv/kv_strategy.h.
  std::optional<policy::PrecisionPolicy> precision = policy::PrecisionPolicy::kDensity;
  bool compresses_ahead = false;  // else chunks lose bits only where the arena needs their room
  policy::EvictionPolicy eviction = policy::EvictionPolicy::kLctru;
  policy::LoadPolicy load_policy = policy::LoadPolicy::kPrefix;
  bool writes_ahead = true;                    // else KV is written when it leaves the arena
  KvSegmentsOptions kv;                        // empty directory: no KV on disk
  uint64_t kv_daily_write_bytes = UINT64_MAX;  // of KV that may be written within 24 hours
  PressureOptions pressure;
  // Master key of what is encrypted at rest. Empty path: master.key beside the database.
  KeyFile key;
  UniqueFd kept_arena;    // arena that systemd kept from an earlier store process; may be invalid
  KvCosts kv_costs = {};  // until a worker and the disk have told theirs
  bool probe_reads = false;  // measure the disk's speed at the first start
  CleanUp::Pauses clean_up = {};
  // At the end, KV that waits to be written is written for at most so long.
  absl::Duration last_writes = absl::Seconds(2);
  // Bytes of records and KV on disk together. KV gives way; if the records alone reach it, calls
  // and contexts are refused.
  uint64_t disk_bytes = UINT64_MAX;
  uint64_t lock_limit_bytes = UINT64_MAX;  // of the arena, in addition to RLIMIT_MEMLOCK
};

// Receives notices about a lease on other threads, never under a lock of the store, and none after
// OnEnded. Neither call may block.
class LeaseListener {
 public:
  virtual ~LeaseListener() = default;
  // The lease had to wait and now holds its context: call Load().
  virtual void OnGranted() = 0;
  // While Load runs and after it: layers 0 to `layer` of every chunk being read are in the arena,
  // failed chunks excepted. Layers come in order; one call may cover several.
  virtual void OnLayer(uint32_t layer) = 0;
  // Answers Recompute, before the first OnLayer: these chunks were being read and are left to the
  // worker, in these slots, which its lease has claimed. Empty: reading is faster than recomputing.
  // `arrived_blocks`: number of blocks read so far.
  virtual void OnRevised(std::vector<ChunkSlot> recompute, uint64_t arrived_blocks) = 0;
  // This chunk cannot be read; later ones may be there, or fail, too.
  virtual void OnLoadFailed(uint32_t chunk) = 0;
  // Answers a claim that waited for room: its slots; or none, and why not.
  virtual void OnClaimed(std::vector<ChunkSlot> chunks, std::string refused) = 0;
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
  uint32_t level_percent = 0;  // that the call computes at; 0: not known
  uint32_t prompt_tokens = 0;  // that the call adds; 0: not known
  uint32_t need_tokens = 0;    // that the context may come to have; 0: not known

  // Whether the lease is opened ahead of its call.
  bool ahead() const { return app_id.empty() && context_id.empty(); }
};

struct LoadedContext {
  std::vector<std::string> segments;
  uint32_t left_out = 0;  // segments of the record that the call replaces
  ResidentChunks resident;
};

struct LeaseOutcome {
  std::vector<std::string> segments;  // appended
  std::vector<ChunkIdentity> chunks;  // the context's chunks after the call, from the first on
  uint32_t tokens = 0;
  std::optional<NewResult> result;
  std::optional<RequestKey> unfinished = {};
  uint32_t dropped = 0;       // as RecordCommit
  uint32_t added_tokens = 0;  // as RecordCommit
};

struct StoreStats {
  uint64_t epoch = 0;
  bool attached = false;  // a worker has told its geometry
  SlotPool::Counts space;
  uint64_t largest_gap = 0;  // bytes
  std::string arena_sum;     // StoreOptions::arena_sum
  uint32_t leases_open = 0;
  uint32_t leases_ahead = 0;  // of leases_open: opened ahead, their calls have not arrived
  uint32_t leases_waiting = 0;
  uint32_t waiting_limit = 0;
  uint64_t faults = 0;
  uint32_t idle_work = 0;     // contexts whose work after a call is not done yet
  uint64_t locked_bytes = 0;  // of the arena
  uint64_t kept_chunks = 0;   // adopted from the arena of an earlier process
  uint64_t unkept_chunks = 0;
  uint64_t evicted_chunks = 0;
  uint64_t demoted_chunks = 0;
  uint64_t demoted_bytes = 0;  // freed by it
  uint64_t read_chunks = 0;
  uint64_t written_chunks = 0;
  uint64_t not_written_chunks = 0;  // to spare the disk
  uint64_t shared_chunks = 0;       // that contexts took over from others
  // Contexts with KV that a call opened: all of it in the arena, part of it, none of it.
  uint64_t opened_resident = 0;
  uint64_t opened_partly = 0;
  uint64_t opened_without = 0;
  BytesByFormat bytes;
  KvStorageStats disk;  // zeros without KV on disk
};

// Thread-safe. Methods documented to block use the disk and must not run in a gRPC callback.
// `clock` and `recorder` are borrowed.
class Store {
 public:
  // Blocks. Errors: as RecordDb::Open, ContextKeys::Open, EncryptRecords and Arena::Create.
  static absl::StatusOr<std::unique_ptr<Store>> Open(StoreOptions options, const Clock& clock,
                                                     telemetry::Recorder& recorder);
  ~Store();

  AppRegistry& apps() { return *apps_; }
  ContextRecords& contexts() { return *contexts_; }
  ContextKeys& keys() { return *keys_; }
  Backups& backups() { return *backups_; }
  const Arena& arena() const { return *arena_; }
  StoreStats Stats() const;
  ContextKv KvOf(std::string_view context_id) const;
  std::vector<ContextChunk> ChunksOf(std::string_view context_id) const;

  // See IdleKv::NextUpgrade.
  struct Upgrade {
    std::string app_id;
    std::string context_id;
    uint32_t level_percent = 0;
  };
  std::optional<Upgrade> NextUpgrade() const;

  // As ContextRecords::Create and FindResult. Errors: also RESOURCE_EXHAUSTED (`disk_bytes`).
  absl::StatusOr<ContextSummary> CreateContext(std::string_view app_id, NewContext context);
  absl::StatusOr<std::string> FindResult(std::string_view app_id, std::string_view request_id,
                                         std::string_view digest) const;
  // Both block. OK: it is deleted, durably; its space and its keys in the database's files may be
  // freed later. Errors: NOT_FOUND; ABORTED while a context is leased; those of a write.
  absl::Status DeleteContext(std::string_view app_id, std::string_view context_id);
  absl::Status RemoveApp(std::string_view app_id);
  // As ContextKeys::Rotate.
  absl::StatusOr<std::string> RotateMasterKey();

  // A worker starts or restarts: see LeaseTable::Attach. `public_chunks`: identities of chunks that
  // contexts of all apps may share, as the worker names them. Blocks. Errors: also INVALID_ARGUMENT
  // (an identity that is none), and FAILED_PRECONDITION while a worker of an earlier store process
  // still has the arena mapped.
  absl::StatusOr<Attached> Attach(WorkerInstance worker, const Geometry& geometry,
                                  std::unordered_set<std::string> public_chunks = {});
  // What the attached worker knows of its model: replaces all but the costs of reading.
  void SetWorkerCosts(const KvCosts& costs);
  // For the plan of a load.
  policy::LoadCosts load_costs() const;
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
  // `need_tokens`: as LeaseSpec.
  absl::Status Begin(LeaseId lease, std::string app_id, uint64_t call_id, uint32_t need_tokens = 0);
  // The process begins to stop: ends the leases that no call waits for (opened ahead, or to rebuild
  // KV), refuses new ones, and ends the measurement of the disk.
  void BeginStop();
  // Reads the record, and begins to bring the context's KV into the arena. Blocks on the record.
  absl::StatusOr<LoadedContext> Load(LeaseId lease);
  // As LeaseTable::Claim; LeaseListener::OnClaimed answers a claim that waits. Makes room if need
  // be, see MakesRoom; blocks then.
  absl::StatusOr<ClaimAnswer> Claim(LeaseId lease, uint32_t first, uint32_t count,
                                    bool may_wait = true);
  // Whether a claim of `chunks` chunks would have to wait for room: chunks are written to disk or
  // stored in fewer bits.
  bool MakesRoom(uint32_t chunks) const;
  // As LeaseTable::Share.
  absl::StatusOr<ResidentChunks> Share(LeaseId lease, uint32_t first,
                                       const std::vector<LeaseTable::Identities>& wanted);
  absl::Status Fault(LeaseId lease, uint32_t chunk, std::string_view reason);
  // The worker has computed the chunks below `computed_before` that were left to it, and asks for
  // at most `most` more of those that are being read. OnRevised follows, perhaps before the return.
  void Recompute(LeaseId lease, uint32_t computed_before, uint32_t most);
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
  class Loading;  // what is being read for a lease
  struct OpenedLease {
    LeaseSpec spec;
    // Shared with the stream's reactor, which may live longer or shorter than the store's use of
    // it.
    std::shared_ptr<LeaseListener> listener;
    int64_t opened_ns = 0;
    SegmentRange replaces = {};  // set by Load
  };
  using Listeners = std::vector<std::shared_ptr<LeaseListener>>;
  // What is to be told once the lock is released.
  struct Notices {
    Listeners granted;
    std::vector<std::pair<std::shared_ptr<LeaseListener>, LateClaim>> claims;

    bool empty() const { return granted.empty() && claims.empty(); }
    void Tell();
  };

  Store(StoreOptions options, const Clock& clock, telemetry::Recorder& recorder);
  absl::Status OpenRecords();
  absl::Status OpenKv();
  // RESOURCE_EXHAUSTED if the records have reached `disk_bytes`.
  absl::Status CheckDisk() const;
  // Also if a quota of the app, or of the context unless that is empty, is reached.
  absl::Status CheckQuotas(std::string_view app_id, std::string_view context_id) const;
  // Whether records and KV together have reached `disk_bytes`: KV has to give way.
  bool OverDiskBound() const;
  // Looks at the records' size on disk again. Blocks.
  void MeasureRecords();
  // After `context_id` was deleted: its keys leave the files, and where the bound was reached, so
  // do its records. Empty: keys alone.
  absl::Status ExpungeContext(const std::string& context_id);
  // The same; what fails is tried again by clean_up_.
  void ExpungeOrLater(std::string_view context_id);
  absl::Status CleanUpDeleted();
  // These copies are lost. What is in the arena of the contexts that had them is written again.
  void ForgetCopies(const std::set<StoredCopy>& lost);
  absl::Status LoadPreviousWorkers();
  // Takes over what earlier runs left of contexts for this geometry, in the arena and on disk
  // (store_keep.cc).
  absl::Status AdoptEarlier(const Geometry& geometry);
  using KeptByContext = std::map<std::string, std::vector<KeptChunk>>;
  KeptByContext FindKept(const Geometry& geometry, uint64_t* wrong);
  int64_t LastUse(std::string_view context_id) const;  // Unix time in ns; 0: no such context
  uint64_t FirstEpoch() const;                         // of this run of the store
  bool PreviousWorkerLives(WorkerInstance attaching);
  absl::StatusOr<OpenedLease> Find(LeaseId lease) const;
  void EndLease(LeaseId lease, bool broken);
  // Has Tidy done.
  void TidyLater(const std::string& context_id);
  // The copies of equal chunks of other contexts are copies of chunks that have none.
  void BorrowCopies(std::vector<StoredContext>* contexts);
  // The slots are used by the lease's call: they stay in memory until the lease is forgotten.
  void LockSlots(LeaseId lease, std::span<const KvSlot> slots)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Forget(LeaseId lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Work on a context that a call has left: writes its chunks to disk (store_tidy.cc). On the
  // thread of tidy_.
  void Tidy(const std::string& context_id);
  // Ends early if a call has come.
  void WriteIdle(const std::string& context_id, const Geometry& geometry);
  // Room in the arena (store_room.cc). Makes room for `bytes` of new slots of 8 bits without losing
  // anything, as long as that is possible, then by storing chunks in fewer bits. What is missing
  // after that, evictions drop. Blocks.
  void MakeRoom(uint64_t bytes) ABSL_LOCKS_EXCLUDED(room_mutex_);
  // Whether free slots and chunks that can be read back bit for bit are not enough.
  bool LacksRoom(uint64_t bytes) const;
  bool LacksRoomLocked(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Stores chunks in fewer bits, as far as the ratio allows: of one context, as many as possible;
  // of idle ones that have no exact copy on disk, until `bytes` are freed.
  void Compress(const std::string& context_id);
  void CompressFor(uint64_t bytes);
  struct Compression;  // what may be stored in fewer bits
  Compression FindCompressible(std::vector<std::string> context_ids, bool spares_copies) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Carry(const Compression& compression, uint64_t bytes);
  // Begins to bring the lease's context into the arena, as the plan says (store_load.cc); returns
  // the chunks that have slots.
  ResidentChunks BringBack(LeaseId lease, const LeaseSpec& spec);
  // Writes chunks of one context and its index. Every chunk's work is finished.
  void WriteChunks(const std::string& context_id, const Geometry& geometry,
                   std::span<const ChunkWork> work);
  // Writes what would leave the arena to make room for `bytes`, as far as the day's limit allows.
  // On the thread of tidy_, so nothing is written twice.
  void SwapOut(uint64_t bytes);
  // Has that done, after what tidy_ has begun, and waits as long as the disk takes something.
  void AwaitSwapOut(uint64_t bytes);
  // Of the chunks of a lease's context that are on disk only, in the arena.
  uint64_t BytesToLoad(const std::string& context_id) const;
  uint64_t BytesOfNewChunk() const;
  // Statistics (store_stats.cc). RecordMetrics is for the thread of tidy_.
  void CountOpening(const LeaseSpec& spec);
  void RecordMetrics();
  // The chunks that the disk is spared (policy/kv/kv_disk.h) are taken out of `work`. `for_room`:
  // see policy::WriteCandidate.
  std::vector<ChunkWork> TakeUnworthy(const std::string& context_id, const Geometry& geometry,
                                      bool for_room, std::vector<ChunkWork>* work);
  // Writes what is worth it and ends all of the work.
  void WriteWorthy(const std::string& context_id, const Geometry& geometry, bool for_room,
                   std::vector<ChunkWork> work);
  // Memory pressure (store_pressure.cc).
  absl::Status StartWatchingPressure();
  void StopWatchingPressure();
  void WatchPressure();
  // Takes up to `bytes` of the arena out of use, or gives what is beyond them back. Returns the
  // bytes that are out of use now.
  uint64_t WithholdTo(uint64_t bytes);
  // A step of it. Returns whether no further step would take more; `now`: out of use.
  bool WithholdMore(uint64_t bytes, uint64_t* now);
  void ReleaseCopies();
  // Finds or measures what reading costs. On the thread of tidy_.
  void ProbeReads();
  // Apply the table's effects: remove ended leases and return the listeners to notify.
  Listeners TakeEnded(const std::vector<LeaseId>& ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Notices Apply(Effects effects) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeClaimed(LeaseId lease, uint64_t epoch, std::span<const ChunkSlot> chunks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Work has ended that kept room which leases may wait for.
  void AdvanceWaiting();
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
  telemetry::Counter& recomputed_;
  telemetry::Counter& taken_over_;
  telemetry::Counter& kept_;
  telemetry::Counter& not_kept_;
  telemetry::Gauge& space_free_;
  telemetry::Gauge& space_used_;
  telemetry::Gauge& space_quarantined_;
  telemetry::Gauge& space_withheld_;
  telemetry::Gauge& space_locked_;
  telemetry::Gauge& space_missing_;
  telemetry::Gauge& kv_usage_;
  telemetry::Gauge& leases_gauge_;
  telemetry::Gauge& record_bytes_gauge_;
  telemetry::Counter& refused_by_quota_;
  StoreMetrics metrics_;

  std::unique_ptr<RecordDb> db_;
  std::unique_ptr<ContextKeys> keys_;
  std::unique_ptr<AppRegistry> apps_;
  std::unique_ptr<ContextRecords> contexts_;
  std::unique_ptr<Backups> backups_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<ArenaDirectory> directory_;  // guarded by mutex_, as the table that uses it
  std::unique_ptr<KvStorage> kv_;              // null: no KV on disk

  absl::Mutex attach_mutex_;  // held by one Attach at a time; taken before mutex_
  absl::Mutex room_mutex_;    // held by who compresses for room; taken before mutex_
  mutable absl::Mutex mutex_;
  std::unique_ptr<LeaseTable> table_ ABSL_GUARDED_BY(mutex_);
  std::map<LeaseId, OpenedLease> leases_ ABSL_GUARDED_BY(mutex_);
  // Loads that go on, by lease. Shared with the reader's functions.
  std::map<LeaseId, std::shared_ptr<Loading>> loading_ ABSL_GUARDED_BY(mutex_);
  std::vector<WorkerRecord> previous_workers_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  KvCosts costs_ ABSL_GUARDED_BY(mutex_);  // corrected by every load
  // What recomputing takes by the worker's calibration.
  policy::LoadCosts calibrated_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> record_bytes_{0};  // on disk
  // Steady time until which the disk is not asked to take KV for room: it failed, or hangs.
  std::atomic<int64_t> no_writes_until_ns_{0};
  // Demotions and loads that write to slots now, outside the lock. The arena is not emptied for
  // another model before they have ended.
  int writers_ ABSL_GUARDED_BY(mutex_) = 0;

  absl::Mutex left_mutex_;
  std::set<std::string> left_ ABSL_GUARDED_BY(left_mutex_);  // for CleanUpDeleted

  std::atomic<uint32_t> idle_work_ = 0;       // tasks of tidy_ that are not done
  std::unique_ptr<MemoryPressure> pressure_;  // null: not watched
  UniqueFd pressure_stop_;                    // an eventfd
  std::thread pressure_thread_;

  // Notified when work in the background must end: what is not written then is computed again.
  absl::Notification stop_;
  absl::Notification stop_probe_;      // the same for ProbeReads, when the process begins to stop
  std::unique_ptr<WorkPool> tidy_;     // one thread; its tasks use all of the above
  std::unique_ptr<CleanUp> clean_up_;  // last, as it uses them too
};

}  // namespace withy::context_store
