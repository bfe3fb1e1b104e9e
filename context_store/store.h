// The store as one object, without gRPC: opens its parts in order, owns them, and ends them in
// order. Each part has a duty of its own: lease_desk.h serves calls, arena_keeper.h knows the
// workers, idle/idle_keeper.h works on contexts that no call uses, deletions.h deletes,
// records/records.h is what is durable. One lock guards the lease table (lease/lease_book.h); no
// disk access happens under it. Neighbours: service.cc and lease_reactor.cc speak gRPC over it,
// side_socket.cc hands out the arena.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/unique_fd.h"
#include "context_store/arena/arena.h"
#include "context_store/arena_keeper.h"
#include "context_store/deletions.h"
#include "context_store/disk/kv_cost_book.h"
#include "context_store/disk/kv_storage.h"
#include "context_store/idle/idle_keeper.h"
#include "context_store/lease/lease_book.h"
#include "context_store/lease_desk.h"
#include "context_store/pressure_watch.h"
#include "context_store/records/records.h"
#include "context_store/store_metrics.h"
#include "policy/kv/kv_eviction.h"
#include "policy/kv/kv_load_plan.h"
#include "policy/kv/kv_precision.h"
#include "telemetry/recorder.h"

namespace withy::context_store {

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
  // Blocks. Errors: as Records::Open and Arena::Create.
  static absl::StatusOr<std::unique_ptr<Store>> Open(StoreOptions options, const Clock& clock,
                                                     telemetry::Recorder& recorder);
  ~Store();

  LeaseDesk& leases() { return *leases_; }
  ArenaKeeper& arena_keeper() { return *arena_keeper_; }
  Deletions& deletions() { return *deletions_; }
  IdleKeeper& idle() { return *idle_; }
  KvCostBook& costs() { return costs_; }
  Records& records() { return *records_; }
  AppRegistry& apps() { return records_->apps(); }
  ContextRecords& contexts() { return records_->contexts(); }
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

  // The process begins to stop: ends the leases that no call waits for (opened ahead, or to rebuild
  // KV), refuses new ones, and ends the measurement of the disk.
  void BeginStop();

 private:
  Store(StoreOptions options, const Clock& clock, telemetry::Recorder& recorder);
  // Without its directory KV on disk is off, and every context is computed again after a restart.
  absl::Status OpenDisk();
  void MakeParts();
  // Finds or measures what reading costs. On the idle keeper's thread.
  void ProbeReads();

  const StoreOptions options_;
  const Clock& clock_;
  telemetry::Recorder& recorder_;
  StoreMetrics metrics_;
  KvCostBook costs_;

  // Notified when work in the background must end: what is not written then is computed again.
  absl::Notification stop_;
  absl::Notification stop_probe_;  // the same for ProbeReads, when the process begins to stop
  std::atomic<bool> stopping_ = false;

  // Each uses those above it.
  std::unique_ptr<Records> records_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<LeaseBook> book_;
  std::unique_ptr<KvStorage> disk_;  // null: no KV on disk
  std::unique_ptr<IdleKeeper> idle_;
  std::unique_ptr<LeaseDesk> leases_;
  std::unique_ptr<ArenaKeeper> arena_keeper_;
  std::unique_ptr<Deletions> deletions_;
  std::unique_ptr<PressureWatch> pressure_;  // null: not watched
};

}  // namespace withy::context_store
