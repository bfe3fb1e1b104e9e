// The KV side of all contexts: where each chunk is, who may write which slots, which leases wait.
// Pure state: no bytes, disk, clock or threads. Neighbours: chunks.h (moves slots between contexts
// and leases), idle_kv.h (contexts that no lease holds), store.cc (locks it, moves bytes, records).
//
// Invariants: a slot has one owner, or several contexts that only read it; a lease of an older
// epoch never changes a context's chunks; a slot that a worker may still be writing is not reused
// before that worker has attached again or is dead; chunks of a context that is leased stay where
// they are; the leases that are admitted can all be given what they need, in some order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "context_store/arena/arena_directory.h"
#include "context_store/arena/arena_kv.h"
#include "context_store/arena/chunks.h"
#include "context_store/arena/slot_pool.h"
#include "context_store/lease/idle_kv.h"
#include "policy/kv/kv_eviction.h"
#include "policy/kv/kv_load_plan.h"

namespace withy::context_store {

using WorkerInstance = uint64_t;  // one run of a worker, chosen at random; never 0

struct LeaseLimits {
  uint64_t arena_bytes = 0;
  uint32_t open = 1024;    // maximum leases that hold a context or slots
  uint32_t waiting = 256;  // maximum leases that wait for a context
  policy::EvictionPolicy eviction = policy::EvictionPolicy::kLctru;
  bool compresses_ahead = false;  // see policy/kv/kv_strategy.h
};

struct Attached {
  uint64_t epoch = 0;
  bool reset = false;  // the arena was emptied: it holds another geometry's chunks from now on
  std::vector<LeaseId> ended;  // leases that became stale; their streams end
};

// Answers a claim that had to wait for room: its slots, or why it is refused.
struct LateClaim {
  LeaseId lease = 0;
  std::vector<ChunkSlot> chunks = {};
  std::string refused = {};
};

// Effects of an operation on other leases.
struct Effects {
  std::vector<LeaseId> granted;  // waited, and hold their context now
  std::vector<LeaseId> ended;    // no longer exist
  std::vector<LateClaim> claims = {};
  uint64_t evicted = 0;  // chunks, to make room for them
};

struct LeaseRequest {
  uint64_t epoch = 0;
  std::string_view context_id = {};  // empty: a stateless call
  // Claimed slots lie beside the context's own until a commit replaces those.
  bool rebuild = false;
  // Of the context, whose equal chunks are shared within the app; empty: it shares nothing.
  std::string_view app_id = {};
  bool ahead = false;  // a stateless call that has not come: Begin follows
  // Chunks that the context may come to have in the call. More may be claimed, if there is room.
  uint32_t need = 0;
};

struct LeaseOpening {
  LeaseId id = 0;
  bool granted = false;  // false: waits; a later Effects.granted contains it
};

// The slots of a claim; or it waits for room, and a later Effects.claims answers it.
struct ClaimAnswer {
  bool waits = false;
  std::vector<ChunkSlot> chunks = {};
};

// What a context has.
struct ContextKv {
  uint64_t resident_bytes = 0;
  uint64_t stored_bytes = 0;
  uint32_t tokens = 0;             // whose KV is in the arena or on disk
  uint32_t compressed_tokens = 0;  // of these, in fewer bits than 8
};

// A chunk that is being read from disk into its slot, which is pinned meanwhile.
struct ChunkLoad {
  uint32_t chunk = 0;
  KvSlot slot;
  StoredCopy stored = 0;
  uint64_t pin = 0;  // see SlotPool::Pin
  // The lease could compute it instead, and waits for nothing before it but what it computes, too.
  bool recomputable = false;
};

// Chunks [first, first + count).
struct ClaimRange {
  uint32_t first = 0;
  uint32_t count = 0;

  uint32_t end() const { return first + count; }
};

// How a lease's context is brought into the arena.
struct LoadRules {
  policy::LoadCosts costs = {};
  policy::LoadPolicy policy = policy::LoadPolicy::kReadAll;
  uint32_t level_percent = 0;  // that the lease computes at; 0: it recomputes nothing
  // Of the chunks with copies that the plan wants to be recomputed, the first ones that take this
  // share of the plan's time are claimed; the others are read as long as LeaveToWorker does not
  // take them.
  double claimed_share = 1;
};

// Not thread-safe: guarded by its owner's lock.
class LeaseTable {
 public:
  // Epochs are first_epoch + 1, first_epoch + 2, … `directory`: borrowed, may be null.
  LeaseTable(const LeaseLimits& limits, uint64_t first_epoch, ArenaDirectory* directory = nullptr);
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;

  // If the geometry is that of the chunks in the directory, their entries stay until
  // IdleKv::EndAdoption. Errors: FAILED_PRECONDITION (another live worker has another geometry),
  // INVALID_ARGUMENT (invalid geometry, or not even one chunk fits the arena).
  absl::StatusOr<Attached> Attach(WorkerInstance worker, const Geometry& geometry);
  // A worker has mapped the arena. Counted, because it may connect twice.
  void WorkerConnected(WorkerInstance worker);
  // A worker's connection has closed. After the last one the worker is dead: its leases end and its
  // slots are freed.
  Effects WorkerGone(WorkerInstance worker);

  // The lease waits for its context, and for so much room in the arena that every lease can be
  // given what it needs, one after another (policy/kv/kv_admission.h). Errors: ABORTED (stale
  // epoch, or the context is being deleted), RESOURCE_EXHAUSTED (limits).
  absl::StatusOr<LeaseOpening> Open(const LeaseRequest& request);
  // The call of a lease that was opened ahead has come: what it claims waits until there is room
  // for `need` chunks. Errors: ABORTED, INVALID_ARGUMENT (it was not opened ahead).
  absl::Status Begin(LeaseId lease, uint32_t need);
  // Leases that wait for room. Advance is then to be called when work outside the table has ended
  // that kept room: a read, a write, a demotion, a deletion.
  int64_t waiting_for_room() const;
  Effects Advance();
  // Chunks of the lease's context that have slots, from chunk 0 on without gaps. The lease is
  // granted.
  ResidentChunks Resident(LeaseId lease) const;

  // Plans how the chunks of the lease's context that are not in the arena come there, and gives
  // them slots, from the first one on, for as many as there is room: those to be recomputed are
  // claimed, the others, which are returned, belong to the context. Evicts chunks of idle contexts,
  // and adds their number to `*evicted`. Chunks from one on that can neither be read nor recomputed
  // are dropped. FinishLoad must follow, also after the lease's end.
  std::vector<ChunkLoad> BeginLoad(LeaseId lease, const LoadRules& rules, uint64_t* evicted);
  // Whether the load's slot is still waiting for it.
  bool IsLoading(std::string_view context_id, const ChunkLoad& load) const;
  // These chunks, which nobody reads (any more), are left to the lease to compute: it gets slots of
  // 8 bits. Returns those for which there is room, from the first one on; their loads are over.
  std::vector<ChunkSlot> LeaveToWorker(LeaseId lease, std::span<const ChunkLoad> loads,
                                       uint64_t* evicted);
  // `read[i]`: loads[i] is in its slot. A chunk that could not be read loses its copy on disk.
  void FinishLoad(std::string_view context_id, const std::vector<ChunkLoad>& loads,
                  const std::vector<bool>& read);

  // Gives the lease's context chunks from `first` on that other contexts have and that are equal to
  // those that the lease would compute. `wanted`: the identities of these full chunks, in several
  // ways in which they may have been computed; the way with the most chunks is taken. What the
  // context has from `first` on is dropped then. Returns the chunks, all resident; none if there
  // are none, or if the lease has claimed chunks there. Errors: ABORTED, INVALID_ARGUMENT (a
  // stateless lease or a rebuild, an identity that is none).
  using Identities = std::vector<std::string>;
  absl::StatusOr<ResidentChunks> Share(LeaseId lease, uint32_t first,
                                       const std::vector<Identities>& wanted);

  // Claims slots for chunks [first, first + count), which must leave no gap. Chunks that the
  // context has from `first` on are removed from it and become the lease's; claiming a chunk again
  // returns the same slot. Evicts idle contexts if necessary, but not for a rebuild, and adds the
  // number of evicted chunks to `*evicted`. Where room will appear when other leases end, the claim
  // waits, one at a time for each lease, if it `may_wait`. Errors: RESOURCE_EXHAUSTED (there is no
  // room, and waiting would not help; the lease continues and has no chunk of the claim, or only
  // those that it takes from its context), INVALID_ARGUMENT, ABORTED (stale or ended).
  absl::StatusOr<ClaimAnswer> Claim(LeaseId lease, uint32_t first, uint32_t count,
                                    uint64_t* evicted, bool may_wait = true);
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

  // The contexts that no lease holds.
  IdleKv& idle() { return idle_; }
  const IdleKv& idle() const { return idle_; }

  // True between BeginCommit and FinishCommit.
  bool Committing(LeaseId lease) const;

  uint64_t epoch() const { return epoch_; }
  const Geometry& geometry() const { return geometry_; }
  const SlotPool& slots() const { return pool_; }
  // Replaces the identities that contexts of all apps may share.
  void SetPublicChunks(std::unordered_set<std::string> identities) {
    kv_.public_chunks = std::move(identities);
  }
  uint32_t open_leases() const { return static_cast<uint32_t>(leases_.size()) - waiting_; }
  uint32_t waiting_leases() const { return waiting_; }
  const ArenaKv& kv() const { return kv_; }
  // Bytes of the arena that leases hold: what they claimed, what is quarantined for their writers,
  // and what their contexts have there. The rest gives way.
  uint64_t held_bytes() const;
  ContextKv KvOf(std::string_view context_id) const;
  std::vector<ContextChunk> ChunksOf(std::string_view context_id) const;

  // Checks all invariants and names the first violation; empty = none. For tests.
  std::string Audit() const;

 private:
  using Context = KvContext;
  using EvictionQueue = Evictions;
  struct Lease {
    uint64_t epoch = 0;
    WorkerInstance worker = 0;
    std::string context_id;
    bool granted = false;
    bool committing = false;
    bool rebuild = false;
    uint32_t told = 0;  // chunks with slots when the load began; some may be lost by now
    ClaimedChunks claimed = {};
    std::vector<ChunkIdentity> commit = {};
    uint32_t need = 0;
    bool ahead = false;                             // its call has not come
    bool admitted = false;                          // it can be given what it needs
    uint32_t to_load = 0;                           // slots that BeginLoad will take
    std::optional<ClaimRange> wish = std::nullopt;  // a claim that waits
    uint32_t overtaken = 0;  // leases that were admitted before it since it has waited
  };
  // What there would be if a lease took `takes` slots of 8 bits more and then needed `more`.
  struct Change {
    LeaseId lease = 0;
    uint32_t takes = 0;
    uint32_t more = 0;
  };

  absl::StatusOr<Lease*> Granted(LeaseId id);
  // Admission (lease_admission.cc).
  struct Holding {
    LeaseId lease = 0;
    std::vector<KvSlot> slots = {};  // that stay as long as it does
  };
  // Of the leases that are granted, and of `also`.
  std::vector<Holding> HoldingsWith(LeaseId also) const;
  bool CanAllFinish(const Change& change) const;
  // Whether the lease, which then has `held` chunks, may take so many slots more.
  bool HasRoomFor(LeaseId id, uint32_t takes, uint32_t held) const;
  bool TryAdmit(LeaseId id);
  bool MayOvertake(LeaseId id) const;
  void CountOvertaken(LeaseId by);
  bool OthersAdmitted(LeaseId id) const;
  // Whether all can finish although the lease has these slots more, and then needs `more`.
  bool StandWell(LeaseId id, std::span<const SlotAt> slots, uint32_t more);
  bool AllCanFinishNow() const { return CanAllFinish({}); }
  uint32_t HeldChunks(const Lease& lease) const;
  bool WaitsForRoom(LeaseId id, const Lease& lease) const {
    return lease.wish.has_value() || room_queue_.contains(id);
  }
  void Advance(Effects* effects);
  void ServeWishes(Effects* effects);
  void AdmitWaiting(Effects* effects);
  void RefuseIfStuck(Effects* effects);
  bool RoomIsComing() const { return pool_.pins() > 0 || locked_contexts_ > 0; }
  absl::Status NoRoom(uint32_t chunks) const;
  absl::StatusOr<ClaimRange> CheckClaim(const Lease& lease, uint32_t first, uint32_t count) const;
  // The slots of the claim; nullopt: there are none now.
  std::optional<std::vector<ChunkSlot>> TryClaim(LeaseId id, const ClaimRange& range,
                                                 uint64_t* evicted);
  struct ClaimSizes {
    uint32_t fresh = 0;    // slots that are new to the lease
    uint32_t dropped = 0;  // chunks of the context that it replaces
  };
  ClaimSizes SizesOf(const Lease& lease, const ClaimRange& range) const;
  // Which of the context's chunks are to be recomputed; cuts the context behind what can be used.
  std::set<uint32_t> PlanLoad(const LoadRules& rules, bool rebuild, ContextChunks* kv);
  void LeaveSmallerSlots(ContextChunks* kv);
  Context* ContextOf(const Lease& lease);
  void ResetArena(const Geometry& geometry);
  EvictionQueue MakeEvictionQueue() { return idle_.MakeEvictions(); }
  std::vector<ChunkLoad> TakeLoadSlots(Lease* lease, LeaseId id,
                                       const std::set<uint32_t>& recompute, const LoadRules& rules,
                                       uint64_t* evicted);
  void GiveUpLoadSlots(Lease* lease, const std::vector<uint32_t>& missing,
                       const std::vector<ChunkLoad>& loads);
  // A slot for a lease; evicts the queue's next chunks while there is no gap for it.
  std::optional<SlotAt> ClaimEvicting(uint64_t bytes, LeaseId lease, EvictionQueue* queue,
                                      uint64_t* evicted) {
    return queue->Claim(bytes, lease, evicted);
  }
  void QuarantineOrFree(SlotAt slot, WorkerInstance worker);
  void DropBroken(Lease& lease);
  void End(LeaseId id);
  Effects EndAndAdvance(LeaseId id);
  void DropEverywhere(const Context* except, uint32_t number, SlotAt slot);
  std::string AuditShared() const;
  void Collect(Context* context) { kv_.Collect(context); }

  const LeaseLimits limits_;
  uint64_t epoch_;
  WorkerInstance worker_ = 0;  // attached last
  ArenaKv kv_;
  Geometry& geometry_ = kv_.geometry;
  SlotPool& pool_ = kv_.pool;
  std::unordered_map<std::string, Context>& contexts_ = kv_.contexts;
  IdleKv idle_;
  std::map<LeaseId, Lease> leases_;
  std::map<WorkerInstance, int> connected_;  // connections of each live worker
  LeaseId last_lease_ = 0;
  uint32_t waiting_ = 0;
  std::set<LeaseId> room_queue_;  // are not admitted: they wait for room; oldest first
  uint32_t locked_contexts_ = 0;
};

}  // namespace withy::context_store
