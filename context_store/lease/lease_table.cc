#include "context_store/lease/lease_table.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "context_store/arena/hidden_kv.h"
#include "context_store/invariant.h"

namespace withy::context_store {
namespace {

absl::Status Stale(uint64_t epoch, uint64_t current) {
  return absl::AbortedError(
      absl::StrCat("epoch ", epoch, " is over, the arena's is ", current, ": attach again"));
}

}  // namespace

LeaseTable::LeaseTable(const LeaseLimits& limits, uint64_t first_epoch, ArenaDirectory* directory)
    : limits_(limits),
      epoch_(first_epoch),
      idle_(state_.kv, limits.eviction),
      room_(state_),
      admission_(state_, idle_, room_),
      chunks_(state_, idle_, room_) {
  state_.kv.directory = directory;
  state_.kv.compresses_ahead = limits.compresses_ahead;
  if (directory == nullptr) return;
  state_.kv.pool.set_on_leave([directory](SlotAt slot) { directory->Remove(slot); });
}

absl::StatusOr<Attached> LeaseTable::Attach(WorkerInstance worker, const Geometry& geometry) {
  WITHY_RETURN_IF_ERROR(CheckGeometry(geometry, limits_.arena_bytes));
  if (worker == 0) return absl::InvalidArgumentError("worker_instance must not be 0");
  const bool same = geometry == state_.kv.geometry;
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
  for (auto& [id, lease] : state_.leases) {
    if (lease.committing) continue;
    if (lease.worker == worker) {
      FreeClaimed(&lease.claimed, &state_.kv.pool);
    } else {
      DropBroken(lease);
    }
    attached.ended.push_back(id);
  }
  for (LeaseId id : attached.ended) End(id);
  state_.kv.pool.Release(worker);
  if (!same) ResetArena(geometry);
  worker_ = worker;
  return attached;
}

void LeaseTable::ResetArena(const Geometry& geometry) {
  for (auto& [id, lease] :
       state_.leases) {  // leases in commit: their records count, their KV is lost
    lease.claimed.clear();
    lease.commit.clear();
  }
  // Copies on disk stay there: they are of the model that was served until now.
  for (auto it = state_.kv.contexts.begin(); it != state_.kv.contexts.end();) {
    it->second.kv.chunks.clear();
    it = it->second.unused() ? state_.kv.contexts.erase(it) : std::next(it);
  }
  state_.kv.copies.ForgetAll();
  state_.kv.geometry = geometry;
  state_.kv.pool.Reset(limits_.arena_bytes);
  if (state_.kv.directory != nullptr && state_.kv.directory->geometry() != geometry) {
    state_.kv.directory->Reset(geometry);
  }
}

void LeaseTable::WorkerConnected(WorkerInstance worker) { ++connected_[worker]; }

Effects LeaseTable::WorkerGone(WorkerInstance worker) {
  Effects effects;
  const auto live = connected_.find(worker);
  if (live == connected_.end() || --live->second > 0) return effects;
  connected_.erase(live);
  std::vector<LeaseId> broken;
  for (const auto& [id, lease] : state_.leases) {
    if (lease.worker == worker && !lease.committing) broken.push_back(id);
  }
  for (LeaseId id : broken) {
    DropBroken(state_.leases.at(id));
    End(id);
    effects.ended.push_back(id);
  }
  state_.kv.pool.Release(worker);
  admission_.Advance(&effects);
  return effects;
}

absl::StatusOr<LeaseOpening> LeaseTable::Open(const LeaseRequest& request) {
  if (request.epoch != epoch_ || worker_ == 0) return Stale(request.epoch, epoch_);
  if (state_.open_leases() >= limits_.open) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit of ", Counted(limits_.open, "open lease"), " is reached"));
  }
  KvContext* context = nullptr;
  if (!request.context_id.empty()) {
    context = &state_.kv.FindOrAdd(request.context_id, request.app_id);
    if (context->locked) return absl::AbortedError("the context is being deleted");
  }
  const LeaseId id = last_lease_ + 1;
  Lease& lease = state_.leases[id];
  lease = {.epoch = request.epoch,
           .worker = worker_,
           .context_id = std::string(request.context_id),
           .granted = request.ahead,
           .rebuild = request.rebuild && context != nullptr,
           .need = request.need,
           .ahead = request.ahead};
  ++state_.waiting;
  const bool taken = context != nullptr && context->taken();
  if (request.ahead) {
    --state_.waiting;
  } else if (!taken && admission_.MayOvertake(id) && admission_.TryAdmit(id)) {
    admission_.CountOvertaken(id);
  } else if (state_.waiting > limits_.waiting) {
    state_.leases.erase(id);
    --state_.waiting;
    if (context != nullptr) state_.kv.EraseIfEmpty(context->id);
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit of ", Counted(limits_.waiting, "waiting lease"), " is reached"));
  } else if (taken) {
    context->waiting.push_back(id);
  } else {
    if (context != nullptr) context->next = id;
    state_.room_queue.insert(id);
  }
  last_lease_ = id;
  return LeaseOpening{id, lease.granted};
}

absl::Status LeaseTable::Begin(LeaseId id, uint32_t need) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, state_.Granted(id));
  if (!lease->ahead) return absl::InvalidArgumentError("begin: the lease was not opened ahead");
  lease->ahead = false;
  lease->need = need;
  if (admission_.MayOvertake(id) && admission_.TryAdmit(id)) {
    admission_.CountOvertaken(id);
  } else {
    state_.room_queue.insert(id);
  }
  return absl::OkStatus();
}

Effects LeaseTable::Advance() {
  Effects effects;
  admission_.Advance(&effects);
  return effects;
}

absl::StatusOr<uint32_t> LeaseTable::BeginCommit(LeaseId id, std::vector<ChunkIdentity> chunks,
                                                 const StampCheck& stamp) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, state_.Granted(id));
  const KvContext* context = state_.ContextOf(*lease);
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
  Lease& lease = state_.leases.at(id);
  Invariant(lease.committing, "only a lease in commit finishes one");
  KvContext* context = state_.ContextOf(lease);
  if (stored && context != nullptr) {
    if (lease.epoch == epoch_) {
      KeepCommitted(std::move(lease.commit), &context->kv, &lease.claimed, &state_.kv.pool);
      state_.kv.Deduplicate(context);
      GiveUpLackingCopies(state_.kv, context);
    } else if (!lease.rebuild) {
      Truncate(0, &context->kv, &state_.kv.pool);  // the record has changed without this KV
    }
    state_.kv.Collect(context);
  }
  FreeClaimed(&lease.claimed, &state_.kv.pool);
  return EndAndAdvance(id);
}

Effects LeaseTable::Abort(LeaseId id) {
  const auto lease = state_.leases.find(id);
  if (lease == state_.leases.end() || lease->second.committing) return {};
  FreeClaimed(&lease->second.claimed, &state_.kv.pool);
  return EndAndAdvance(id);
}

Effects LeaseTable::Break(LeaseId id) {
  const auto lease = state_.leases.find(id);
  if (lease == state_.leases.end() || lease->second.committing) return {};
  DropBroken(lease->second);
  return EndAndAdvance(id);
}

void LeaseTable::DropBroken(Lease& lease) {
  const auto quarantine_or_free = [&](SlotAt slot) {
    if (connected_.contains(lease.worker)) {
      state_.kv.pool.Quarantine(slot, lease.worker);
    } else {
      state_.kv.pool.Free(slot);  // the worker never mapped the arena, or is dead
    }
  };
  for (const auto& [chunk, slot] : lease.claimed) quarantine_or_free(slot);
  lease.claimed.clear();
  KvContext* context = state_.ContextOf(lease);
  if (!lease.granted || context == nullptr || context->kv.chunks.empty()) return;
  ContextChunk& last = context->kv.chunks.back();
  if (last.identity.tokens == kChunkTokens) return;
  if (last.loading) return;  // the worker has not written to it
  if (last.slot.has_value()) quarantine_or_free(last.slot->units);
  last.slot.reset();
  Truncate(context->kv.chunks.size() - 1, &context->kv, &state_.kv.pool);
  state_.kv.Collect(context);
}

Effects LeaseTable::EndAndAdvance(LeaseId id) {
  Effects effects;
  End(id);
  admission_.Advance(&effects);
  return effects;
}

// Removes the lease. If it held a context, the next lease in line waits for room only.
void LeaseTable::End(LeaseId id) {
  const auto found = state_.leases.find(id);
  Invariant(found != state_.leases.end() && found->second.claimed.empty(),
            "an ending lease has no blocks");
  const Lease lease = std::move(found->second);
  state_.leases.erase(found);
  state_.room_queue.erase(id);
  if (!lease.granted) --state_.waiting;
  if (lease.context_id.empty()) return;
  KvContext& context = state_.kv.contexts.at(lease.context_id);
  if (lease.granted) {
    context.holder = 0;
    EndLoading(&context.kv, &state_.kv.pool);
    state_.kv.Collect(&context);
    state_.kv.Describe(lease.context_id);
    if (!lease.rebuild) context.last_used = ++state_.kv.uses;
  } else if (context.next == id) {
    context.next = 0;
  } else {
    std::erase(context.waiting, id);
  }
  if (!context.taken() && !context.waiting.empty()) {
    context.next = context.waiting.front();
    context.waiting.pop_front();
    state_.room_queue.insert(context.next);
  }
  state_.kv.EraseIfEmpty(lease.context_id);
}

absl::Status LeaseTable::LockContext(std::string_view context_id) {
  KvContext& context = state_.kv.FindOrAdd(context_id);
  if (context.taken() || context.locked) {
    return absl::AbortedError("a call runs on the context, or it is being deleted: retry");
  }
  context.locked = true;
  ++state_.locked_contexts;
  return absl::OkStatus();
}

void LeaseTable::UnlockContext(std::string_view context_id, bool erase) {
  KvContext& context = state_.kv.contexts.at(std::string(context_id));
  context.locked = false;
  --state_.locked_contexts;
  if (erase) Truncate(0, &context.kv, &state_.kv.pool);
  state_.kv.Collect(&context);
  state_.kv.EraseIfEmpty(std::string(context_id));
}

}  // namespace withy::context_store
