#include "context_store/slot_pool.h"

#include <algorithm>
#include <iterator>

#include "context_store/invariant.h"
#include "engine/kv/memory.h"

namespace withy::context_store {
namespace {

constexpr uint64_t kUnit = engine::KvBlockName::kUnitBytes;

}  // namespace

void SlotPool::Reset(uint64_t bytes) {
  ++run_;
  slots_.clear();
  gaps_.clear();
  by_size_.clear();
  // The last unit number means "none".
  const uint64_t units = std::min<uint64_t>(bytes / kUnit, engine::KvBlockName::kNone - 1);
  counts_ = Counts{.total = units * kUnit, .free = units * kUnit};
  if (units > 0) AddGap(0, static_cast<uint32_t>(units));
}

uint64_t& SlotPool::CountOf(State state) {
  switch (state) {
    case State::kClaimed:
      return counts_.claimed;
    case State::kResident:
      return counts_.resident;
    case State::kQuarantined:
      break;
  }
  return counts_.quarantined;
}

void SlotPool::AddGap(uint32_t at, uint32_t units) {
  auto next = gaps_.lower_bound(at);
  if (next != gaps_.end() && next->first == at + units) {
    units += next->second;
    const auto after = std::next(next);
    RemoveGap(next);
    next = after;
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == at) {
      at = before->first;
      units += before->second;
      RemoveGap(before);
    }
  }
  gaps_.emplace(at, units);
  by_size_.emplace(units, at);
}

void SlotPool::RemoveGap(std::map<uint32_t, uint32_t>::iterator gap) {
  by_size_.erase({gap->second, gap->first});
  gaps_.erase(gap);
}

std::optional<SlotAt> SlotPool::Claim(uint64_t bytes, uint64_t owner) {
  Invariant(bytes > 0 && bytes % kUnit == 0, "a slot is a multiple of 64 bytes");
  if (bytes > counts_.free) return std::nullopt;
  const auto units = static_cast<uint32_t>(bytes / kUnit);
  const auto fits = by_size_.lower_bound({units, 0});
  if (fits == by_size_.end()) return std::nullopt;
  const auto [gap_units, at] = *fits;
  RemoveGap(gaps_.find(at));
  if (gap_units > units) AddGap(at + units, gap_units - units);
  slots_[at] = {.units = units, .state = State::kClaimed, .owner = owner};
  counts_.free -= bytes;
  counts_.claimed += bytes;
  return at;
}

SlotPool::Slot& SlotPool::Find(SlotAt slot, const char* what) {
  const auto found = slots_.find(slot);
  Invariant(found != slots_.end(), what);
  return found->second;
}

void SlotPool::Move(Slot& slot, State to, uint64_t owner) {
  CountOf(slot.state) -= slot.units * kUnit;
  CountOf(to) += slot.units * kUnit;
  slot.state = to;
  slot.owner = owner;
}

void SlotPool::Erase(std::map<SlotAt, Slot>::iterator slot) {
  const uint64_t bytes = slot->second.units * kUnit;
  CountOf(slot->second.state) -= bytes;
  counts_.free += bytes;
  AddGap(slot->first, slot->second.units);
  slots_.erase(slot);
}

void SlotPool::Keep(SlotAt at) {
  Slot& slot = Find(at, "a kept slot exists");
  Invariant(slot.state == State::kClaimed, "a kept slot was claimed");
  Move(slot, State::kResident, 0);
}

void SlotPool::Take(SlotAt at, uint64_t owner) {
  Slot& slot = Find(at, "a taken slot exists");
  Invariant(slot.state == State::kResident, "a taken slot was resident");
  Move(slot, State::kClaimed, owner);
}

void SlotPool::Free(SlotAt at) {
  Slot& slot = Find(at, "a freed slot exists");
  Invariant(slot.state != State::kQuarantined, "a freed slot was not quarantined");
  if (slot.pins > 0) {
    Move(slot, State::kQuarantined, kNobody);
  } else {
    Erase(slots_.find(at));
  }
}

void SlotPool::Quarantine(SlotAt at, uint64_t writer) {
  Slot& slot = Find(at, "a quarantined slot exists");
  Invariant(slot.state != State::kQuarantined && writer != kNobody,
            "a quarantined slot had an owner");
  Move(slot, State::kQuarantined, writer);
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
  return run_;
}

void SlotPool::Unpin(SlotAt at, uint64_t run) {
  if (run != run_) return;
  Slot& slot = Find(at, "an unpinned slot exists");
  Invariant(slot.pins > 0, "an unpinned slot was pinned");
  --slot.pins;
  if (slot.pins == 0 && slot.state == State::kQuarantined && slot.owner == kNobody) {
    Erase(slots_.find(at));
  }
}

uint64_t SlotPool::LargestGap() const {
  return by_size_.empty() ? 0 : uint64_t{by_size_.rbegin()->first} * kUnit;
}

bool SlotPool::Consistent() const {
  std::map<uint32_t, uint32_t> all = gaps_;
  for (const auto& [at, slot] : slots_) {
    if (!all.emplace(at, slot.units).second) return false;
  }
  uint64_t next = 0;
  bool gap_before = false;
  for (const auto& [at, units] : all) {
    const bool gap = gaps_.contains(at) && !slots_.contains(at);
    if (at != next || (gap && gap_before)) return false;
    next = uint64_t{at} + units;
    gap_before = gap;
  }
  return next * kUnit == counts_.total && by_size_.size() == gaps_.size() &&
         counts_.free + counts_.claimed + counts_.resident + counts_.quarantined == counts_.total;
}

}  // namespace withy::context_store
