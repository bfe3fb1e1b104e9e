// The KV side of all contexts: which chunks are in the arena, who may write which blocks, which
// leases wait. Pure state: no bytes, disk, clock or threads. Neighbours: chunks.h
// (moves blocks between contexts and leases), eviction.h (eviction policy), store.cc (locks it,
// moves bytes and records).
//
// Invariants: a block has one owner; a lease of an older epoch never changes a context's chunks; a
// block that a worker may still be writing is not reused before that worker has attached again or
// is dead.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "context_store/block_pool.h"
#include "context_store/chunks.h"

namespace withy::context_store {

using LeaseId = uint64_t;         // never 0
using WorkerInstance = uint64_t;  // one run of a worker, chosen at random; never 0

struct LeaseLimits {
  uint64_t arena_bytes = 0;
  uint32_t open = 1024;    // maximum leases that hold a context or blocks
  uint32_t waiting = 256;  // maximum leases that wait for a context
};

struct Attached {
  uint64_t epoch = 0;
  uint32_t block_count = 0;
  std::vector<LeaseId> ended;  // leases that became stale; their streams end
};

// Effects of an operation on other leases.
struct Effects {
  std::vector<LeaseId> granted;  // waited, and hold their context now
  std::vector<LeaseId> ended;    // no longer exist
};

struct LeaseOpening {
  LeaseId id = 0;
  bool granted = false;  // false: waits; a later Effects.granted contains it
};

// Not thread-safe: guarded by its owner's lock.
class LeaseTable {
 public:
  // Epochs are first_epoch + 1, first_epoch + 2, …
  LeaseTable(const LeaseLimits& limits, uint64_t first_epoch);

  // Errors: FAILED_PRECONDITION (another live worker has another geometry), INVALID_ARGUMENT
  // (invalid geometry, or not even one chunk fits the arena).
  absl::StatusOr<Attached> Attach(WorkerInstance worker, const Geometry& geometry);
  // A worker has mapped the arena. Counted, because it may connect twice.
  void WorkerConnected(WorkerInstance worker);
  // A worker's connection has closed. After the last one the worker is dead: its leases end and its
  // blocks are freed.
  Effects WorkerGone(WorkerInstance worker);

  // An empty `context_id` means a stateless call. `rebuild`: claimed blocks lie beside the
  // context's own until a commit replaces those. Errors: ABORTED (stale epoch, or the context is
  // being deleted), RESOURCE_EXHAUSTED (limits).
  absl::StatusOr<LeaseOpening> Open(uint64_t epoch, std::string_view context_id,
                                    bool rebuild = false);
  // Chunks of the lease's context in the arena, from chunk 0 on without gaps. The lease is granted.
  ResidentChunks Resident(LeaseId lease) const;

  // Claims blocks for chunks [first, first + count), which must leave no gap. Chunks that the
  // context has from `first` on are removed from it and become the lease's; claiming a chunk again
  // returns the same blocks. Evicts idle contexts if necessary, but not for a rebuild, and adds the
  // number of evicted chunks to `*evicted`. Errors: RESOURCE_EXHAUSTED (nothing was claimed, the
  // lease continues), INVALID_ARGUMENT, ABORTED (stale or ended).
  absl::StatusOr<std::vector<ChunkBlocks>> Claim(LeaseId lease, uint32_t first, uint32_t count,
                                                 uint64_t* evicted);
  // Drops `chunk` and all later ones. Errors: ABORTED, INVALID_ARGUMENT (not resident).
  absl::Status Fault(LeaseId lease, uint32_t chunk);

  // Whether a block's header has the epoch of its lease.
  using StampCheck = std::function<bool(uint32_t block, uint64_t epoch)>;
  // Checks the chunks to commit and holds the lease until FinishCommit. Chunks from the first one
  // with a wrong stamp on will not be kept; returns the number of such chunks. Errors: ABORTED,
  // INVALID_ARGUMENT (a gap, an invalid identity, or a full chunk changed without a claim).
  absl::StatusOr<uint32_t> BeginCommit(LeaseId lease, std::vector<ChunkIdentity> chunks,
                                       const StampCheck& stamp);
  // Ends the lease. If `stored`, the record is on disk and the chunks of BeginCommit become the
  // context's; otherwise claimed blocks are freed and the context keeps its chunks.
  Effects FinishCommit(LeaseId lease, bool stored);
  // Ends the lease of a worker that has stopped writing; its claimed blocks are freed.
  Effects Abort(LeaseId lease);
  // Ends the lease of a worker that may still be writing. Its claimed blocks, and those of the
  // chunk it may be extending, are quarantined while the worker lives. A lease that is being
  // committed ends with FinishCommit instead.
  Effects Break(LeaseId lease);

  // Refuses leases on a context that is being deleted. Errors: ABORTED (leased or waited for).
  absl::Status LockContext(std::string_view context_id);
  // Undoes LockContext; `erase` drops the context's KV.
  void UnlockContext(std::string_view context_id, bool erase);

  // True between BeginCommit and FinishCommit.
  bool Committing(LeaseId lease) const;

  uint64_t epoch() const { return epoch_; }
  uint32_t block_bytes() const { return geometry_.block_bytes; }
  const BlockPool::Counts& blocks() const { return pool_.counts(); }
  uint32_t open_leases() const { return static_cast<uint32_t>(leases_.size()) - waiting_; }
  uint32_t waiting_leases() const { return waiting_; }
  uint64_t ResidentBytes(std::string_view context_id) const;

  // The context to recompute at the full level: idle, has a chunk below it, most recently used. A
  // context whose rebuild found no room is skipped until its next use.
  struct Upgrade {
    std::string context_id;
    uint32_t level_percent = 0;  // of its lowest chunk
  };
  std::optional<Upgrade> NextUpgrade() const;

  // Checks all invariants and names the first violation; empty = none. For tests.
  std::string Audit() const;

 private:
  struct Context {
    ResidentChunks chunks;
    LeaseId holder = 0;
    bool locked = false;
    uint64_t last_used = 0;
    uint64_t no_room = UINT64_MAX;  // value of last_used when a rebuild found no room
    std::deque<LeaseId> waiting;
  };
  struct Lease {
    uint64_t epoch = 0;
    WorkerInstance worker = 0;
    std::string context_id;
    bool granted = false;
    bool committing = false;
    bool rebuild = false;
    ClaimedChunks claimed = {};
    std::vector<ChunkIdentity> commit = {};
  };

  absl::StatusOr<Lease*> Granted(LeaseId id);
  Context* ContextOf(const Lease& lease);
  void ResetArena(const Geometry& geometry);
  bool MakeRoom(uint32_t chunks, bool evict, uint64_t* evicted);
  void QuarantineOrFree(std::span<const uint32_t> blocks, WorkerInstance worker);
  void DropBroken(Lease& lease);
  Effects End(LeaseId id);
  void EraseIfEmpty(const std::string& context_id);

  const LeaseLimits limits_;
  uint64_t epoch_;
  Geometry geometry_;
  WorkerInstance worker_ = 0;  // attached last
  BlockPool pool_;
  std::unordered_map<std::string, Context> contexts_;
  std::map<LeaseId, Lease> leases_;
  std::map<WorkerInstance, int> connected_;  // connections of each live worker
  LeaseId last_lease_ = 0;
  uint32_t waiting_ = 0;
  uint64_t uses_ = 0;  // number of lease ends: the clock of last_used
};

}  // namespace withy::context_store
