// The KV side of all contexts: where each chunk is, who may write which slots, which leases wait.
// Pure state: no bytes, disk, clock or threads. Neighbours: chunks.h (moves slots between contexts
// and leases), eviction.h (eviction policy), store.cc (locks it, moves bytes and records).
//
// Invariants: a slot has one owner; a lease of an older epoch never changes a context's chunks; a
// slot that a worker may still be writing is not reused before that worker has attached again or is
// dead; chunks of a context that is leased stay where they are.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "context_store/chunks.h"
#include "context_store/eviction.h"
#include "context_store/slot_pool.h"

namespace withy::context_store {

using LeaseId = uint64_t;         // never 0
using WorkerInstance = uint64_t;  // one run of a worker, chosen at random; never 0

struct LeaseLimits {
  uint64_t arena_bytes = 0;
  uint32_t open = 1024;    // maximum leases that hold a context or slots
  uint32_t waiting = 256;  // maximum leases that wait for a context
};

struct Attached {
  uint64_t epoch = 0;
  bool reset = false;  // the arena was emptied: it holds another geometry's chunks from now on
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

// What a context has.
struct ContextKv {
  uint64_t resident_bytes = 0;
  uint64_t stored_bytes = 0;
  uint32_t tokens = 0;  // whose KV is in the arena or on disk
};

// A chunk to be read from disk into a slot that is claimed for it.
struct ChunkLoad {
  uint32_t chunk = 0;
  KvSlot slot;
  StoredCopy stored = 0;
  uint64_t run = 0;  // see SlotPool::run
};

// Work of the store on a chunk of an idle context: its slot is pinned meanwhile. The chunk may be
// leased, dropped or replaced before the work is done.
struct ChunkWork {
  std::string context_id;
  uint32_t chunk = 0;
  KvSlot from;
  KvSlot to = {};  // demotion only
  std::string identity = {};
  uint64_t pin = 0;  // see SlotPool::Pin
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
  // slots are freed.
  Effects WorkerGone(WorkerInstance worker);

  // An empty `context_id` means a stateless call. `rebuild`: claimed slots lie beside the
  // context's own until a commit replaces those. Errors: ABORTED (stale epoch, or the context is
  // being deleted), RESOURCE_EXHAUSTED (limits).
  absl::StatusOr<LeaseOpening> Open(uint64_t epoch, std::string_view context_id,
                                    bool rebuild = false);
  // Chunks of the lease's context in the arena, from chunk 0 on without gaps. The lease is granted.
  ResidentChunks Resident(LeaseId lease) const;

  // Claims slots for the chunks of the lease's context that are on disk only, from the first one
  // on, for as many as there is room; evicts chunks of idle contexts, and adds their number to
  // `*evicted`. FinishLoad must follow.
  std::vector<ChunkLoad> BeginLoad(LeaseId lease, uint64_t* evicted);
  // `read[i]`: loads[i] is in its slot. A chunk that could not be read loses its copy on disk.
  void FinishLoad(LeaseId lease, const std::vector<ChunkLoad>& loads,
                  const std::vector<bool>& read);

  // Claims slots for chunks [first, first + count), which must leave no gap. Chunks that the
  // context has from `first` on are removed from it and become the lease's; claiming a chunk again
  // returns the same slot. Evicts idle contexts if necessary, but not for a rebuild, and adds the
  // number of evicted chunks to `*evicted`. Errors: RESOURCE_EXHAUSTED (nothing was claimed, the
  // lease continues), INVALID_ARGUMENT, ABORTED (stale or ended).
  absl::StatusOr<std::vector<ChunkSlot>> Claim(LeaseId lease, uint32_t first, uint32_t count,
                                               uint64_t* evicted);
  // Drops `chunk` and all later ones. Errors: ABORTED, INVALID_ARGUMENT (not resident).
  absl::Status Fault(LeaseId lease, uint32_t chunk);

  // Whether the headers of a slot's blocks have the epoch of its lease.
  using StampCheck = std::function<bool(KvSlot slot, uint64_t epoch)>;
  // Checks the chunks to commit and holds the lease until FinishCommit. Chunks from the first one
  // with a wrong stamp on will not be kept; returns the number of such chunks. Errors: ABORTED,
  // INVALID_ARGUMENT (a gap, an invalid identity, or a full chunk changed without a claim).
  absl::StatusOr<uint32_t> BeginCommit(LeaseId lease, std::vector<ChunkIdentity> chunks,
                                       const StampCheck& stamp);
  // Ends the lease. If `stored`, the record is on disk and the chunks of BeginCommit become the
  // context's; otherwise claimed slots are freed and the context keeps its chunks.
  Effects FinishCommit(LeaseId lease, bool stored);
  // Ends the lease of a worker that has stopped writing; its claimed slots are freed.
  Effects Abort(LeaseId lease);
  // Ends the lease of a worker that may still be writing. Its claimed slots, and that of the chunk
  // it may be extending, are quarantined while the worker lives. A lease that is being
  // committed ends with FinishCommit instead.
  Effects Break(LeaseId lease);

  // Refuses leases on a context that is being deleted. Errors: ABORTED (leased or waited for).
  absl::Status LockContext(std::string_view context_id);
  // Undoes LockContext; `erase` drops the context's KV.
  void UnlockContext(std::string_view context_id, bool erase);

  // --- work on idle contexts
  // All chunks of an idle context; empty if it has none or is not idle.
  std::vector<ContextChunk> IdleChunks(std::string_view context_id) const;
  // Begins to store a full chunk of an idle context in another, smaller format, in a slot that is
  // claimed for it; chunks of other idle contexts make room. nullopt: not idle, not resident, no
  // room. FinishDemotion must follow.
  std::optional<ChunkWork> BeginDemotion(std::string_view context_id, uint32_t chunk, KvFormat to,
                                         uint64_t* evicted);
  // Puts the new slot in the place of the old one if `done` and the chunk is still idle and the
  // same; otherwise frees it. Returns whether it did.
  bool FinishDemotion(const ChunkWork& work, bool done);
  // Begins to write a chunk of an idle context to disk; nullopt: not idle, not resident, or it has
  // a copy. FinishWrite must follow.
  std::optional<ChunkWork> BeginWrite(std::string_view context_id, uint32_t chunk);
  // `stored`: the copy that was written, or 0. Returns whether the chunk has it now; if not, the
  // caller gives the copy up.
  bool FinishWrite(const ChunkWork& work, StoredCopy stored);
  // These copies are lost. A chunk that is on disk only is lost with its copy.
  void ForgetCopies(const std::set<StoredCopy>& copies);
  // Adds what is on disk of a context that has no chunks: from an earlier run of the store.
  void AdoptStored(std::string_view context_id, std::vector<ContextChunk> chunks);
  // Copies on disk that no chunk has any more, since the last call.
  std::vector<StoredCopy> TakeGivenUp() { return std::exchange(given_up_, {}); }

  // True between BeginCommit and FinishCommit.
  bool Committing(LeaseId lease) const;

  uint64_t epoch() const { return epoch_; }
  const Geometry& geometry() const { return geometry_; }
  const SlotPool& slots() const { return pool_; }
  uint32_t open_leases() const { return static_cast<uint32_t>(leases_.size()) - waiting_; }
  uint32_t waiting_leases() const { return waiting_; }
  ContextKv KvOf(std::string_view context_id) const;
  std::vector<ContextChunk> ChunksOf(std::string_view context_id) const;

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
    ContextChunks kv;
    LeaseId holder = 0;
    bool locked = false;
    uint64_t last_used = 0;
    uint64_t no_room = UINT64_MAX;  // value of last_used when a rebuild found no room
    std::deque<LeaseId> waiting;

    bool idle() const { return holder == 0 && !locked; }
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

  // Chunks of idle contexts in the order in which they leave the arena.
  struct EvictionQueue {
    std::vector<Context*> contexts;
    std::vector<Eviction> order;
    size_t next = 0;
    uint64_t bytes = 0;  // of all of them
  };

  absl::StatusOr<Lease*> Granted(LeaseId id);
  Context* ContextOf(const Lease& lease);
  const Context* FindIdle(std::string_view context_id) const;
  std::optional<ChunkWork> BeginWork(std::string_view context_id, uint32_t chunk);
  ContextChunk* EndWork(const ChunkWork& work);
  void ResetArena(const Geometry& geometry);
  // Claims `count` slots of 8 bits for a lease, or none.
  bool ClaimSlots(uint64_t count, LeaseId lease, bool evict, uint64_t* evicted,
                  std::vector<SlotAt>* slots);
  // A slot for a lease; evicts the queue's next chunks while there is no gap for it.
  std::optional<SlotAt> ClaimEvicting(uint64_t bytes, LeaseId lease, EvictionQueue* queue,
                                      uint64_t* evicted);
  EvictionQueue MakeEvictionQueue(const Context* except = nullptr);
  void QuarantineOrFree(SlotAt slot, WorkerInstance worker);
  void DropBroken(Lease& lease);
  Effects End(LeaseId id);
  void EraseIfEmpty(const std::string& context_id);
  void Collect(Context* context);

  const LeaseLimits limits_;
  uint64_t epoch_;
  Geometry geometry_;
  WorkerInstance worker_ = 0;  // attached last
  SlotPool pool_;
  std::unordered_map<std::string, Context> contexts_;
  std::map<LeaseId, Lease> leases_;
  std::map<WorkerInstance, int> connected_;  // connections of each live worker
  LeaseId last_lease_ = 0;
  uint32_t waiting_ = 0;
  uint64_t uses_ = 0;  // number of lease ends: the clock of last_used
  std::vector<StoredCopy> given_up_;
};

}  // namespace withy::context_store
