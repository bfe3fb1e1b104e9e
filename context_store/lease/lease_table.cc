#include "context_store/lease/lease_table.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "context_store/invariant.h"

namespace withy::context_store {
namespace {

// Whether a lease at this level may compute the chunk again and gets the same chunk.
bool IsRecomputable(const ContextChunk& chunk, const LoadRules& rules, bool rebuild) {
  return !rebuild && chunk.identity.tokens == static_cast<uint32_t>(kChunkTokens) &&
         chunk.identity.model_level_percent == rules.level_percent;
}

}  // namespace

LeaseTable::LeaseTable(const LeaseLimits& limits, uint64_t first_epoch, ArenaDirectory* directory)
    : limits_(limits), epoch_(first_epoch), idle_(kv_, limits.eviction) {
  kv_.directory = directory;
  kv_.compresses_ahead = limits.compresses_ahead;
  if (directory == nullptr) return;
  pool_.set_on_leave([directory](SlotAt slot) { directory->Remove(slot); });
}

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
    it = it->second.unused() ? contexts_.erase(it) : std::next(it);
  }
  kv_.borrowed.clear();
  geometry_ = geometry;
  pool_.Reset(limits_.arena_bytes);
  if (kv_.directory != nullptr && kv_.directory->geometry() != geometry) {
    kv_.directory->Reset(geometry);
  }
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
    End(id);
    effects.ended.push_back(id);
  }
  pool_.Release(worker);
  Advance(&effects);
  return effects;
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
  const auto found = leases_.find(id);
  if (found == leases_.end() || found->second.context_id.empty()) return {};
  const Lease& lease = found->second;
  const ContextChunks& context = contexts_.at(lease.context_id).kv;
  ResidentChunks resident;
  for (uint32_t i = 0; i < context.chunks.size(); ++i) {
    using State = ResidentChunk::State;
    const ContextChunk& chunk = context.chunks[i];
    const auto claimed = lease.claimed.find(i);
    if (chunk.slot.has_value()) {
      resident.push_back(
          {{i, *chunk.slot}, chunk.identity, chunk.loading ? State::kLoading : State::kResident});
    } else if (claimed != lease.claimed.end()) {
      resident.push_back(
          {{i, {claimed->second, KvFormat::kQ8}}, chunk.identity, State::kRecompute});
    } else {
      break;
    }
  }
  return resident;
}

std::set<uint32_t> LeaseTable::PlanLoad(const LoadRules& rules, bool rebuild, ContextChunks* kv) {
  std::vector<policy::MissingChunk> missing;
  for (uint32_t i = 0; i < kv->chunks.size(); ++i) {
    const ContextChunk& chunk = kv->chunks[i];
    if (chunk.slot.has_value()) continue;
    if (!IsRecomputable(chunk, rules, rebuild)) {
      if (chunk.stored == 0) {
        Truncate(i, kv, &pool_);
        break;
      }
      continue;  // it is read in any case
    }
    missing.push_back({i, chunk.stored == 0 ? 0 : geometry_.ChunkBytes(chunk.stored_format)});
  }
  std::set<uint32_t> recompute;
  const policy::LoadPlan plan = policy::PlanLoad(missing, rules.costs, rules.policy);
  double claimed_ms = 0;
  for (const size_t i : plan.recompute) {
    if (missing[i].stored_bytes != 0) {
      claimed_ms += rules.costs.RecomputeMs(missing[i]);
      if (claimed_ms > rules.claimed_share * plan.ms()) continue;
    }
    recompute.insert(missing[i].position);
  }
  return recompute;
}

// A copy on disk may have more bits than the arena, after a restart of an earlier build.
void LeaseTable::LeaveSmallerSlots(ContextChunks* kv) {
  for (ContextChunk& chunk : kv->chunks) {
    if (!chunk.slot.has_value() || chunk.stored == 0) continue;
    if (HasFewerBits(chunk.slot->format, chunk.stored_format)) LeaveSlot(&chunk, kv, &pool_);
  }
}

std::vector<ChunkLoad> LeaseTable::BeginLoad(LeaseId id, const LoadRules& rules,
                                             uint64_t* evicted) {
  const absl::StatusOr<Lease*> found = Granted(id);
  if (!found.ok() || (*found)->context_id.empty()) return {};
  Lease& lease = **found;
  Context& context = *ContextOf(lease);
  std::vector<uint32_t> missing;
  for (uint32_t i = 0; i < context.kv.chunks.size(); ++i) {
    if (!context.kv.chunks[i].slot.has_value()) missing.push_back(i);
  }
  kv_.ShareMissing(&context);
  const std::set<uint32_t> recompute = PlanLoad(rules, lease.rebuild, &context.kv);
  std::vector<ChunkLoad> loads = TakeLoadSlots(&lease, id, recompute, rules, evicted);
  lease.to_load = 0;
  if (!missing.empty() && OthersAdmitted(id) && !AllCanFinishNow()) {
    // The slots cut gaps into small ones (see StandWell).
    GiveUpLoadSlots(&lease, missing, loads);
    idle_.EvictAll(evicted);
    loads = TakeLoadSlots(&lease, id, recompute, rules, evicted);
    if (!AllCanFinishNow()) {  // what the store writes just now is in the way: it is computed
      GiveUpLoadSlots(&lease, missing, loads);
      loads.clear();
    }
  }
  Collect(&context);
  lease.told = HeldPrefix(lease.claimed, context.kv);
  return loads;
}

// Slots for the chunks that have none, from the first one on, for as many as there is room.
std::vector<ChunkLoad> LeaseTable::TakeLoadSlots(Lease* lease, LeaseId id,
                                                 const std::set<uint32_t>& recompute,
                                                 const LoadRules& rules, uint64_t* evicted) {
  std::vector<ChunkLoad> loads;
  std::vector<ContextChunk>& chunks = ContextOf(*lease)->kv.chunks;
  std::optional<EvictionQueue> queue;
  bool recomputable = true;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    ContextChunk& chunk = chunks[i];
    if (chunk.slot.has_value()) continue;
    recomputable = recomputable && IsRecomputable(chunk, rules, lease->rebuild);
    if (!queue.has_value()) queue = MakeEvictionQueue();
    const KvFormat format = recompute.contains(i) ? KvFormat::kQ8 : chunk.stored_format;
    const auto slot = ClaimEvicting(geometry_.ChunkBytes(format), id, &*queue, evicted);
    if (!slot.has_value()) break;
    if (recompute.contains(i)) {
      lease->claimed[i] = *slot;
      continue;
    }
    pool_.Keep(*slot);
    chunk.slot = KvSlot{*slot, format};
    chunk.loading = true;
    loads.push_back({i, *chunk.slot, chunk.stored, pool_.Pin(*slot), recomputable});
  }
  return loads;
}

void LeaseTable::GiveUpLoadSlots(Lease* lease, const std::vector<uint32_t>& missing,
                                 const std::vector<ChunkLoad>& loads) {
  FreeClaimed(&lease->claimed, &pool_);  // it had none before
  for (const ChunkLoad& load : loads) pool_.Unpin(load.slot.units, load.pin);
  ContextChunks& kv = ContextOf(*lease)->kv;
  for (const uint32_t chunk : missing) {
    if (chunk < kv.chunks.size()) LeaveSlot(&kv.chunks[chunk], &kv, &pool_);
  }
}

bool LeaseTable::IsLoading(std::string_view context_id, const ChunkLoad& load) const {
  const auto found = contexts_.find(std::string(context_id));
  if (load.pin != pool_.run() || found == contexts_.end()) return false;
  const std::vector<ContextChunk>& chunks = found->second.kv.chunks;
  return load.chunk < chunks.size() && chunks[load.chunk].loading &&
         chunks[load.chunk].slot == load.slot;
}

std::vector<ChunkSlot> LeaseTable::LeaveToWorker(LeaseId id, std::span<const ChunkLoad> loads,
                                                 uint64_t* evicted) {
  std::vector<ChunkSlot> left;
  const absl::StatusOr<Lease*> found = Granted(id);
  if (!found.ok() || (*found)->context_id.empty()) return left;
  Lease& lease = **found;
  std::vector<ContextChunk>& chunks = ContextOf(lease)->kv.chunks;
  std::optional<EvictionQueue> queue;
  for (const ChunkLoad& load : loads) {
    if (!IsLoading(lease.context_id, load)) break;
    SlotAt slot = load.slot.units;
    if (load.slot.format == KvFormat::kQ8) {
      pool_.Unpin(slot, load.pin);
      pool_.Take(slot, id);
    } else {
      const uint32_t held = HeldChunks(lease);
      if (!HasRoomFor(id, 1, held)) break;
      if (!queue.has_value()) queue = MakeEvictionQueue();
      const auto claimed = ClaimEvicting(geometry_.ChunkBytes(KvFormat::kQ8), id, &*queue, evicted);
      if (!claimed.has_value()) break;
      const uint32_t more = lease.need - std::min(lease.need, held);
      if (!StandWell(id, {&*claimed, 1}, more)) {
        pool_.Free(*claimed);
        break;
      }
      pool_.Unpin(slot, load.pin);
      pool_.Free(slot);
      slot = *claimed;
    }
    chunks[load.chunk].loading = false;
    chunks[load.chunk].slot.reset();
    lease.claimed[load.chunk] = slot;
    left.push_back({load.chunk, {slot, KvFormat::kQ8}});
  }
  return left;
}

void LeaseTable::FinishLoad(std::string_view context_id, const std::vector<ChunkLoad>& loads,
                            const std::vector<bool>& read) {
  const auto found = contexts_.find(std::string(context_id));
  for (size_t i = 0; i < loads.size(); ++i) {
    const ChunkLoad& load = loads[i];
    if (load.pin != pool_.run()) return;  // the arena was emptied meanwhile
    pool_.Unpin(load.slot.units, load.pin);
    if (found == contexts_.end() || load.chunk >= found->second.kv.chunks.size()) continue;
    ContextChunk& chunk = found->second.kv.chunks[load.chunk];
    if (!chunk.loading || chunk.slot != load.slot) continue;
    chunk.loading = false;
    if (read[i]) continue;
    pool_.Free(chunk.slot->units);
    chunk.slot.reset();
    if (chunk.stored == load.stored) kv_.GiveUp(std::exchange(chunk.stored, 0));
  }
}

absl::Status LeaseTable::Fault(LeaseId id, uint32_t chunk) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  Context* context = ContextOf(*lease);
  if (lease->rebuild) {
    return absl::InvalidArgumentError("fault during a rebuild: claim the chunk, or abort");
  }
  if (context == nullptr || chunk >= context->kv.chunks.size() ||
      !context->kv.chunks[chunk].slot.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("fault of chunk ", chunk, ", which is not resident"));
  }
  // No other context keeps, and no later call is given, what does not match.
  const ContextChunk& wrong = context->kv.chunks[chunk];
  if (wrong.shared) DropEverywhere(context, chunk, wrong.slot->units);
  // The slots go to the worker, not to the free list: chunks that it claimed after these must stay
  // contiguous.
  TakeOver(chunk, id, &context->kv, &lease->claimed, &pool_);
  Collect(context);
  return absl::OkStatus();
}

// Of idle contexts. One that a call uses finds out itself.
void LeaseTable::DropEverywhere(const Context* except, uint32_t number, SlotAt slot) {
  for (Context* context : kv_.ContextsWith(slot, number)) {
    if (context != except && context->idle()) kv_.Evict(context, number);
  }
}

absl::StatusOr<ResidentChunks> LeaseTable::Share(LeaseId id, uint32_t first,
                                                 const std::vector<Identities>& wanted) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  Context* context = ContextOf(*lease);
  if (context == nullptr || lease->rebuild) {
    return absl::InvalidArgumentError(
        "share: only a call on a context may share chunks of other contexts");
  }
  std::vector<ContextChunk*> best;
  for (const Identities& identities : wanted) {
    for (const std::string& identity : identities) {
      if (identity.size() == kIdentityBytes) continue;
      return absl::InvalidArgumentError(absl::StrCat("share: an identity of ", identity.size(),
                                                     " bytes; must be ", kIdentityBytes));
    }
    std::vector<ContextChunk*> equal = kv_.FindEqual(*context, first, identities);
    // What others have in fewer bits is computed: a new context is exact.
    const auto end = std::find_if(equal.begin(), equal.end(), [&](const ContextChunk* chunk) {
      return chunk == nullptr || !kv_.MayStandFor(*chunk, KvFormat::kQ8);
    });
    equal.erase(end, equal.end());
    if (equal.size() > best.size()) best = std::move(equal);
  }
  ResidentChunks shared;
  const bool claimed = !lease->claimed.empty() && lease->claimed.rbegin()->first >= first;
  if (best.empty() || claimed || HeldPrefix(lease->claimed, context->kv) < first) return shared;
  Truncate(first, &context->kv, &pool_);
  for (ContextChunk* equal : best) {
    const auto number = static_cast<uint32_t>(context->kv.chunks.size());
    ContextChunk& chunk = context->kv.chunks.emplace_back();
    chunk.identity = equal->identity;
    kv_.Share(&chunk, equal);
    shared.push_back({{number, *chunk.slot}, chunk.identity});
  }
  if (OthersAdmitted(id) && !AllCanFinishNow()) {  // the slots would stay where others need them
    Truncate(first, &context->kv, &pool_);
    Collect(context);
    shared.clear();
    return shared;
  }
  lease->told = std::max(lease->told, HeldPrefix(lease->claimed, context->kv));
  Collect(context);
  return shared;
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
  lease->wish.reset();
  return dropped;
}

Effects LeaseTable::FinishCommit(LeaseId id, bool stored) {
  Lease& lease = leases_.at(id);
  Invariant(lease.committing, "only a lease in commit finishes one");
  Context* context = ContextOf(lease);
  if (stored && context != nullptr) {
    if (lease.epoch == epoch_) {
      KeepCommitted(std::move(lease.commit), &context->kv, &lease.claimed, &pool_);
      kv_.Deduplicate(context);
    } else if (!lease.rebuild) {
      Truncate(0, &context->kv, &pool_);  // the record has changed without this KV
    }
    Collect(context);
  }
  FreeClaimed(&lease.claimed, &pool_);
  return EndAndAdvance(id);
}

Effects LeaseTable::Abort(LeaseId id) {
  const auto lease = leases_.find(id);
  if (lease == leases_.end() || lease->second.committing) return {};
  FreeClaimed(&lease->second.claimed, &pool_);
  return EndAndAdvance(id);
}

Effects LeaseTable::Break(LeaseId id) {
  const auto lease = leases_.find(id);
  if (lease == leases_.end() || lease->second.committing) return {};
  DropBroken(lease->second);
  return EndAndAdvance(id);
}

std::vector<ContextChunk> LeaseTable::ChunksOf(std::string_view context_id) const {
  const auto found = contexts_.find(std::string(context_id));
  if (found == contexts_.end()) return {};
  std::vector<ContextChunk> chunks = found->second.kv.chunks;
  for (ContextChunk& chunk : chunks) {
    chunk.shared = chunk.shared && pool_.contexts(chunk.slot->units) > 1;
  }
  return chunks;
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
  if (last.loading) return;  // the worker has not written to it
  if (last.slot.has_value()) QuarantineOrFree(last.slot->units, lease.worker);
  last.slot.reset();
  Truncate(context->kv.chunks.size() - 1, &context->kv, &pool_);
  Collect(context);
}

Effects LeaseTable::EndAndAdvance(LeaseId id) {
  Effects effects;
  End(id);
  Advance(&effects);
  return effects;
}

// Removes the lease. If it held a context, the next lease in line waits for room only.
void LeaseTable::End(LeaseId id) {
  const auto found = leases_.find(id);
  Invariant(found != leases_.end() && found->second.claimed.empty(),
            "an ending lease has no blocks");
  const Lease lease = std::move(found->second);
  leases_.erase(found);
  room_queue_.erase(id);
  if (!lease.granted) --waiting_;
  if (lease.context_id.empty()) return;
  Context& context = contexts_.at(lease.context_id);
  if (lease.granted) {
    context.holder = 0;
    EndLoading(&context.kv, &pool_);
    Collect(&context);
    kv_.Describe(lease.context_id);
    if (!lease.rebuild) context.last_used = ++kv_.uses;
  } else if (context.next == id) {
    context.next = 0;
  } else {
    std::erase(context.waiting, id);
  }
  if (!context.taken() && !context.waiting.empty()) {
    context.next = context.waiting.front();
    context.waiting.pop_front();
    room_queue_.insert(context.next);
  }
  kv_.EraseIfEmpty(lease.context_id);
}

absl::Status LeaseTable::LockContext(std::string_view context_id) {
  Context& context = kv_.FindOrAdd(context_id);
  if (context.taken() || context.locked) {
    return absl::AbortedError("a call runs on the context, or it is being deleted: retry");
  }
  context.locked = true;
  ++locked_contexts_;
  return absl::OkStatus();
}

void LeaseTable::UnlockContext(std::string_view context_id, bool erase) {
  Context& context = contexts_.at(std::string(context_id));
  context.locked = false;
  --locked_contexts_;
  if (erase) Truncate(0, &context.kv, &pool_);
  Collect(&context);
  kv_.EraseIfEmpty(std::string(context_id));
}

ContextKv LeaseTable::KvOf(std::string_view context_id) const {
  ContextKv kv;
  for (const ContextChunk& chunk : ChunksOf(context_id)) {
    if (chunk.slot.has_value()) kv.resident_bytes += geometry_.ChunkBytes(chunk.slot->format);
    if (chunk.stored != 0) kv.stored_bytes += geometry_.ChunkBytes(chunk.stored_format);
    if (chunk.nowhere()) continue;
    kv.tokens += chunk.identity.tokens;
    const KvFormat used = chunk.slot.has_value() ? chunk.slot->format : chunk.stored_format;
    if (HasFewerBits(used, KvFormat::kQ8)) kv.compressed_tokens += chunk.identity.tokens;
  }
  return kv;
}

uint64_t LeaseTable::held_bytes() const {
  uint64_t leased = 0;  // what several of the contexts have is in it as often
  for (const auto& [id, lease] : leases_) {
    const auto context = lease.granted ? contexts_.find(lease.context_id) : contexts_.end();
    if (context == contexts_.end()) continue;
    for (const ContextChunk& chunk : context->second.kv.chunks) {
      if (chunk.slot.has_value()) leased += geometry_.ChunkBytes(chunk.slot->format);
    }
  }
  const SlotPool::Counts& counts = pool_.counts();
  return counts.claimed + counts.quarantined + std::min(leased, counts.resident);
}

// Slots of contexts: each has as many contexts as it says, which have the same chunk there.
std::string LeaseTable::AuditShared() const {
  std::map<SlotAt, std::vector<std::pair<const Context*, uint32_t>>> with;
  for (const auto& [id, context] : contexts_) {
    for (uint32_t i = 0; i < context.kv.chunks.size(); ++i) {
      if (const auto& slot = context.kv.chunks[i].slot; slot.has_value()) {
        with[slot->units].emplace_back(&context, i);
      }
    }
  }
  for (const auto& [slot, owners] : with) {
    if (pool_.state(slot) != SlotPool::State::kResident || pool_.contexts(slot) != owners.size()) {
      return absl::StrCat("slot ", slot, " has ", owners.size(), " contexts and does not know it");
    }
    const auto& [first, number] = owners.front();
    const ContextChunk& chunk = first->kv.chunks[number];
    for (size_t i = 1; i < owners.size(); ++i) {
      const auto& [other, at] = owners[i];
      const ContextChunk& its = other->kv.chunks[at];
      const bool equal = at == number && its.slot == chunk.slot && its.shared && chunk.shared &&
                         its.identity.identity == chunk.identity.identity &&
                         its.identity.tokens == static_cast<uint32_t>(kChunkTokens) &&
                         !its.loading && !chunk.loading;
      if (!equal) return absl::StrCat("slot ", slot, " is shared by unequal chunks");
      const bool may = (!first->app_id.empty() && first->app_id == other->app_id) ||
                       kv_.public_chunks.contains(chunk.identity.identity);
      if (!may) return absl::StrCat("slot ", slot, " is shared by two apps");
    }
  }
  return "";
}

std::string LeaseTable::Audit() const {
  std::set<SlotAt> seen, of_leases;
  uint64_t claimed = 0, resident = 0, saved = 0;
  uint32_t waiting = 0;
  for (const auto& [id, lease] : leases_) {
    for (const auto& [chunk, slot] : lease.claimed) {
      if (pool_.state(slot) != SlotPool::State::kClaimed || pool_.owner(slot) != id ||
          !of_leases.insert(slot).second)
        return absl::StrCat("slot ", slot, " of lease ", id, " is not its own");
      claimed += geometry_.ChunkBytes(KvFormat::kQ8);
    }
    if (!lease.granted && !lease.claimed.empty())
      return absl::StrCat("lease ", id, " waits with slots");
    waiting += lease.granted ? 0 : 1;
  }
  for (const LeaseId id : room_queue_) {
    if (!leases_.contains(id) || leases_.at(id).admitted)
      return "a lease waits for room for nothing";
  }
  for (const auto& [context_id, context] : contexts_) {
    if (context.holder != 0 && !leases_.contains(context.holder))
      return "a holder that is not a lease";
    if (!context.taken() && !context.waiting.empty()) return "a lease waits for a free context";
    if (context.next != 0 && (context.holder != 0 || !room_queue_.contains(context.next)))
      return "a context's next lease does not wait for room";
    for (const ContextChunk& chunk : context.kv.chunks) {
      if (chunk.loading && (context.holder == 0 || !chunk.slot.has_value()))
        return absl::StrCat("a chunk of context ", context_id, " is read for nobody");
      if (chunk.nowhere() && context.holder == 0 && &chunk == &context.kv.chunks.back())
        return absl::StrCat("the last chunk of context ", context_id, " is nowhere");
      if (!chunk.slot.has_value()) continue;
      if (of_leases.contains(chunk.slot->units)) {
        return absl::StrCat("slot ", chunk.slot->units, " of context ", context_id,
                            " is a lease's");
      }
      if (seen.insert(chunk.slot->units).second) {
        resident += geometry_.ChunkBytes(chunk.slot->format);
      } else {
        saved += geometry_.ChunkBytes(chunk.slot->format);
      }
    }
  }
  std::map<StoredCopy, uint32_t> copies;
  for (const auto& [context_id, context] : contexts_) {
    for (const ContextChunk& chunk : context.kv.chunks) {
      if (chunk.stored != 0) ++copies[chunk.stored];
    }
  }
  std::erase_if(copies, [](const auto& copy) { return copy.second == 1; });
  if (copies.size() != kv_.borrowed.size() ||
      !std::all_of(copies.begin(), copies.end(), [&](const auto& copy) {
        const auto found = kv_.borrowed.find(copy.first);
        return found != kv_.borrowed.end() && found->second == copy.second;
      })) {
    return "a copy on disk has other chunks than it knows";
  }
  // Slots of loads and demotions under way are claimed by nobody that is seen here.
  const SlotPool::Counts& counts = pool_.counts();
  if (claimed > counts.claimed || resident != counts.resident || saved != counts.saved ||
      waiting != waiting_) {
    return "a slot or a waiting lease got lost";
  }
  if (const std::string wrong = AuditShared(); !wrong.empty()) return wrong;
  return pool_.Consistent() ? "" : "slots and gaps do not fill the arena";
}

}  // namespace withy::context_store
