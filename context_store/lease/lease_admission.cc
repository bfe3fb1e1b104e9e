// LeaseTable: room in the arena for the leases that are open. A lease that asks for more than can
// be given now waits for another one to end; see policy/kv/kv_admission.h for what is given.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "base/status.h"
#include "base/strings.h"
#include "context_store/invariant.h"
#include "context_store/lease/lease_table.h"
#include "policy/kv/kv_admission.h"

namespace withy::context_store {
namespace {

constexpr uint32_t kMaxClaimChunks = 1 << 16;

uint32_t Less(uint32_t from, uint32_t less) { return from - std::min(from, less); }

absl::Status Stale(uint64_t epoch, uint64_t current) {
  return absl::AbortedError(
      absl::StrCat("epoch ", epoch, " is over, the arena's is ", current, ": attach again"));
}

}  // namespace

absl::StatusOr<LeaseOpening> LeaseTable::Open(const LeaseRequest& request) {
  if (request.epoch != epoch_ || worker_ == 0) return Stale(request.epoch, epoch_);
  if (open_leases() >= limits_.open) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit of ", Counted(limits_.open, "open lease"), " is reached"));
  }
  Context* context = nullptr;
  if (!request.context_id.empty()) {
    context = &kv_.FindOrAdd(request.context_id, request.app_id);
    if (context->locked) return absl::AbortedError("the context is being deleted");
  }
  const LeaseId id = last_lease_ + 1;
  Lease& lease = leases_[id];
  lease = {.epoch = request.epoch,
           .worker = worker_,
           .context_id = std::string(request.context_id),
           .granted = request.ahead,
           .rebuild = request.rebuild && context != nullptr,
           .need = request.need,
           .ahead = request.ahead};
  ++waiting_;
  const bool taken = context != nullptr && context->taken();
  if (request.ahead) {
    --waiting_;
  } else if (!taken && MayOvertake(id) && TryAdmit(id)) {
    CountOvertaken(id);
  } else if (waiting_ > limits_.waiting) {
    leases_.erase(id);
    --waiting_;
    if (context != nullptr) kv_.EraseIfEmpty(context->id);
    return absl::ResourceExhaustedError(
        absl::StrCat("the limit of ", Counted(limits_.waiting, "waiting lease"), " is reached"));
  } else if (taken) {
    context->waiting.push_back(id);
  } else {
    if (context != nullptr) context->next = id;
    room_queue_.insert(id);
  }
  last_lease_ = id;
  return LeaseOpening{id, lease.granted};
}

absl::Status LeaseTable::Begin(LeaseId id, uint32_t need) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  if (!lease->ahead) return absl::InvalidArgumentError("begin: the lease was not opened ahead");
  lease->ahead = false;
  lease->need = need;
  if (MayOvertake(id) && TryAdmit(id)) {
    CountOvertaken(id);
  } else {
    room_queue_.insert(id);
  }
  return absl::OkStatus();
}

uint32_t LeaseTable::HeldChunks(const Lease& lease) const {
  auto held = static_cast<uint32_t>(lease.claimed.size());
  const auto context = contexts_.find(lease.context_id);
  if (context == contexts_.end() || lease.rebuild) return held;
  for (const ContextChunk& chunk : context->second.kv.chunks) held += chunk.slot.has_value();
  return held;
}

std::vector<LeaseTable::Holding> LeaseTable::HoldingsWith(LeaseId also) const {
  std::vector<Holding> holdings;
  for (const auto& [id, lease] : leases_) {
    if (!lease.granted && id != also) continue;
    Holding& holding = holdings.emplace_back(Holding{.lease = id});
    for (const auto& [chunk, slot] : lease.claimed) {
      holding.slots.push_back({slot, KvFormat::kQ8});
    }
    const auto context = contexts_.find(lease.context_id);
    if (context == contexts_.end()) continue;
    for (const ContextChunk& chunk : context->second.kv.chunks) {
      if (chunk.slot.has_value()) holding.slots.push_back(*chunk.slot);
    }
  }
  return holdings;
}

// Slots of contexts that are idle count as gaps, and those that are withheld from use, too. A slot
// of fewer bits may leave no room for one of 8 bits when it goes, so it counts as none.
bool LeaseTable::CanAllFinish(const Change& change) const {
  const std::vector<Holding> holdings = HoldingsWith(change.lease);
  std::unordered_map<SlotAt, uint32_t> users;
  for (const Holding& holding : holdings) {
    for (const KvSlot& slot : holding.slots) ++users[slot.units];
  }
  std::vector<policy::KvHolder> holders;
  uint64_t taken = change.takes;
  for (const Holding& holding : holdings) {
    const Lease& lease = leases_.at(holding.lease);
    const bool changes = holding.lease == change.lease;
    if (lease.ahead || (!lease.admitted && !changes)) continue;  // when it ends is not known
    const bool ends = lease.rebuild || lease.committing;
    const uint32_t takes = changes ? change.takes : lease.to_load;
    const uint32_t more =
        changes ? change.more : Less(lease.need, HeldChunks(lease) + lease.to_load);
    if (!changes) taken += takes;
    const auto freed =
        std::count_if(holding.slots.begin(), holding.slots.end(), [&](const KvSlot& slot) {
          return slot.format == KvFormat::kQ8 && users.at(slot.units) == 1;
        });
    holders.push_back({.more = ends ? 0 : more, .freed = static_cast<uint32_t>(freed) + takes});
  }
  std::vector<SlotAt> staying;
  for (const auto& [slot, count] : users) staying.push_back(slot);
  const uint64_t places =
      pool_.PlacesBeside(std::move(staying), geometry_.ChunkBytes(KvFormat::kQ8));
  return taken <= places && policy::AllCanFinish(places - taken, std::move(holders));
}

bool LeaseTable::HasRoomFor(LeaseId id, uint32_t takes, uint32_t held) const {
  if (!OthersAdmitted(id)) return true;
  return CanAllFinish({id, takes, Less(leases_.at(id).need, held)});
}

// Slots that were taken between those of idle contexts may cut a gap, that there would be without
// these, into two that are too small.
bool LeaseTable::StandWell(LeaseId id, std::span<const SlotAt> slots, uint32_t more) {
  if (slots.empty() || !OthersAdmitted(id)) return true;
  ClaimedChunks& claimed = leases_.at(id).claimed;
  // Numbers that no chunk has.
  uint32_t number = UINT32_MAX;
  for (const SlotAt slot : slots) claimed.emplace(number--, slot);
  const bool well = CanAllFinish({id, 0, more});
  claimed.erase(claimed.upper_bound(number), claimed.end());
  return well;
}

bool LeaseTable::OthersAdmitted(LeaseId id) const {
  return std::any_of(leases_.begin(), leases_.end(), [id](const auto& entry) {
    return entry.first != id && entry.second.admitted;
  });
}

// A lease that is alone is always admitted: if slots of its own context lie in the way of what it
// needs, they go, and are read again or computed.
bool LeaseTable::TryAdmit(LeaseId id) {
  Lease& lease = leases_.at(id);
  Context* context = ContextOf(lease);
  Invariant(context == nullptr || (context->holder == 0 && !context->locked),
            "a lease is admitted to a context that is free");
  if (context != nullptr && !kv_.compresses_ahead) LeaveSmallerSlots(&context->kv);
  const auto change = [&] {
    const uint32_t held = HeldChunks(lease);
    const uint32_t chunks = context == nullptr || lease.rebuild
                                ? held
                                : static_cast<uint32_t>(context->kv.chunks.size());
    return Change{id, Less(chunks, held), Less(lease.need, std::max(chunks, held))};
  };
  const bool alone = lease.rebuild || !OthersAdmitted(id);
  if (!CanAllFinish(change())) {
    if (!alone) return false;
    for (size_t i = context == nullptr || lease.rebuild ? 0 : context->kv.chunks.size(); i > 0;
         --i) {
      if (context->kv.chunks[i - 1].slot.has_value()) {
        kv_.Evict(context, static_cast<uint32_t>(i - 1));
      }
    }
  }
  lease.to_load = change().takes;
  lease.admitted = true;
  if (lease.granted) return true;
  lease.granted = true;
  --waiting_;
  if (context != nullptr) {
    context->next = 0;
    context->holder = id;
  }
  return true;
}

bool LeaseTable::MayOvertake(LeaseId id) const {
  for (auto lease = leases_.begin(); lease != leases_.end() && lease->first < id; ++lease) {
    if (WaitsForRoom(lease->first, lease->second) &&
        lease->second.overtaken >= policy::kMostOvertaken) {
      return false;
    }
  }
  return true;
}

void LeaseTable::CountOvertaken(LeaseId by) {
  for (auto lease = leases_.begin(); lease != leases_.end() && lease->first < by; ++lease) {
    if (WaitsForRoom(lease->first, lease->second)) ++lease->second.overtaken;
  }
}

absl::StatusOr<ClaimRange> LeaseTable::CheckClaim(const Lease& lease, uint32_t first,
                                                  uint32_t count) const {
  const auto context = contexts_.find(lease.context_id);
  const ContextChunks none;
  const ContextChunks& kv = context == contexts_.end() ? none : context->second.kv;
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
LeaseTable::ClaimSizes LeaseTable::SizesOf(const Lease& lease, const ClaimRange& range) const {
  ClaimSizes sizes{.fresh = range.count};
  for (auto own = lease.claimed.lower_bound(range.first);
       own != lease.claimed.end() && own->first < range.end(); ++own) {
    --sizes.fresh;
  }
  const auto context = contexts_.find(lease.context_id);
  if (context == contexts_.end() || lease.rebuild) return sizes;
  const std::vector<ContextChunk>& chunks = context->second.kv.chunks;
  for (uint32_t i = range.first; i < chunks.size(); ++i) {
    const bool writable = Writable(chunks[i], pool_);
    if (writable && i < range.end() && !lease.claimed.contains(i)) --sizes.fresh;
    sizes.dropped += chunks[i].slot.has_value() && !writable ? 1 : 0;
  }
  return sizes;
}

std::optional<std::vector<ChunkSlot>> LeaseTable::TryClaim(LeaseId id, const ClaimRange& range,
                                                           uint64_t* evicted) {
  Lease& lease = leases_.at(id);
  Context* context = lease.rebuild ? nullptr : ContextOf(lease);
  const ClaimSizes sizes = SizesOf(lease, range);
  const uint32_t held = Less(HeldChunks(lease) + sizes.fresh, sizes.dropped);
  if (sizes.fresh > 0 && !HasRoomFor(id, sizes.fresh, held)) return std::nullopt;
  std::vector<SlotAt> slots;
  const auto claim = [&] {
    const bool all = idle_.ClaimSlots(sizes.fresh, id, !lease.rebuild, evicted, &slots);
    if (all && StandWell(id, slots, Less(lease.need, held))) return true;
    for (const SlotAt slot : slots) pool_.Free(slot);
    slots.clear();
    return false;
  };
  bool claimed = claim();
  if (!claimed && context != nullptr && range.first < context->kv.chunks.size()) {
    // What the claim replaces may be in the way: slots of fewer bits, in an arena that one context
    // nearly fills.
    TakeOver(range.first, id, &context->kv, &lease.claimed, &pool_);
    Collect(context);
    claimed = claim();
  }
  if (!claimed && !lease.rebuild) {
    idle_.EvictAll(evicted);
    claimed = claim();
  }
  if (!claimed) return std::nullopt;
  if (context != nullptr) {
    TakeOver(range.first, id, &context->kv, &lease.claimed, &pool_);
    Collect(context);
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
  for (const SlotAt slot : slots) pool_.Free(slot);
  return chunks;
}

absl::Status LeaseTable::NoRoom(uint32_t chunks) const {
  const SlotPool::Counts& counts = pool_.counts();
  return absl::ResourceExhaustedError(
      absl::StrCat("no room in the KV arena: ", Counted(chunks, "chunk"), " of ",
                   geometry_.ChunkBytes(KvFormat::kQ8), " bytes wanted, ", counts.free, " of ",
                   counts.total, " bytes free, ", counts.quarantined, " quarantined"));
}

absl::StatusOr<ClaimAnswer> LeaseTable::Claim(LeaseId id, uint32_t first, uint32_t count,
                                              uint64_t* evicted, bool may_wait) {
  WITHY_ASSIGN_OR_RETURN(Lease * lease, Granted(id));
  WITHY_ASSIGN_OR_RETURN(const ClaimRange range, CheckClaim(*lease, first, count));
  const bool queued = room_queue_.contains(id);
  if (!queued) {
    if (auto chunks = TryClaim(id, range, evicted))
      return ClaimAnswer{.chunks = *std::move(chunks)};
  }
  const bool another_moves = std::any_of(leases_.begin(), leases_.end(), [id](const auto& entry) {
    return entry.first != id && entry.second.admitted && !entry.second.wish.has_value();
  });
  if (may_wait && !lease->rebuild && !lease->ahead && (queued || another_moves || RoomIsComing())) {
    lease->wish = range;
    lease->need = std::max(lease->need, range.end());
    lease->overtaken = queued ? lease->overtaken : 0;
    return ClaimAnswer{.waits = true};
  }
  if (lease->rebuild) {
    Context* context = ContextOf(*lease);
    context->no_room = context->last_used;
  }
  return NoRoom(SizesOf(*lease, range).fresh);
}

int64_t LeaseTable::waiting_for_room() const {
  return std::count_if(leases_.begin(), leases_.end(), [this](const auto& entry) {
    return WaitsForRoom(entry.first, entry.second);
  });
}

Effects LeaseTable::Advance() {
  Effects effects;
  Advance(&effects);
  return effects;
}

void LeaseTable::Advance(Effects* effects) {
  ServeWishes(effects);
  AdmitWaiting(effects);
  RefuseIfStuck(effects);
}

void LeaseTable::ServeWishes(Effects* effects) {
  for (auto& [id, lease] : leases_) {
    if (!lease.wish.has_value() || room_queue_.contains(id)) continue;
    auto chunks = TryClaim(id, *lease.wish, &effects->evicted);
    if (!chunks.has_value()) continue;
    lease.wish.reset();
    effects->claims.push_back({.lease = id, .chunks = *std::move(chunks)});
  }
}

void LeaseTable::AdmitWaiting(Effects* effects) {
  bool begun = false;
  for (auto next = room_queue_.begin(); next != room_queue_.end();) {
    const LeaseId id = *next;
    const bool granted = leases_.at(id).granted;
    if (!MayOvertake(id) || !TryAdmit(id)) {
      ++next;
      continue;
    }
    next = room_queue_.erase(next);
    CountOvertaken(id);
    if (!granted) effects->granted.push_back(id);
    begun = begun || granted;
  }
  if (begun) ServeWishes(effects);
}

// Only slots that were taken out of use, for a worker that may still write to them, bring calls
// that were admitted to where none can go on.
void LeaseTable::RefuseIfStuck(Effects* effects) {
  LeaseId youngest = 0;
  for (const auto& [id, lease] : leases_) {
    if (!lease.admitted) continue;
    if (!lease.wish.has_value()) return;
    youngest = id;
  }
  if (youngest == 0 || RoomIsComing()) return;
  Lease& lease = leases_.at(youngest);
  const ClaimRange range = *std::exchange(lease.wish, std::nullopt);
  effects->claims.push_back(
      {.lease = youngest, .refused = std::string(NoRoom(SizesOf(lease, range).fresh).message())});
}

}  // namespace withy::context_store
