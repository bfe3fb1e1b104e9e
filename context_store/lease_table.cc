#include "context_store/lease_table.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "context_store/eviction.h"
#include "context_store/invariant.h"

namespace withy::context_store {
namespace {

constexpr uint32_t kMaxClaimChunks = 1 << 16;

absl::Status Stale(uint64_t epoch, uint64_t current) {
  return absl::AbortedError(
      absl::StrCat("epoch ", epoch, " is over, the arena's is ", current, ": attach again"));
}

}  // namespace

LeaseTable::LeaseTable(const LeaseLimits& limits, uint64_t first_epoch)
    : limits_(limits), epoch_(first_epoch) {}

absl::StatusOr<Attached> LeaseTable::Attach(WorkerInstance worker, const Geometry& geometry) {
  WITHY_RETURN_IF_ERROR(CheckGeometry(geometry, limits_.arena_bytes));
  if (worker == 0) return absl::InvalidArgumentError("worker_instance must not be 0");
  const bool same = geometry == geometry_;
  const bool other_lives = std::any_of(connected_.begin(), connected_.end(),
                                       [&](const auto& live) { return live.first != worker; });
  if (!same && other_lives) {
    return absl::FailedPreconditionError(
        "another live worker holds the arena with another model or geometry: stop it first");
  }
  Attached attached;
  attached.epoch = ++epoch_;
  // This worker no longer writes its earlier claims. Other workers may still be writing theirs.
  for (auto& [id, lease] : leases_) {
    if (lease.committing) continue;
    if (lease.worker == worker) {
      FreeClaimed(&lease.claimed, &pool_);
    } else {
      DropBroken(lease);
    }
    attached.ended.push_back(id);
  }
  // Waiting leases have an older epoch, too: one that is granted its context here is ended in a
  // later iteration.
  for (LeaseId id : attached.ended) End(id);
  pool_.Release(worker);
  if (!same) ResetArena(geometry);
  worker_ = worker;
  attached.block_count = pool_.counts().total;
  return attached;
}

void LeaseTable::ResetArena(const Geometry& geometry) {
  for (auto& [id, lease] : leases_) {  // leases in commit: their records count, their KV is lost
    lease.claimed.clear();
    lease.commit.clear();
  }
  for (auto it = contexts_.begin(); it != contexts_.end();) {
    it->second.chunks.clear();
    const bool empty = it->second.holder == 0 && !it->second.locked && it->second.waiting.empty();
    it = empty ? contexts_.erase(it) : std::next(it);
  }
  geometry_ = geometry;
  const uint64_t blocks = limits_.arena_bytes / geometry.block_bytes;
  pool_.Reset(static_cast<uint32_t>(std::min<uint64_t>(blocks, UINT32_MAX)));
}

void LeaseTable::WorkerConnected(WorkerInstance worker) { ++connected_[worker]; }

Effects LeaseTable::WorkerGone(WorkerInstance worker) {
  Effects effects;
  const auto live = connected_.find(worker);
  if (live == connected_.end() || --live->second > 0) return effects;
  connected_.erase(live);
  std::vector<LeaseId> broken;
  for (const auto& [id, lease] : leases_) {
    if (lease.worker == worker && !lease.committing) broken.push_back(id);
  }
  for (LeaseId id : broken) {
    DropBroken(leases_.at(id));
    const Effects one = End(id);
    effects.ended.push_back(id);
    effects.granted.insert(effects.granted.end(), one.granted.begin(), one.granted.end());
  }
  // A lease granted in the loop may belong to the dead worker and be ended later in the loop.
  std::erase_if(effects.granted, [&](LeaseId id) { return !leases_.contains(id); });
  pool_.Release(worker);
  return effects;
}

absl::StatusOr<LeaseOpening> LeaseTable::Open(uint64_t epoch, std::string_view context_id,
                                              bool rebuild) {
  if (epoch != epoch_ || worker_ == 0) return Stale(epoch, epoch_);
  if (open_leases() >= limits_.open) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit of ", Counted(limits_.open, "open lease"), " is reached"));
  }
  Lease lease{.epoch = epoch,
              .worker = worker_,
              .context_id = std::string(context_id),
              .rebuild = rebuild && !context_id.empty()};
  LeaseOpening opening{++last_lease_, true};
  if (!context_id.empty()) {
    Context& context = contexts_[lease.context_id];
    if (context.locked) return absl::AbortedError("the context is being deleted");
    if (context.holder != 0) {
      if (waiting_ >= limits_.waiting) {
        return absl::ResourceExhaustedError(
            absl::StrCat("the limit of ", Counted(waiting_, "waiting lease"), " is reached"));
      }
      ++waiting_;
      context.waiting.push_back(opening.id);
      opening.granted = false;
    } else {
      context.holder = opening.id;
    }
  }
  lease.granted = opening.granted;
  leases_.emplace(opening.id, std::move(lease));
  return opening;
}

absl::StatusOr<LeaseTable::Lease*> LeaseTable::Granted(LeaseId id) {
  const auto found = leases_.find(id);
  if (found == leases_.end()) return absl::AbortedError("the lease is over");
  // An attach ends all leases of older epochs except those in commit.
  Lease& lease = found->second;
  if (!lease.granted || lease.committing) {
    return absl::InvalidArgumentError(lease.committing ? "the lease is being committed"
                                                       : "the lease still waits for its context");
  }
  return &lease;
}

LeaseTable::Context* LeaseTable::ContextOf(const Lease& lease) {
  return lease.context_id.empty() ? nullptr : &contexts_.at(lease.context_id);
}

ResidentChunks LeaseTable::Resident(LeaseId id) const {
  const auto lease = leases_.find(id);
  if (lease == leases_.end() || lease->second.context_id.empty()) return {};
  return contexts_.at(lease->second.context_id).chunks;
}

absl::StatusOr<std::vector<ChunkBlocks>> LeaseTable::Claim(LeaseId id, uint32_t first,
                                                           uint32_t count, uint64_t* evicted) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  Context* context = ContextOf(*lease);
  const ResidentChunks none;
  const uint32_t next = NextChunk(lease->claimed, context == nullptr ? none : context->chunks);
  if (count == 0 || count > kMaxClaimChunks || first > next) {
    return absl::InvalidArgumentError(
        absl::StrCat("claim of ", Counted(count, "chunk"), " from ", first, ": 1 to ",
                     kMaxClaimChunks, " are possible, without a gap after chunk ", next));
  }
  const uint32_t end = first + count;
  uint32_t fresh = 0;  // chunks that need new blocks
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    const bool owned = lease->claimed.contains(chunk) || (!lease->rebuild && chunk < next);
    fresh += owned ? 0 : 1;
  }
  if (!MakeRoom(fresh, !lease->rebuild, evicted)) {
    if (lease->rebuild) context->no_room = context->last_used;
    return absl::ResourceExhaustedError(
        absl::StrCat("no room in the KV arena: ", Counted(fresh, "chunk"), " of ", geometry_.layers,
                     " blocks wanted, ", pool_.counts().free, " of ", pool_.counts().total,
                     " blocks free, ", pool_.counts().quarantined, " quarantined"));
  }
  if (context != nullptr && !lease->rebuild && first < context->chunks.size()) {
    TakeOver(first, id, &context->chunks, &lease->claimed, &pool_);
  }
  std::vector<ChunkBlocks> claimed;
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    BlockIds& blocks = lease->claimed[chunk];
    if (blocks.empty()) {
      Invariant(pool_.Claim(geometry_.layers, id, &blocks), "room was made for the claim");
    }
    claimed.push_back({chunk, blocks});
  }
  return claimed;
}

bool LeaseTable::MakeRoom(uint32_t chunks, bool evict, uint64_t* evicted) {
  const uint64_t wanted = uint64_t{chunks} * geometry_.layers;
  const uint64_t free = pool_.counts().free;
  if (wanted <= free) return true;
  if (!evict) return false;
  const uint64_t missing = (wanted - free + geometry_.layers - 1) / geometry_.layers;
  std::vector<IdleContext> idle;
  std::vector<Context*> contexts;
  for (auto& [context_id, context] : contexts_) {
    if (context.holder != 0 || context.locked || context.chunks.empty()) continue;
    idle.push_back({context.last_used, static_cast<uint32_t>(context.chunks.size())});
    contexts.push_back(&context);
  }
  const std::vector<Eviction> plan = PlanEviction(idle, missing);
  for (const Eviction& eviction : plan) {
    *evicted += idle[eviction.context].chunks - eviction.keep_chunks;
    Truncate(eviction.keep_chunks, &contexts[eviction.context]->chunks, &pool_);
  }
  return !plan.empty();
}

absl::Status LeaseTable::Fault(LeaseId id, uint32_t chunk) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  Context* context = ContextOf(*lease);
  if (lease->rebuild) {
    return absl::InvalidArgumentError("fault during a rebuild: claim the chunk, or abort");
  }
  if (context == nullptr || chunk >= context->chunks.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fault of chunk ", chunk, ", which is not resident"));
  }
  // The blocks go to the worker, not to the free list: chunks that it claimed after these must stay
  // contiguous.
  TakeOver(chunk, id, &context->chunks, &lease->claimed, &pool_);
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> LeaseTable::BeginCommit(LeaseId id, std::vector<ChunkIdentity> chunks,
                                                 const StampCheck& stamp) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  const Context* context = ContextOf(*lease);
  if (context == nullptr) chunks.clear();  // a stateless call keeps nothing
  const ResidentChunks none;
  WITHY_RETURN_IF_ERROR(
      CheckCommit(lease->claimed, context == nullptr ? none : context->chunks, chunks));
  size_t keep = 0;
  for (; keep < chunks.size(); ++keep) {
    const auto claimed = lease->claimed.find(static_cast<uint32_t>(keep));
    if (claimed == lease->claimed.end()) continue;  // belongs to the context
    const BlockIds& blocks = claimed->second;
    if (!std::all_of(blocks.begin(), blocks.end(),
                     [&](uint32_t b) { return stamp(b, lease->epoch); }))
      break;
  }
  const uint32_t dropped = static_cast<uint32_t>(chunks.size() - keep);
  chunks.resize(keep);
  lease->commit = std::move(chunks);
  lease->committing = true;
  return dropped;
}

Effects LeaseTable::FinishCommit(LeaseId id, bool stored) {
  Lease& lease = leases_.at(id);
  Invariant(lease.committing, "only a lease in commit finishes one");
  Context* context = ContextOf(lease);
  if (stored && context != nullptr) {
    if (lease.epoch == epoch_) {
      KeepCommitted(std::move(lease.commit), &context->chunks, &lease.claimed, &pool_);
    } else if (!lease.rebuild) {
      Truncate(0, &context->chunks, &pool_);  // the record has changed without this KV
    }
  }
  FreeClaimed(&lease.claimed, &pool_);
  return End(id);
}

Effects LeaseTable::Abort(LeaseId id) {
  const auto lease = leases_.find(id);
  if (lease == leases_.end() || lease->second.committing) return {};
  FreeClaimed(&lease->second.claimed, &pool_);
  return End(id);
}

Effects LeaseTable::Break(LeaseId id) {
  const auto lease = leases_.find(id);
  if (lease == leases_.end() || lease->second.committing) return {};
  DropBroken(lease->second);
  return End(id);
}

bool LeaseTable::Committing(LeaseId id) const {
  const auto lease = leases_.find(id);
  return lease != leases_.end() && lease->second.committing;
}

void LeaseTable::QuarantineOrFree(std::span<const uint32_t> blocks, WorkerInstance worker) {
  if (connected_.contains(worker)) {
    pool_.Quarantine(blocks, worker);
  } else {
    pool_.Free(blocks);  // the worker never mapped the arena, or is dead
  }
}

void LeaseTable::DropBroken(Lease& lease) {
  for (const auto& [chunk, blocks] : lease.claimed) QuarantineOrFree(blocks, lease.worker);
  lease.claimed.clear();
  Context* context = ContextOf(lease);
  if (!lease.granted || context == nullptr || context->chunks.empty()) return;
  const ResidentChunk& last = context->chunks.back();
  if (last.identity.tokens == kChunkTokens) return;
  QuarantineOrFree(last.where.blocks, lease.worker);
  context->chunks.pop_back();
}

// Removes the lease. If it held a context, grants that to the next lease in line.
Effects LeaseTable::End(LeaseId id) {
  Effects effects;
  const auto found = leases_.find(id);
  Invariant(found != leases_.end() && found->second.claimed.empty(),
            "an ending lease has no blocks");
  const Lease lease = std::move(found->second);
  leases_.erase(found);
  if (!lease.granted) --waiting_;
  if (lease.context_id.empty()) return effects;
  Context& context = contexts_.at(lease.context_id);
  if (!lease.granted) {
    std::erase(context.waiting, id);
  } else {
    context.holder = 0;
    if (!lease.rebuild) context.last_used = ++uses_;
    if (!context.waiting.empty()) {
      context.holder = context.waiting.front();
      context.waiting.pop_front();
      leases_.at(context.holder).granted = true;
      --waiting_;
      effects.granted.push_back(context.holder);
    }
  }
  EraseIfEmpty(lease.context_id);
  return effects;
}

void LeaseTable::EraseIfEmpty(const std::string& context_id) {
  const auto found = contexts_.find(context_id);
  const Context& context = found->second;
  if (context.holder == 0 && !context.locked && context.waiting.empty() && context.chunks.empty()) {
    contexts_.erase(found);
  }
}

absl::Status LeaseTable::LockContext(std::string_view context_id) {
  Context& context = contexts_[std::string(context_id)];
  if (context.holder != 0 || context.locked) {
    return absl::AbortedError("a call runs on the context, or it is being deleted: retry");
  }
  context.locked = true;
  return absl::OkStatus();
}

void LeaseTable::UnlockContext(std::string_view context_id, bool erase) {
  Context& context = contexts_.at(std::string(context_id));
  context.locked = false;
  if (erase) Truncate(0, &context.chunks, &pool_);
  EraseIfEmpty(std::string(context_id));
}

uint64_t LeaseTable::ResidentBytes(std::string_view context_id) const {
  const auto context = contexts_.find(std::string(context_id));
  if (context == contexts_.end()) return 0;
  return uint64_t{context->second.chunks.size()} * geometry_.layers * geometry_.block_bytes;
}

std::optional<LeaseTable::Upgrade> LeaseTable::NextUpgrade() const {
  constexpr uint32_t kFullPercent = 100;
  std::optional<Upgrade> best;
  uint64_t best_used = 0;
  for (const auto& [context_id, context] : contexts_) {
    if (context.holder != 0 || context.locked || context.no_room == context.last_used) continue;
    uint32_t lowest = kFullPercent;
    for (const ResidentChunk& chunk : context.chunks) {
      lowest = std::min(lowest, chunk.identity.model_level_percent);
    }
    if (lowest == kFullPercent || (best.has_value() && context.last_used < best_used)) continue;
    best = {context_id, lowest};
    best_used = context.last_used;
  }
  return best;
}

std::string LeaseTable::Audit() const {
  std::vector<int> owners(pool_.counts().total);
  uint32_t claimed = 0, resident = 0, waiting = 0;
  for (const auto& [id, lease] : leases_) {
    for (const auto& [chunk, blocks] : lease.claimed) {
      if (blocks.size() != geometry_.layers) return absl::StrCat("chunk ", chunk, " lacks a layer");
      for (uint32_t b : blocks) {
        if (pool_.state(b) != BlockPool::State::kClaimed || pool_.owner(b) != id || ++owners[b] > 1)
          return absl::StrCat("block ", b, " of lease ", id, " is not its own");
      }
      claimed += geometry_.layers;
    }
    if (!lease.granted && !lease.claimed.empty())
      return absl::StrCat("lease ", id, " waits with blocks");
    waiting += lease.granted ? 0 : 1;
  }
  for (const auto& [context_id, context] : contexts_) {
    if (context.holder != 0 && !leases_.contains(context.holder))
      return "a holder that is not a lease";
    if (context.holder == 0 && !context.waiting.empty()) return "a lease waits for a free context";
    for (uint32_t i = 0; i < context.chunks.size(); ++i) {
      const ChunkBlocks& where = context.chunks[i].where;
      if (where.chunk != i || where.blocks.size() != geometry_.layers)
        return "a chunk out of place";
      for (uint32_t b : where.blocks) {
        if (pool_.state(b) != BlockPool::State::kResident || ++owners[b] > 1)
          return absl::StrCat("block ", b, " of context ", context_id, " is not its own");
      }
      resident += geometry_.layers;
    }
  }
  const BlockPool::Counts& counts = pool_.counts();
  if (claimed != counts.claimed || resident != counts.resident || waiting != waiting_ ||
      counts.free + counts.claimed + counts.resident + counts.quarantined != counts.total) {
    return "a block or a waiting lease got lost";
  }
  return "";
}

}  // namespace withy::context_store
