#include "context_store/lease_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "context_store/invariant.h"

namespace withy::context_store {
namespace {

constexpr uint32_t kMaxClaimChunks = 1 << 16;
constexpr uint64_t kStoresOwn = UINT64_MAX;  // owner of slots that no lease claimed

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
  attached.reset = !same;
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
  return attached;
}

void LeaseTable::ResetArena(const Geometry& geometry) {
  for (auto& [id, lease] : leases_) {  // leases in commit: their records count, their KV is lost
    lease.claimed.clear();
    lease.commit.clear();
  }
  // Copies on disk stay there: they are of the model that was served until now.
  for (auto it = contexts_.begin(); it != contexts_.end();) {
    it->second.kv.chunks.clear();
    const bool empty = it->second.idle() && it->second.waiting.empty();
    it = empty ? contexts_.erase(it) : std::next(it);
  }
  geometry_ = geometry;
  pool_.Reset(limits_.arena_bytes);
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
  const ContextChunks& context = contexts_.at(lease->second.context_id).kv;
  ResidentChunks resident;
  for (uint32_t i = 0; i < ResidentPrefix(context); ++i) {
    const ContextChunk& chunk = context.chunks[i];
    resident.push_back({{i, *chunk.slot}, chunk.identity});
  }
  return resident;
}

std::vector<ChunkLoad> LeaseTable::BeginLoad(LeaseId id, uint64_t* evicted) {
  std::vector<ChunkLoad> loads;
  const absl::StatusOr<Lease*> lease = Granted(id);
  if (!lease.ok() || (*lease)->context_id.empty()) return loads;
  const std::vector<ContextChunk>& chunks = ContextOf(**lease)->kv.chunks;
  std::optional<EvictionQueue> queue;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].slot.has_value()) continue;
    if (!queue.has_value()) queue = MakeEvictionQueue();
    const auto slot =
        ClaimEvicting(geometry_.ChunkBytes(chunks[i].stored_format), id, &*queue, evicted);
    if (!slot.has_value()) break;
    loads.push_back({i, {*slot, chunks[i].stored_format}, chunks[i].stored, pool_.run()});
  }
  return loads;
}

void LeaseTable::FinishLoad(LeaseId id, const std::vector<ChunkLoad>& loads,
                            const std::vector<bool>& read) {
  const auto lease = leases_.find(id);
  Context* context = nullptr;
  if (lease != leases_.end()) context = ContextOf(lease->second);
  for (size_t i = 0; i < loads.size(); ++i) {
    if (loads[i].run != pool_.run()) return;  // the arena was emptied meanwhile
    const SlotAt slot = loads[i].slot.units;
    ContextChunk* chunk = nullptr;
    if (context != nullptr && loads[i].chunk < context->kv.chunks.size()) {
      chunk = &context->kv.chunks[loads[i].chunk];
    }
    const bool wanted = chunk != nullptr && chunk->stored == loads[i].stored;
    if (wanted && read[i]) {
      pool_.Keep(slot);
      chunk->slot = loads[i].slot;
      continue;
    }
    pool_.Free(slot);
    if (wanted) Truncate(loads[i].chunk, &context->kv, &pool_);
  }
  if (context != nullptr) Collect(context);
}

absl::StatusOr<std::vector<ChunkSlot>> LeaseTable::Claim(LeaseId id, uint32_t first, uint32_t count,
                                                         uint64_t* evicted) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  Context* context = ContextOf(*lease);
  ContextChunks none;
  ContextChunks& kv = context == nullptr ? none : context->kv;
  const uint32_t next = NextChunk(lease->claimed, kv);
  if (count == 0 || count > kMaxClaimChunks || first > next) {
    return absl::InvalidArgumentError(
        absl::StrCat("claim of ", Counted(count, "chunk"), " from ", first, ": 1 to ",
                     kMaxClaimChunks, " are possible, without a gap after chunk ", next));
  }
  const uint32_t end = first + count;
  // Whether the lease has the slot, or gets the context's.
  const auto owned = [&](uint32_t chunk) {
    if (lease->claimed.contains(chunk)) return true;
    if (lease->rebuild || chunk >= kv.chunks.size()) return false;
    const std::optional<KvSlot>& slot = kv.chunks[chunk].slot;
    return slot.has_value() && slot->format == KvFormat::kQ8;
  };
  uint32_t fresh = 0;  // chunks that need new slots
  for (uint32_t chunk = first; chunk < end; ++chunk) fresh += owned(chunk) ? 0 : 1;
  std::vector<SlotAt> slots;
  if (!ClaimSlots(fresh, id, !lease->rebuild, evicted, &slots)) {
    if (lease->rebuild) context->no_room = context->last_used;
    const SlotPool::Counts& counts = pool_.counts();
    return absl::ResourceExhaustedError(
        absl::StrCat("no room in the KV arena: ", Counted(fresh, "chunk"), " of ",
                     geometry_.ChunkBytes(KvFormat::kQ8), " bytes wanted, ", counts.free, " of ",
                     counts.total, " bytes free, ", counts.quarantined, " quarantined"));
  }
  if (context != nullptr && !lease->rebuild) {
    TakeOver(first, id, &kv, &lease->claimed, &pool_);
    Collect(context);
  }
  std::vector<ChunkSlot> claimed;
  for (uint32_t chunk = first; chunk < end; ++chunk) {
    const auto [slot, added] = lease->claimed.try_emplace(chunk, 0);
    if (added) {
      slot->second = slots.back();
      slots.pop_back();
    }
    claimed.push_back({chunk, {slot->second, KvFormat::kQ8}});
  }
  Invariant(slots.empty(), "each new slot has its chunk");
  return claimed;
}

LeaseTable::EvictionQueue LeaseTable::MakeEvictionQueue(const Context* except) {
  EvictionQueue queue;
  std::vector<IdleContext> idle;
  for (auto& [context_id, context] : contexts_) {
    if (!context.idle() || &context == except) continue;
    IdleContext& one = idle.emplace_back(IdleContext{.last_used = context.last_used});
    for (const ContextChunk& chunk : context.kv.chunks) {
      one.chunks.push_back(chunk.slot.has_value() ? geometry_.ChunkBytes(chunk.slot->format) : 0);
      queue.bytes += one.chunks.back();
    }
    queue.contexts.push_back(&context);
  }
  queue.order = EvictionOrder(idle);
  return queue;
}

std::optional<SlotAt> LeaseTable::ClaimEvicting(uint64_t bytes, LeaseId lease, EvictionQueue* queue,
                                                uint64_t* evicted) {
  std::optional<SlotAt> slot = pool_.Claim(bytes, lease);
  for (; !slot.has_value() && queue->next < queue->order.size(); slot = pool_.Claim(bytes, lease)) {
    const Eviction& eviction = queue->order[queue->next++];
    Context& context = *queue->contexts[eviction.context];
    // What has no copy on disk is gone, and what comes after it is of no use then.
    ContextChunk& chunk = context.kv.chunks[eviction.chunk];
    if (chunk.stored != 0) {
      pool_.Free(chunk.slot->units);
      chunk.slot.reset();
    } else {
      Truncate(eviction.chunk, &context.kv, &pool_);
    }
    Collect(&context);
    ++*evicted;
  }
  return slot;
}

bool LeaseTable::ClaimSlots(uint64_t count, LeaseId lease, bool evict, uint64_t* evicted,
                            std::vector<SlotAt>* slots) {
  const uint64_t bytes = geometry_.ChunkBytes(KvFormat::kQ8);
  EvictionQueue queue;
  if (evict && count * bytes > pool_.LargestGap()) queue = MakeEvictionQueue();
  if (count * bytes <= pool_.counts().free + queue.bytes) {
    while (slots->size() < count) {
      const std::optional<SlotAt> slot = ClaimEvicting(bytes, lease, &queue, evicted);
      if (!slot.has_value()) break;
      slots->push_back(*slot);
    }
    if (slots->size() == count) return true;
  }
  for (SlotAt slot : *slots) pool_.Free(slot);
  slots->clear();
  return false;
}

void LeaseTable::Collect(Context* context) {
  std::vector<StoredCopy>& copies = context->kv.given_up;
  given_up_.insert(given_up_.end(), copies.begin(), copies.end());
  copies.clear();
}

absl::Status LeaseTable::Fault(LeaseId id, uint32_t chunk) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  Context* context = ContextOf(*lease);
  if (lease->rebuild) {
    return absl::InvalidArgumentError("fault during a rebuild: claim the chunk, or abort");
  }
  if (context == nullptr || chunk >= ResidentPrefix(context->kv)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fault of chunk ", chunk, ", which is not resident"));
  }
  // The slots go to the worker, not to the free list: chunks that it claimed after these must stay
  // contiguous.
  TakeOver(chunk, id, &context->kv, &lease->claimed, &pool_);
  Collect(context);
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> LeaseTable::BeginCommit(LeaseId id, std::vector<ChunkIdentity> chunks,
                                                 const StampCheck& stamp) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  const Context* context = ContextOf(*lease);
  if (context == nullptr) chunks.clear();  // a stateless call keeps nothing
  WITHY_RETURN_IF_ERROR(
      CheckCommit(lease->claimed, context == nullptr ? ContextChunks() : context->kv, chunks));
  size_t keep = 0;
  for (; keep < chunks.size(); ++keep) {
    const auto claimed = lease->claimed.find(static_cast<uint32_t>(keep));
    if (claimed == lease->claimed.end()) continue;  // belongs to the context
    if (!stamp({claimed->second, KvFormat::kQ8}, lease->epoch)) break;
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
      KeepCommitted(std::move(lease.commit), &context->kv, &lease.claimed, &pool_);
    } else if (!lease.rebuild) {
      Truncate(0, &context->kv, &pool_);  // the record has changed without this KV
    }
    Collect(context);
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

const LeaseTable::Context* LeaseTable::FindIdle(std::string_view context_id) const {
  const auto found = contexts_.find(std::string(context_id));
  return found == contexts_.end() || !found->second.idle() ? nullptr : &found->second;
}

std::vector<ContextChunk> LeaseTable::IdleChunks(std::string_view context_id) const {
  const Context* context = FindIdle(context_id);
  return context == nullptr ? std::vector<ContextChunk>() : context->kv.chunks;
}

std::vector<ContextChunk> LeaseTable::ChunksOf(std::string_view context_id) const {
  const auto found = contexts_.find(std::string(context_id));
  return found == contexts_.end() ? std::vector<ContextChunk>() : found->second.kv.chunks;
}

std::optional<ChunkWork> LeaseTable::BeginWork(std::string_view context_id, uint32_t number) {
  const Context* context = FindIdle(context_id);
  if (context == nullptr || number >= context->kv.chunks.size()) return std::nullopt;
  const ContextChunk& chunk = context->kv.chunks[number];
  if (!chunk.slot.has_value() || chunk.identity.tokens != kChunkTokens) return std::nullopt;
  return ChunkWork{.context_id = std::string(context_id),
                   .chunk = number,
                   .from = *chunk.slot,
                   .identity = chunk.identity.identity,
                   .pin = pool_.Pin(chunk.slot->units)};
}

ContextChunk* LeaseTable::EndWork(const ChunkWork& work) {
  // The chunk as it is now, if it is idle and what it was at the beginning.
  ContextChunk* same = nullptr;
  if (const auto found = contexts_.find(work.context_id);
      found != contexts_.end() && found->second.idle() &&
      work.chunk < found->second.kv.chunks.size()) {
    ContextChunk& chunk = found->second.kv.chunks[work.chunk];
    if (chunk.slot == work.from && chunk.identity.identity == work.identity) same = &chunk;
  }
  pool_.Unpin(work.from.units, work.pin);
  return same;
}

std::optional<ChunkWork> LeaseTable::BeginDemotion(std::string_view context_id, uint32_t chunk,
                                                   KvFormat to, uint64_t* evicted) {
  std::optional<ChunkWork> work = BeginWork(context_id, chunk);
  if (!work.has_value()) return work;
  EvictionQueue queue;
  if (geometry_.ChunkBytes(to) > pool_.LargestGap())
    queue = MakeEvictionQueue(FindIdle(context_id));
  const std::optional<SlotAt> slot =
      ClaimEvicting(geometry_.ChunkBytes(to), kStoresOwn, &queue, evicted);
  if (!slot.has_value()) {
    EndWork(*work);
    return std::nullopt;
  }
  work->to = {*slot, to};
  return work;
}

bool LeaseTable::FinishDemotion(const ChunkWork& work, bool done) {
  const bool current = work.pin == pool_.run();
  ContextChunk* chunk = EndWork(work);
  if (!current) return false;  // the arena was emptied meanwhile
  if (chunk == nullptr || !done) {
    pool_.Free(work.to.units);
    return false;
  }
  pool_.Keep(work.to.units);
  pool_.Free(work.from.units);
  chunk->slot = work.to;
  Context& context = contexts_.at(work.context_id);
  if (chunk->stored != 0) context.kv.given_up.push_back(std::exchange(chunk->stored, 0));
  Collect(&context);
  return true;
}

std::optional<ChunkWork> LeaseTable::BeginWrite(std::string_view context_id, uint32_t chunk) {
  std::optional<ChunkWork> work = BeginWork(context_id, chunk);
  if (work.has_value() && contexts_.at(work->context_id).kv.chunks[chunk].stored != 0) {
    EndWork(*work);
    return std::nullopt;
  }
  return work;
}

bool LeaseTable::FinishWrite(const ChunkWork& work, StoredCopy stored) {
  const bool current = work.pin == pool_.run();
  ContextChunk* chunk = EndWork(work);
  if (!current || chunk == nullptr || stored == 0) return false;
  chunk->stored = stored;
  chunk->stored_format = work.from.format;
  return true;
}

void LeaseTable::ForgetCopies(const std::set<StoredCopy>& copies) {
  for (auto it = contexts_.begin(); it != contexts_.end();) {
    ContextChunks& kv = it->second.kv;
    for (size_t i = 0; i < kv.chunks.size(); ++i) {
      ContextChunk& chunk = kv.chunks[i];
      if (!copies.contains(chunk.stored)) continue;
      chunk.stored = 0;
      if (!chunk.slot.has_value()) Truncate(i, &kv, &pool_);
    }
    Collect(&it->second);
    const bool empty = it->second.idle() && it->second.waiting.empty() && kv.chunks.empty();
    it = empty ? contexts_.erase(it) : std::next(it);
  }
}

void LeaseTable::AdoptStored(std::string_view context_id, std::vector<ContextChunk> chunks) {
  Context& context = contexts_[std::string(context_id)];
  if (context.idle() && context.kv.chunks.empty()) {
    context.kv.chunks = std::move(chunks);
    return;
  }
  for (const ContextChunk& chunk : chunks) given_up_.push_back(chunk.stored);
  EraseIfEmpty(std::string(context_id));
}

bool LeaseTable::Committing(LeaseId id) const {
  const auto lease = leases_.find(id);
  return lease != leases_.end() && lease->second.committing;
}

void LeaseTable::QuarantineOrFree(SlotAt slot, WorkerInstance worker) {
  if (connected_.contains(worker)) {
    pool_.Quarantine(slot, worker);
  } else {
    pool_.Free(slot);  // the worker never mapped the arena, or is dead
  }
}

void LeaseTable::DropBroken(Lease& lease) {
  for (const auto& [chunk, slot] : lease.claimed) QuarantineOrFree(slot, lease.worker);
  lease.claimed.clear();
  Context* context = ContextOf(lease);
  if (!lease.granted || context == nullptr || context->kv.chunks.empty()) return;
  ContextChunk& last = context->kv.chunks.back();
  if (last.identity.tokens == kChunkTokens) return;
  if (last.slot.has_value()) QuarantineOrFree(last.slot->units, lease.worker);
  last.slot.reset();
  Truncate(context->kv.chunks.size() - 1, &context->kv, &pool_);
  Collect(context);
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
  if (context.idle() && context.waiting.empty() && context.kv.chunks.empty()) {
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
  if (erase) Truncate(0, &context.kv, &pool_);
  Collect(&context);
  EraseIfEmpty(std::string(context_id));
}

ContextKv LeaseTable::KvOf(std::string_view context_id) const {
  ContextKv kv;
  for (const ContextChunk& chunk : ChunksOf(context_id)) {
    if (chunk.slot.has_value()) kv.resident_bytes += geometry_.ChunkBytes(chunk.slot->format);
    if (chunk.stored != 0) kv.stored_bytes += geometry_.ChunkBytes(chunk.stored_format);
    kv.tokens += chunk.identity.tokens;
  }
  return kv;
}

std::optional<LeaseTable::Upgrade> LeaseTable::NextUpgrade() const {
  constexpr uint32_t kFullPercent = 100;
  std::optional<Upgrade> best;
  uint64_t best_used = 0;
  for (const auto& [context_id, context] : contexts_) {
    if (!context.idle() || context.no_room == context.last_used) continue;
    uint32_t lowest = kFullPercent;
    for (const ContextChunk& chunk : context.kv.chunks) {
      lowest = std::min(lowest, chunk.identity.model_level_percent);
    }
    if (lowest == kFullPercent || (best.has_value() && context.last_used < best_used)) continue;
    best = {context_id, lowest};
    best_used = context.last_used;
  }
  return best;
}

std::string LeaseTable::Audit() const {
  std::set<SlotAt> seen;
  uint64_t claimed = 0, resident = 0;
  uint32_t waiting = 0;
  for (const auto& [id, lease] : leases_) {
    for (const auto& [chunk, slot] : lease.claimed) {
      if (pool_.state(slot) != SlotPool::State::kClaimed || pool_.owner(slot) != id ||
          !seen.insert(slot).second)
        return absl::StrCat("slot ", slot, " of lease ", id, " is not its own");
      claimed += geometry_.ChunkBytes(KvFormat::kQ8);
    }
    if (!lease.granted && !lease.claimed.empty())
      return absl::StrCat("lease ", id, " waits with slots");
    waiting += lease.granted ? 0 : 1;
  }
  for (const auto& [context_id, context] : contexts_) {
    if (context.holder != 0 && !leases_.contains(context.holder))
      return "a holder that is not a lease";
    if (context.holder == 0 && !context.waiting.empty()) return "a lease waits for a free context";
    for (const ContextChunk& chunk : context.kv.chunks) {
      if (!chunk.slot.has_value()) {
        if (chunk.stored == 0)
          return absl::StrCat("a chunk of context ", context_id, " is nowhere");
        continue;
      }
      const SlotAt slot = chunk.slot->units;
      if (pool_.state(slot) != SlotPool::State::kResident || !seen.insert(slot).second)
        return absl::StrCat("slot ", slot, " of context ", context_id, " is not its own");
      resident += geometry_.ChunkBytes(chunk.slot->format);
    }
  }
  // Slots of loads and demotions under way are claimed by nobody that is seen here.
  const SlotPool::Counts& counts = pool_.counts();
  if (claimed > counts.claimed || resident != counts.resident || waiting != waiting_) {
    return "a slot or a waiting lease got lost";
  }
  return pool_.Consistent() ? "" : "slots and gaps do not fill the arena";
}

}  // namespace withy::context_store
