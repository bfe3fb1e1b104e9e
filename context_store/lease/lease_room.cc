#include "context_store/lease/lease_room.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "context_store/arena/slot_layout.h"
#include "policy/kv/kv_admission.h"

namespace withy::context_store {

std::vector<LeaseRoom::Holding> LeaseRoom::HoldingsWith(const Change& change) const {
  std::vector<Holding> holdings;
  for (const auto& [id, lease] : state_.leases) {
    if (!lease.granted && id != change.lease) continue;
    Holding& holding = holdings.emplace_back(Holding{.lease = id});
    for (const auto& [chunk, slot] : lease.claimed) {
      holding.slots.push_back({slot, KvFormat::kQ8});
    }
    if (id == change.lease) {
      for (const SlotAt slot : change.slots) holding.slots.push_back({slot, KvFormat::kQ8});
    }
    const auto context = state_.kv.contexts.find(lease.context_id);
    if (context == state_.kv.contexts.end()) continue;
    for (const ContextChunk& chunk : context->second.kv.chunks) {
      if (chunk.slot.has_value()) holding.slots.push_back(*chunk.slot);
    }
  }
  return holdings;
}

// Slots of contexts that are idle count as gaps, and those that are withheld from use, too. A slot
// of fewer bits may leave no room for one of 8 bits when it goes, so it counts as none.
bool LeaseRoom::CanAllFinish(const Change& change) const {
  const std::vector<Holding> holdings = HoldingsWith(change);
  std::unordered_map<SlotAt, uint32_t> users;
  for (const Holding& holding : holdings) {
    for (const KvSlot& slot : holding.slots) ++users[slot.units];
  }
  std::vector<policy::KvHolder> holders;
  uint64_t taken = change.takes;
  for (const Holding& holding : holdings) {
    const Lease& lease = state_.leases.at(holding.lease);
    const bool changes = holding.lease == change.lease;
    if (lease.ahead || (!lease.admitted && !changes)) continue;  // when it ends is not known
    const bool ends = lease.rebuild || lease.committing;
    const uint32_t takes = changes ? change.takes : lease.to_load;
    const uint32_t more =
        changes ? change.more : Lacking(lease.need, state_.HeldChunks(lease) + lease.to_load);
    if (!changes) taken += takes;
    const auto freed =
        std::count_if(holding.slots.begin(), holding.slots.end(), [&](const KvSlot& slot) {
          return slot.format == KvFormat::kQ8 && users.at(slot.units) == 1;
        });
    holders.push_back({.more = ends ? 0 : more, .freed = static_cast<uint32_t>(freed) + takes});
  }
  std::vector<SlotAt> staying;
  for (const auto& [slot, count] : users) staying.push_back(slot);
  const uint64_t places = PlacesBeside(state_.kv.pool, std::move(staying),
                                       state_.kv.geometry.ChunkBytes(KvFormat::kQ8));
  return taken <= places && policy::AllCanFinish(places - taken, std::move(holders));
}

bool LeaseRoom::HasRoomFor(LeaseId id, uint32_t takes, uint32_t held) const {
  if (!OthersAdmitted(id)) return true;
  return CanAllFinish({id, takes, Lacking(state_.leases.at(id).need, held)});
}

bool LeaseRoom::StandWell(LeaseId id, std::span<const SlotAt> slots, uint32_t more) const {
  if (slots.empty() || !OthersAdmitted(id)) return true;
  return CanAllFinish({id, 0, more, slots});
}

bool LeaseRoom::OthersAdmitted(LeaseId id) const {
  return std::any_of(state_.leases.begin(), state_.leases.end(), [id](const auto& entry) {
    return entry.first != id && entry.second.admitted;
  });
}

}  // namespace withy::context_store
