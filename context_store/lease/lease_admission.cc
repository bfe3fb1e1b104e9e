#include "context_store/lease/lease_admission.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "context_store/arena/hidden_kv.h"
#include "context_store/invariant.h"
#include "policy/kv/kv_admission.h"

namespace withy::context_store {
namespace {

constexpr uint32_t kMaxClaimChunks = 1 << 16;

}  // namespace

// A copy on disk may have more bits than the arena, after a restart of an earlier build, or blocks
// that are not hidden any more since the context has become shorter.
void LeaseAdmission::LeaveSmallerSlots(KvContext* context) {
  for (uint32_t i = 0; i < context->kv.chunks.size(); ++i) {
    ContextChunk& chunk = context->kv.chunks[i];
    if (!chunk.slot.has_value() || chunk.stored == 0) continue;
    const bool less = LacksBlocks(chunk.slot->format)
                          ? !LacksBlocks(chunk.stored_format) && !IsHidden(state_.kv, *context, i)
                          : HasFewerBits(chunk.slot->format, chunk.stored_format);
    if (less) LeaveSlot(&chunk, &context->kv, &state_.kv.pool);
  }
}

// A lease that is alone is always admitted: if slots of its own context lie in the way of what it
// needs, they go, and are read again or computed.
bool LeaseAdmission::TryAdmit(LeaseId id) {
  Lease& lease = state_.leases.at(id);
  KvContext* context = state_.ContextOf(lease);
  Invariant(context == nullptr || (context->holder == 0 && !context->locked),
            "a lease is admitted to a context that is free");
  if (context != nullptr && !state_.kv.compresses_ahead) LeaveSmallerSlots(context);
  const auto change = [&] {
    const uint32_t held = state_.HeldChunks(lease);
    const uint32_t chunks = context == nullptr || lease.rebuild
                                ? held
                                : static_cast<uint32_t>(context->kv.chunks.size());
    return LeaseRoom::Change{id, Lacking(chunks, held),
                             Lacking(lease.need, std::max(chunks, held))};
  };
  const bool alone = lease.rebuild || !room_.OthersAdmitted(id);
  if (!room_.CanAllFinish(change())) {
    if (!alone) return false;
    for (size_t i = context == nullptr || lease.rebuild ? 0 : context->kv.chunks.size(); i > 0;
         --i) {
      const bool there = i <= context->kv.chunks.size();  // it did not leave with another one
      if (there && context->kv.chunks[i - 1].slot.has_value()) {
        state_.kv.Evict(context, static_cast<uint32_t>(i - 1));
      }
    }
  }
  lease.to_load = change().takes;
  lease.admitted = true;
  if (lease.granted) return true;
  lease.granted = true;
  --state_.waiting;
  if (context != nullptr) {
    context->next = 0;
    context->holder = id;
  }
  return true;
}

bool LeaseAdmission::MayOvertake(LeaseId id) const {
  for (auto lease = state_.leases.begin(); lease != state_.leases.end() && lease->first < id;
       ++lease) {
    if (state_.WaitsForRoom(lease->first) && lease->second.overtaken >= policy::kMostOvertaken) {
      return false;
    }
  }
  return true;
}

void LeaseAdmission::CountOvertaken(LeaseId by) {
  for (auto lease = state_.leases.begin(); lease != state_.leases.end() && lease->first < by;
       ++lease) {
    if (state_.WaitsForRoom(lease->first)) ++lease->second.overtaken;
  }
}

absl::StatusOr<ClaimRange> LeaseAdmission::CheckClaim(const Lease& lease, uint32_t first,
                                                      uint32_t count) const {
  const auto context = state_.kv.contexts.find(lease.context_id);
  const ContextChunks none;
  const ContextChunks& kv = context == state_.kv.contexts.end() ? none : context->second.kv;
  // A worker that has not heard yet of a chunk that could not be read claims behind it.
  const uint32_t next = std::max(NextChunk(lease.claimed, kv), lease.told);
  if (count == 0 || count > kMaxClaimChunks || first > next) {
    return absl::InvalidArgumentError(
        absl::StrCat("claim of ", Counted(count, "chunk"), " from ", first, ": 1 to ",
                     kMaxClaimChunks, " are possible, without a gap after chunk ", next));
  }
  if (lease.wish.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("claim of chunk ", first,
                                                   " while that of chunk ", lease.wish->first,
                                                   " has not been answered"));
  }
  return ClaimRange{first, count};
}

// Of the context's chunks from the first one on, the lease gets those that it may write.
LeaseAdmission::ClaimSizes LeaseAdmission::SizesOf(const Lease& lease,
                                                   const ClaimRange& range) const {
  ClaimSizes sizes{.fresh = range.count};
  for (auto own = lease.claimed.lower_bound(range.first);
       own != lease.claimed.end() && own->first < range.end(); ++own) {
    --sizes.fresh;
  }
  const auto context = state_.kv.contexts.find(lease.context_id);
  if (context == state_.kv.contexts.end() || lease.rebuild) return sizes;
  const std::vector<ContextChunk>& chunks = context->second.kv.chunks;
  for (uint32_t i = range.first; i < chunks.size(); ++i) {
    const bool writable = Writable(chunks[i], state_.kv.pool);
    if (writable && i < range.end() && !lease.claimed.contains(i)) --sizes.fresh;
    sizes.dropped += chunks[i].slot.has_value() && !writable ? 1 : 0;
  }
  return sizes;
}

std::optional<std::vector<ChunkSlot>> LeaseAdmission::TryClaim(LeaseId id, const ClaimRange& range,
                                                               uint64_t* evicted) {
  Lease& lease = state_.leases.at(id);
  KvContext* context = lease.rebuild ? nullptr : state_.ContextOf(lease);
  const ClaimSizes sizes = SizesOf(lease, range);
  const uint32_t held = Lacking(state_.HeldChunks(lease) + sizes.fresh, sizes.dropped);
  if (sizes.fresh > 0 && !room_.HasRoomFor(id, sizes.fresh, held)) return std::nullopt;
  std::vector<SlotAt> slots;
  const auto claim = [&] {
    const bool all = idle_.ClaimSlots(sizes.fresh, id, !lease.rebuild, evicted, &slots);
    if (all && room_.StandWell(id, slots, Lacking(lease.need, held))) return true;
    for (const SlotAt slot : slots) state_.kv.pool.Free(slot);
    slots.clear();
    return false;
  };
  bool claimed = claim();
  if (!claimed && context != nullptr && range.first < context->kv.chunks.size()) {
    // What the claim replaces may be in the way: slots of fewer bits, in an arena that one context
    // nearly fills.
    MoveToLease(range.first, id, &context->kv, &lease.claimed, &state_.kv.pool);
    state_.kv.Collect(context);
    claimed = claim();
  }
  if (!claimed && !lease.rebuild) {
    idle_.EvictAll(evicted);
    claimed = claim();
  }
  if (!claimed) return std::nullopt;
  if (context != nullptr) {
    MoveToLease(range.first, id, &context->kv, &lease.claimed, &state_.kv.pool);
    state_.kv.Collect(context);
  }
  std::vector<ChunkSlot> chunks;
  for (uint32_t chunk = range.first; chunk < range.end(); ++chunk) {
    const auto [slot, added] = lease.claimed.try_emplace(chunk, 0);
    if (added) {
      slot->second = slots.back();
      slots.pop_back();
    }
    chunks.push_back({chunk, {slot->second, KvFormat::kQ8}});
  }
  // While room was made, a slot may have become the context's own that it had shared.
  for (const SlotAt slot : slots) state_.kv.pool.Free(slot);
  return chunks;
}

absl::Status LeaseAdmission::NoRoom(uint32_t chunks) const {
  const SlotPool::Counts& counts = state_.kv.pool.counts();
  return absl::ResourceExhaustedError(
      absl::StrCat("no room in the KV arena: ", Counted(chunks, "chunk"), " of ",
                   state_.kv.geometry.ChunkBytes(KvFormat::kQ8), " bytes wanted, ", counts.free,
                   " of ", counts.total, " bytes free, ", counts.quarantined, " quarantined"));
}

absl::StatusOr<ClaimAnswer> LeaseAdmission::Claim(LeaseId id, uint32_t first, uint32_t count,
                                                  uint64_t* evicted, bool may_wait) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, state_.Granted(id));
  WITHY_ASSIGN_OR_RETURN(const ClaimRange range, CheckClaim(*lease, first, count));
  const bool queued = state_.room_queue.contains(id);
  if (!queued) {
    if (auto chunks = TryClaim(id, range, evicted))
      return ClaimAnswer{.chunks = *std::move(chunks)};
  }
  const bool another_moves =
      std::any_of(state_.leases.begin(), state_.leases.end(), [id](const auto& entry) {
        return entry.first != id && entry.second.admitted && !entry.second.wish.has_value();
      });
  if (may_wait && !lease->rebuild && !lease->ahead &&
      (queued || another_moves || state_.RoomIsComing())) {
    lease->wish = range;
    lease->need = std::max(lease->need, range.end());
    lease->overtaken = queued ? lease->overtaken : 0;
    return ClaimAnswer{.waits = true};
  }
  if (lease->rebuild) {
    KvContext* context = state_.ContextOf(*lease);
    context->no_room = context->last_used;
  }
  return NoRoom(SizesOf(*lease, range).fresh);
}

void LeaseAdmission::Advance(Effects* effects) {
  ServeWishes(effects);
  AdmitWaiting(effects);
  RefuseIfStuck(effects);
}

void LeaseAdmission::ServeWishes(Effects* effects) {
  for (auto& [id, lease] : state_.leases) {
    if (!lease.wish.has_value() || state_.room_queue.contains(id)) continue;
    auto chunks = TryClaim(id, *lease.wish, &effects->evicted);
    if (!chunks.has_value()) continue;
    lease.wish.reset();
    effects->claims.push_back({.lease = id, .chunks = *std::move(chunks)});
  }
}

void LeaseAdmission::AdmitWaiting(Effects* effects) {
  bool begun = false;
  for (auto next = state_.room_queue.begin(); next != state_.room_queue.end();) {
    const LeaseId id = *next;
    const bool granted = state_.leases.at(id).granted;
    if (!MayOvertake(id) || !TryAdmit(id)) {
      ++next;
      continue;
    }
    next = state_.room_queue.erase(next);
    CountOvertaken(id);
    if (!granted) effects->granted.push_back(id);
    begun = begun || granted;
  }
  if (begun) ServeWishes(effects);
}

// Only slots that were taken out of use, for a worker that may still write to them, bring calls
// that were admitted to where none can go on.
void LeaseAdmission::RefuseIfStuck(Effects* effects) {
  LeaseId youngest = 0;
  for (const auto& [id, lease] : state_.leases) {
    if (!lease.admitted) continue;
    if (!lease.wish.has_value()) return;
    youngest = id;
  }
  if (youngest == 0 || state_.RoomIsComing()) return;
  Lease& lease = state_.leases.at(youngest);
  const ClaimRange range = *std::exchange(lease.wish, std::nullopt);
  effects->claims.push_back(
      {.lease = youngest, .refused = std::string(NoRoom(SizesOf(lease, range).fresh).message())});
}

}  // namespace withy::context_store
