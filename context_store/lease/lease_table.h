// The KV side of all contexts: who may write which slots, which leases wait, and how leases begin
// and end. Pure state: no bytes, disk, clock or threads. Neighbours: lease_state.h is what it owns,
// lease_admission.h gives room, lease_chunks.h brings chunks to a lease, idle_kv.h has the contexts
// that no lease holds, lease_book.h locks it and records.
//
// Invariants (tests check them by lease_audit_testing.h): a slot has one owner, or several contexts
// that only read it; a lease of an older epoch never changes a context's chunks; a slot that a
// worker may still be writing is not reused before that worker has attached again or is dead;
// chunks of a context that is leased stay where they are; the leases that are admitted can all be
// given what they need, in some order.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "context_store/arena/arena_directory.h"
#include "context_store/lease/idle_kv.h"
#include "context_store/lease/kv_adoption.h"
#include "context_store/lease/lease_admission.h"
#include "context_store/lease/lease_chunks.h"
#include "context_store/lease/lease_room.h"
#include "context_store/lease/lease_state.h"
#include "policy/kv/kv_eviction.h"

namespace withy::context_store {

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

// Not thread-safe: guarded by its owner's lock.
class LeaseTable {
 public:
  // Epochs are first_epoch + 1, first_epoch + 2, … `directory`: borrowed, may be null.
  LeaseTable(const LeaseLimits& limits, uint64_t first_epoch, ArenaDirectory* directory = nullptr);
  LeaseTable(const LeaseTable&) = delete;
  LeaseTable& operator=(const LeaseTable&) = delete;

  // If the geometry is that of the chunks in the directory, their entries stay until
  // KvAdoption::End. Errors: FAILED_PRECONDITION (another live worker has another geometry),
  // INVALID_ARGUMENT (invalid geometry, or not even one chunk fits the arena).
  absl::StatusOr<Attached> Attach(WorkerInstance worker, const Geometry& geometry);
  // Replaces the identities that contexts of all apps may share.
  void SetPublicChunks(std::unordered_set<std::string> identities) {
    state_.kv.public_chunks = std::move(identities);
  }
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
  // Claims slots for chunks [first, first + count), which must leave no gap. Chunks that the
  // context has from `first` on are removed from it and become the lease's; claiming a chunk again
  // returns the same slot. Evicts idle contexts if necessary, but not for a rebuild, and adds the
  // number of evicted chunks to `*evicted`. Where room will appear when other leases end, the claim
  // waits, one at a time for each lease, if it `may_wait`. Errors: RESOURCE_EXHAUSTED (there is no
  // room, and waiting would not help; the lease continues and has no chunk of the claim, or only
  // those that it takes from its context), INVALID_ARGUMENT, ABORTED (stale or ended).
  absl::StatusOr<ClaimAnswer> Claim(LeaseId lease, uint32_t first, uint32_t count,
                                    uint64_t* evicted, bool may_wait = true) {
    return admission_.Claim(lease, first, count, evicted, may_wait);
  }
  // See LeaseState::waiting_for_room.
  Effects Advance();

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

  // How chunks of the leases' contexts come to them.
  LeaseChunks& chunks() { return chunks_; }
  // The contexts that no lease holds.
  IdleKv& idle() { return idle_; }
  const IdleKv& idle() const { return idle_; }
  KvAdoption adoption() { return KvAdoption(state_.kv); }

  uint64_t epoch() const { return epoch_; }
  const LeaseState& state() const { return state_; }
  const ArenaKv& kv() const { return state_.kv; }

 private:
  void ResetArena(const Geometry& geometry);
  // What the lease claimed, and the chunk that it may be extending, is freed, or quarantined while
  // its worker lives.
  void DropBroken(Lease& lease);
  void End(LeaseId id);
  Effects EndAndAdvance(LeaseId id);

  const LeaseLimits limits_;
  uint64_t epoch_;
  WorkerInstance worker_ = 0;                // attached last
  std::map<WorkerInstance, int> connected_;  // connections of each live worker
  LeaseId last_lease_ = 0;
  LeaseState state_;
  IdleKv idle_;
  LeaseRoom room_;
  LeaseAdmission admission_;
  LeaseChunks chunks_;
};

}  // namespace withy::context_store
