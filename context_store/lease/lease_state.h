// The open leases and the KV of all contexts: the state that lease_table.h owns and that
// lease_admission.h (who gets room), lease_chunks.h (how a context's chunks come to a lease) and
// lease_room.h (whether all can finish) work on.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "context_store/arena/arena_kv.h"
#include "context_store/arena/chunks.h"

namespace withy::context_store {

using WorkerInstance = uint64_t;  // one run of a worker, chosen at random; never 0

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

// Chunks [first, first + count).
struct ClaimRange {
  uint32_t first = 0;
  uint32_t count = 0;

  uint32_t end() const { return first + count; }
};

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

// What of `need` is not there if there is `have`.
constexpr uint32_t Lacking(uint32_t need, uint32_t have) { return need > have ? need - have : 0; }

// Not thread-safe: guarded by the lock of the table that owns it.
struct LeaseState {
  ArenaKv kv;
  std::map<LeaseId, Lease> leases;
  std::set<LeaseId> room_queue;  // are not admitted: they wait for room; oldest first
  uint32_t waiting = 0;          // leases that are not granted
  uint32_t locked_contexts = 0;

  // Errors: ABORTED (the lease is over), INVALID_ARGUMENT (it waits, or is being committed).
  absl::StatusOr<Lease*> Granted(LeaseId id);
  // nullptr: of a stateless lease.
  KvContext* ContextOf(const Lease& lease);
  // Chunks that have slots: the lease's and its context's.
  uint32_t HeldChunks(const Lease& lease) const;
  bool WaitsForRoom(LeaseId id) const {
    return leases.at(id).wish.has_value() || room_queue.contains(id);
  }
  // Number of leases that do. LeaseTable::Advance is then to be called when work outside the table
  // has ended that kept room: a read, a write, a demotion, a deletion.
  int64_t waiting_for_room() const;
  bool RoomIsComing() const { return kv.pool.counts().pins > 0 || locked_contexts > 0; }
  // True between LeaseTable::BeginCommit and FinishCommit.
  bool Committing(LeaseId id) const;
  uint32_t open_leases() const { return static_cast<uint32_t>(leases.size()) - waiting; }
  // Bytes of the arena that leases hold: what they claimed, what is quarantined for their writers,
  // and what their contexts have there. The rest gives way.
  uint64_t held_bytes() const;
};

}  // namespace withy::context_store
