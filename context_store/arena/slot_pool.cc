#include "context_store/arena/slot_pool.h"

#include <algorithm>
#include <iterator>

#include "base/round_up.h"
#include "context_store/invariant.h"
#include "engine/kv/memory.h"

namespace withy::context_store {

void SlotPool::Reset(uint64_t bytes) {
  ++run_;
  slots_.clear();
  gaps_.Clear();
  // The last unit number means "none".
  const uint64_t units = std::min<uint64_t>(bytes / kUnitBytes, engine::KvBlockName::kNone - 1);
  counts_ = Counts{.total = units * kUnitBytes, .free = units * kUnitBytes};
  if (units > 0) gaps_.Add({0, static_cast<uint32_t>(units)});
}

uint64_t& SlotPool::Counts::Of(State state) {
  switch (state) {
    case State::kClaimed:
      return claimed;
    case State::kResident:
      return resident;
    case State::kQuarantined:
      return quarantined;
    case State::kWithheld:
      break;
  }
  return withheld;
}

std::optional<SlotAt> SlotPool::Claim(uint64_t bytes, uint64_t owner) {
  Invariant(bytes > 0 && bytes % kUnitBytes == 0, "a slot is a multiple of 64 bytes");
  if (bytes > counts_.free) return std::nullopt;
  const std::optional<Gap> gap = gaps_.Smallest(static_cast<uint32_t>(bytes / kUnitBytes));
  if (!gap.has_value() || !ClaimAt(gap->at, bytes, owner)) return std::nullopt;
  return gap->at;
}

bool SlotPool::ClaimAt(SlotAt at, uint64_t bytes, uint64_t owner) {
  return bytes > 0 && bytes % kUnitBytes == 0 && AddSlot(at, bytes, State::kClaimed, owner);
}

// Cuts a slot out of the gap that holds it; false: none does.
bool SlotPool::AddSlot(SlotAt at, uint64_t bytes, State state, uint64_t owner) {
  if (bytes > counts_.free) return false;
  const auto units = static_cast<uint32_t>(bytes / kUnitBytes);
  if (!gaps_.Cut({at, units})) return false;
  slots_[at] = {.units = units, .state = state, .owner = owner};
  counts_.free -= bytes;
  counts_.Of(state) += bytes;
  return true;
}

std::optional<SlotPool::Pages> SlotPool::Withhold(uint64_t bytes, uint64_t page_bytes) {
  const Gap gap = gaps_.Largest();
  const uint64_t begin = RoundUp(gap.at * kUnitBytes, page_bytes);
  const uint64_t end = gap.end() * kUnitBytes / page_bytes * page_bytes;
  if (end <= begin) return std::nullopt;
  const uint64_t wanted = std::max(bytes / page_bytes * page_bytes, page_bytes);
  const Pages pages{begin, std::min(wanted, end - begin)};
  if (!AddSlot(static_cast<SlotAt>(begin / kUnitBytes), pages.bytes, State::kWithheld, kNobody)) {
    return std::nullopt;
  }
  return pages;
}

void SlotPool::GiveBack(uint64_t bytes) {
  const uint64_t before = counts_.withheld;
  for (auto slot = slots_.begin(); slot != slots_.end() && before - counts_.withheld < bytes;) {
    const auto next = std::next(slot);
    if (slot->second.state == State::kWithheld) Erase(slot);
    slot = next;
  }
}

SlotPool::Slot& SlotPool::Find(SlotAt slot, const char* what) {
  const auto found = slots_.find(slot);
  Invariant(found != slots_.end(), what);
  return found->second;
}

void SlotPool::Move(SlotAt at, Slot& slot, State to, uint64_t owner) {
  if (slot.state == State::kResident && on_leave_) on_leave_(at);
  counts_.Of(slot.state) -= slot.bytes();
  counts_.Of(to) += slot.bytes();
  slot.state = to;
  slot.owner = owner;
}

void SlotPool::Erase(std::map<SlotAt, Slot>::iterator slot) {
  const auto& [at, freed] = *slot;
  if (freed.state == State::kResident && on_leave_) on_leave_(at);
  counts_.Of(freed.state) -= freed.bytes();
  counts_.free += freed.bytes();
  gaps_.Add({at, freed.units});
  slots_.erase(slot);
}

void SlotPool::Keep(SlotAt at) {
  Slot& slot = Find(at, "a kept slot exists");
  Invariant(slot.state == State::kClaimed, "a kept slot was claimed");
  Move(at, slot, State::kResident, 0);
}

void SlotPool::Share(SlotAt at) {
  Slot& slot = Find(at, "a shared slot exists");
  Invariant(slot.state == State::kResident, "a shared slot is resident");
  counts_.shared_slots += slot.contexts == 1 ? 1 : 0;
  counts_.saved += slot.bytes();
  ++slot.contexts;
}

void SlotPool::Take(SlotAt at, uint64_t owner) {
  Slot& slot = Find(at, "a taken slot exists");
  Invariant(slot.state == State::kResident && slot.contexts == 1,
            "a taken slot was resident, for one context");
  Move(at, slot, State::kClaimed, owner);
}

std::optional<SlotAt> SlotPool::Slide(SlotAt at) {
  const Slot slot = Find(at, "a slot that slides exists");
  Invariant(slot.state == State::kResident && slot.pins == 0,
            "a slot that slides is resident and not pinned");
  const std::optional<Gap> gap = gaps_.EndingAt(at);
  if (!gap.has_value()) return std::nullopt;
  Erase(slots_.find(at));
  Invariant(AddSlot(gap->at, slot.bytes(), slot.state, slot.owner),
            "a gap holds the slot behind it");
  slots_[gap->at] = slot;
  return gap->at;
}

void SlotPool::Free(SlotAt at) {
  Slot& slot = Find(at, "a freed slot exists");
  Invariant(slot.state == State::kClaimed || slot.state == State::kResident,
            "a freed slot had an owner");
  if (slot.contexts > 1) {
    --slot.contexts;
    counts_.shared_slots -= slot.contexts == 1 ? 1 : 0;
    counts_.saved -= slot.bytes();
    return;
  }
  if (slot.pins > 0) {
    Move(at, slot, State::kQuarantined, kNobody);
  } else {
    Erase(slots_.find(at));
  }
}

void SlotPool::Quarantine(SlotAt at, uint64_t writer) {
  Slot& slot = Find(at, "a quarantined slot exists");
  Invariant((slot.state == State::kClaimed || slot.state == State::kResident) &&
                slot.contexts == 1 && writer != kNobody,
            "a quarantined slot had one owner");
  Move(at, slot, State::kQuarantined, writer);
}

void SlotPool::Release(uint64_t writer) {
  for (auto slot = slots_.begin(); slot != slots_.end() && counts_.quarantined > 0;) {
    const auto next = std::next(slot);
    if (slot->second.state == State::kQuarantined && slot->second.owner == writer) {
      if (slot->second.pins > 0) {
        slot->second.owner = kNobody;
      } else {
        Erase(slot);
      }
    }
    slot = next;
  }
}

uint64_t SlotPool::Pin(SlotAt slot) {
  ++Find(slot, "a pinned slot exists").pins;
  ++counts_.pins;
  return run_;
}

void SlotPool::Unpin(SlotAt at, uint64_t run) {
  if (run != run_) return;
  Slot& slot = Find(at, "an unpinned slot exists");
  Invariant(slot.pins > 0, "an unpinned slot was pinned");
  --slot.pins;
  --counts_.pins;
  if (slot.pins == 0 && slot.state == State::kQuarantined && slot.owner == kNobody) {
    Erase(slots_.find(at));
  }
}

}  // namespace withy::context_store
