// The KV side of all contexts: which chunks are in the arena, who may write which blocks, who
// waits. Pure state: no bytes, no disk, no clock, no threads. Neighbours: block_pool.h (who owns a
// block), eviction.h (what goes when room is needed), store.cc (locks it, moves bytes and records
// beside it).
//
// Always: a block has one owner; a lease of an older epoch never changes what a context keeps; a
// block that a worker may still be writing is not handed out again before that worker has attached
// anew or is dead.
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

namespace withy::context_store {

using LeaseId = uint64_t;         // never 0
using WorkerInstance = uint64_t;  // one run of a worker, chosen by it at random; never 0

inline constexpr uint32_t kChunkTokens = 16;
inline constexpr size_t kIdentityBytes = 32;

// What a worker serves; blocks of another geometry are of no use to it.
struct Geometry {
  std::string model_id;  // 32 bytes
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t block_bytes = 0;
  bool operator==(const Geometry&) const = default;
};

struct ChunkIdentity {
  std::string identity;  // 32 bytes
  uint32_t tokens = 0;   // 1..16; fewer than 16 only in the last chunk
  uint32_t model_level_percent = 0;
};

struct ChunkBlocks {
  uint32_t chunk = 0;
  BlockIds blocks;  // one a layer
};

struct ResidentChunk {
  ChunkBlocks where;
  ChunkIdentity identity;
};

struct LeaseLimits {
  uint64_t arena_bytes = 0;
  uint32_t open = 1024;    // leases that hold a context or blocks
  uint32_t waiting = 256;  // leases that wait for a context
};

struct Attached {
  uint64_t epoch = 0;
  uint32_t block_count = 0;
  std::vector<LeaseId> ended;  // stale now; their streams end
};

// What an operation did to other leases.
struct Effects {
  std::vector<LeaseId> granted;  // were waiting, hold their context now
  std::vector<LeaseId> ended;    // are gone
};

struct LeaseOpening {
  LeaseId id = 0;
  bool granted = false;  // false: waits; an Effects.granted will name it
};

// Not thread-safe: its owner's lock guards it.
class LeaseTable {
 public:
  // Epochs are first_epoch + 1, + 2, …
  LeaseTable(const LeaseLimits& limits, uint64_t first_epoch);

  // Errors: FAILED_PRECONDITION (another live worker has another geometry), INVALID_ARGUMENT (a
  // geometry that cannot be, or of which not one chunk fits).
  absl::StatusOr<Attached> Attach(WorkerInstance worker, const Geometry& geometry);
  // A worker maps the arena from now on (counted: it may do so twice) …
  void WorkerConnected(WorkerInstance worker);
  // … and no more: it is dead, its leases end and its blocks are free.
  Effects WorkerGone(WorkerInstance worker);

  // `context_id` empty = a stateless call. `rebuild`: what is claimed lies beside what the context
  // has, until a commit puts it in its place. Errors: ABORTED (stale epoch, or the context is being
  // deleted), RESOURCE_EXHAUSTED (limits).
  absl::StatusOr<LeaseOpening> Open(uint64_t epoch, std::string_view context_id,
                                    bool rebuild = false);
  // What the lease's context has in the arena, from chunk 0 on without gaps. The lease was granted.
  std::vector<ResidentChunk> Resident(LeaseId lease) const;

  // Blocks for `count` chunks from `first` on, which must leave no gap. Chunks that the context has
  // from `first` on are taken out of it and become the lease's; claiming a chunk again gives the
  // same blocks. Evicts idle contexts when it must, though not for a rebuild; their number of
  // chunks is added to `*evicted`.
  // Errors: RESOURCE_EXHAUSTED (nothing is claimed, the lease lives on), INVALID_ARGUMENT, ABORTED
  // (stale, gone).
  absl::StatusOr<std::vector<ChunkBlocks>> Claim(LeaseId lease, uint32_t first, uint32_t count,
                                                 uint64_t* evicted);
  // Forgets `chunk` and all after it. Errors: ABORTED, INVALID_ARGUMENT (not resident).
  absl::Status Fault(LeaseId lease, uint32_t chunk);

  // Whether a block's header carries the epoch of its lease.
  using StampCheck = std::function<bool(uint32_t block, uint64_t epoch)>;
  // Checks what the lease wants to leave behind and holds the lease until FinishCommit. From the
  // first chunk with a wrong stamp on nothing will be kept; returns how many chunks that is.
  // Errors: ABORTED, INVALID_ARGUMENT (a chunk with a gap, a bad identity, or a full chunk that
  // changed without a claim).
  absl::StatusOr<uint32_t> BeginCommit(LeaseId lease, std::vector<ChunkIdentity> chunks,
                                       const StampCheck& stamp);
  // Ends the lease. `stored`: the record is on disk, and the chunks of BeginCommit are the
  // context's now; otherwise what was claimed is freed and the context keeps what it had.
  Effects FinishCommit(LeaseId lease, bool stored);
  // Ends the lease of a worker that has stopped writing: what it claimed is free.
  Effects Abort(LeaseId lease);
  // Ends the lease of a worker that may still be writing: what it claimed, and the chunk it may
  // have been extending, are quarantined as long as it lives. A lease in commit ends by
  // FinishCommit instead.
  Effects Break(LeaseId lease);

  // Keeps leases off a context that is being deleted. Errors: ABORTED (leased, or waited for).
  absl::Status LockContext(std::string_view context_id);
  // Ends that; `erase` drops the context's KV.
  void UnlockContext(std::string_view context_id, bool erase);

  // Between BeginCommit and FinishCommit.
  bool Committing(LeaseId lease) const;

  uint64_t epoch() const { return epoch_; }
  uint32_t block_bytes() const { return geometry_.block_bytes; }
  const BlockPool::Counts& blocks() const { return pool_.counts(); }
  uint32_t open_leases() const { return static_cast<uint32_t>(leases_.size()) - waiting_; }
  uint32_t waiting_leases() const { return waiting_; }
  uint64_t ResidentBytes(std::string_view context_id) const;

  // The context that is worth a rebuild: idle, a chunk below the full level, used last. One that
  // found no room is left out until its next use.
  struct Upgrade {
    std::string context_id;
    uint32_t level_percent = 0;  // of its lowest chunk
  };
  std::optional<Upgrade> NextUpgrade() const;

  // Walks everything and names the first thing that does not hold; empty = all is well. For tests.
  std::string Audit() const;

 private:
  struct Context {
    std::vector<ResidentChunk> chunks;  // where.chunk == index
    LeaseId holder = 0;
    bool locked = false;
    uint64_t last_used = 0;
    uint64_t no_room = UINT64_MAX;  // the last_used at which a rebuild found none
    std::deque<LeaseId> waiting;
  };
  struct Lease {
    uint64_t epoch = 0;
    WorkerInstance worker = 0;
    std::string context_id;
    bool granted = false;
    bool committing = false;
    bool rebuild = false;
    std::map<uint32_t, BlockIds> claimed = {};
    std::vector<ChunkIdentity> commit = {};
  };

  absl::StatusOr<Lease*> Granted(LeaseId id);
  Context* ContextOf(const Lease& lease);
  uint32_t NextChunk(const Lease& lease, const Context* context) const;
  absl::Status CheckGeometry(const Geometry& geometry) const;
  absl::Status CheckChunks(const Lease& lease, const Context* context,
                           const std::vector<ChunkIdentity>& chunks) const;
  void ResetArena(const Geometry& geometry);
  uint32_t FreshChunks(const Lease& lease, uint32_t first, uint32_t end, uint32_t next) const;
  bool MakeRoom(uint32_t chunks, bool evict, uint64_t* evicted);
  void Truncate(Context& context, uint32_t keep_chunks);
  void TakeOver(Context& context, uint32_t first, LeaseId id, Lease& lease);
  void KeepCommitted(Context& context, Lease& lease);
  void QuarantineOrFree(std::span<const uint32_t> blocks, WorkerInstance worker);
  void DropClaimed(Lease& lease);
  void DropBroken(Lease& lease);
  Effects End(LeaseId id);
  void EraseIfEmpty(const std::string& context_id);

  const LeaseLimits limits_;
  uint64_t epoch_;
  Geometry geometry_;
  WorkerInstance worker_ = 0;  // the one that attached last
  BlockPool pool_;
  std::unordered_map<std::string, Context> contexts_;
  std::map<LeaseId, Lease> leases_;
  std::map<WorkerInstance, int> connected_;  // connections of each live worker
  LeaseId last_lease_ = 0;
  uint32_t waiting_ = 0;
  uint64_t uses_ = 0;  // counts the ends of leases: the clock of last_used
};

}  // namespace withy::context_store
