#include "context_store/arena/slot_pool.h"

#include <algorithm>
#include <deque>
#include <iterator>

#include "base/round_up.h"
#include "context_store/invariant.h"
#include "engine/kv/memory.h"

namespace withy::context_store {
namespace {

constexpr uint64_t kUnit = engine::KvBlockName::kUnitBytes;

}  // namespace

void SlotPool::Reset(uint64_t bytes) {
  ++run_;
  pins_ = 0;
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
      return counts_.quarantined;
    case State::kWithheld:
      break;
  }
  return counts_.withheld;
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
  const SlotAt at = fits->second;
  AddSlot(gaps_.find(at), at, units, State::kClaimed, owner);
  return at;
}

bool SlotPool::ClaimAt(SlotAt at, uint64_t bytes, uint64_t owner) {
  const uint64_t units = bytes / kUnit;
  auto gap = gaps_.upper_bound(at);
  if (units == 0 || bytes % kUnit != 0 || gap == gaps_.begin()) return false;
  --gap;
  if (at + units > uint64_t{gap->first} + gap->second) return false;
  AddSlot(gap, at, static_cast<uint32_t>(units), State::kClaimed, owner);
  return true;
}

// Cuts a slot out of a gap that holds it.
void SlotPool::AddSlot(std::map<uint32_t, uint32_t>::iterator gap, SlotAt at, uint32_t units,
                       State state, uint64_t owner) {
  const uint32_t first = gap->first;
  const uint32_t end = first + gap->second;
  RemoveGap(gap);
  if (at > first) AddGap(first, at - first);
  if (at + units < end) AddGap(at + units, end - at - units);
  slots_[at] = {.units = units, .state = state, .owner = owner};
  counts_.free -= units * kUnit;
  CountOf(state) += units * kUnit;
}

std::optional<SlotPool::Pages> SlotPool::Withhold(uint64_t bytes, uint64_t page_bytes) {
  if (by_size_.empty()) return std::nullopt;
  const auto gap = gaps_.find(by_size_.rbegin()->second);
  const uint64_t begin = RoundUp(gap->first * kUnit, page_bytes);
  const uint64_t end = (gap->first + uint64_t{gap->second}) * kUnit / page_bytes * page_bytes;
  if (end <= begin) return std::nullopt;
  const uint64_t wanted = std::max(bytes / page_bytes * page_bytes, page_bytes);
  const Pages pages{begin, std::min(wanted, end - begin)};
  AddSlot(gap, static_cast<SlotAt>(begin / kUnit), static_cast<uint32_t>(pages.bytes / kUnit),
          State::kWithheld, kNobody);
  return pages;
}

std::vector<SlotPool::Pages> SlotPool::Withheld() const {
  std::vector<Pages> withheld;
  for (const auto& [at, slot] : slots_) {
    if (slot.state == State::kWithheld) withheld.push_back({at * kUnit, slot.units * kUnit});
  }
  return withheld;
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

void SlotPool::Leave(SlotAt at, const Slot& slot) {
  if (slot.state == State::kResident && on_leave_) on_leave_(at);
}

void SlotPool::Keep(SlotAt at) {
  Slot& slot = Find(at, "a kept slot exists");
  Invariant(slot.state == State::kClaimed, "a kept slot was claimed");
  Move(slot, State::kResident, 0);
}

void SlotPool::Share(SlotAt at) {
  Slot& slot = Find(at, "a shared slot exists");
  Invariant(slot.state == State::kResident, "a shared slot is resident");
  counts_.shared_slots += slot.contexts == 1 ? 1 : 0;
  counts_.saved += slot.units * kUnit;
  ++slot.contexts;
}

void SlotPool::Take(SlotAt at, uint64_t owner) {
  Slot& slot = Find(at, "a taken slot exists");
  Invariant(slot.state == State::kResident && slot.contexts == 1,
            "a taken slot was resident, for one context");
  Leave(at, slot);
  Move(slot, State::kClaimed, owner);
}

std::optional<SlotAt> SlotPool::Slide(SlotAt at) {
  const Slot slot = Find(at, "a slot that slides exists");
  Invariant(slot.state == State::kResident && slot.pins == 0,
            "a slot that slides is resident and not pinned");
  auto gap = gaps_.lower_bound(at);
  if (gap == gaps_.begin()) return std::nullopt;
  --gap;
  if (gap->first + gap->second != at) return std::nullopt;
  const auto [to, units] = *gap;
  Leave(at, slot);
  RemoveGap(gap);
  slots_.erase(at);
  slots_[to] = slot;
  AddGap(to + slot.units, units);
  return to;
}

void SlotPool::Free(SlotAt at) {
  Slot& slot = Find(at, "a freed slot exists");
  Invariant(slot.state == State::kClaimed || slot.state == State::kResident,
            "a freed slot had an owner");
  if (slot.contexts > 1) {
    --slot.contexts;
    counts_.shared_slots -= slot.contexts == 1 ? 1 : 0;
    counts_.saved -= slot.units * kUnit;
    return;
  }
  Leave(at, slot);
  if (slot.pins > 0) {
    Move(slot, State::kQuarantined, kNobody);
  } else {
    Erase(slots_.find(at));
  }
}

void SlotPool::Quarantine(SlotAt at, uint64_t writer) {
  Slot& slot = Find(at, "a quarantined slot exists");
  Invariant((slot.state == State::kClaimed || slot.state == State::kResident) &&
                slot.contexts == 1 && writer != kNobody,
            "a quarantined slot had one owner");
  Leave(at, slot);
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
  ++pins_;
  return run_;
}

void SlotPool::Unpin(SlotAt at, uint64_t run) {
  if (run != run_) return;
  Slot& slot = Find(at, "an unpinned slot exists");
  Invariant(slot.pins > 0, "an unpinned slot was pinned");
  --slot.pins;
  --pins_;
  if (slot.pins == 0 && slot.state == State::kQuarantined && slot.owner == kNobody) {
    Erase(slots_.find(at));
  }
}

uint64_t SlotPool::LargestGap() const {
  return by_size_.empty() ? 0 : uint64_t{by_size_.rbegin()->first} * kUnit;
}

uint64_t SlotPool::PlacesBeside(std::vector<SlotAt> staying, uint64_t bytes) const {
  if (counts_.quarantined > 0) {
    for (const auto& [at, slot] : slots_) {
      if (slot.state == State::kQuarantined && slot.owner != kNobody) staying.push_back(at);
    }
  }
  std::sort(staying.begin(), staying.end());
  const uint64_t units = bytes / kUnit;
  uint64_t places = 0, begin = 0;
  for (const SlotAt at : staying) {
    const auto slot = slots_.find(at);
    if (slot == slots_.end() || at < begin) continue;  // named twice
    places += (at - begin) / units;
    begin = uint64_t{at} + slot->second.units;
  }
  return places + (counts_.total / kUnit - begin) / units;
}

uint64_t SlotPool::Holds(uint64_t bytes) const {
  uint64_t slots = 0;
  for (const auto& [at, units] : gaps_) slots += units * kUnit / bytes;
  return slots;
}

uint64_t SlotPool::bytes(SlotAt slot) const { return slots_.at(slot).units * kUnit; }

std::vector<SlotAt> SlotPool::CheapestSlides(
    uint64_t bytes, const std::function<bool(SlotAt slot)>& may_slide) const {
  // A window of neighbours that can all be moved, from a gap to a gap. What a gap holds by itself
  // does not count: only what is left over of it adds to the others.
  struct Part {
    SlotAt at;
    uint64_t left;   // of a gap
    uint64_t moved;  // of a slot
  };
  std::deque<Part> window;
  uint64_t left = 0, moved = 0, least_moved = UINT64_MAX;
  std::vector<SlotAt> best;
  const auto shorten = [&] {
    left -= window.front().left;
    moved -= window.front().moved;
    window.pop_front();
  };
  const auto try_window = [&] {
    while (!window.empty() && left - window.front().left >= bytes) shorten();
    if (left < bytes || moved >= least_moved) return;
    least_moved = moved;
    best.clear();
    bool behind_gap = false;
    for (const Part& part : window) {
      behind_gap = behind_gap || part.moved == 0;
      if (part.moved > 0 && behind_gap) best.push_back(part.at);
    }
  };
  auto gap = gaps_.begin();
  for (auto slot = slots_.begin(); slot != slots_.end() || gap != gaps_.end();) {
    if (slot == slots_.end() || (gap != gaps_.end() && gap->first < slot->first)) {
      window.push_back({gap->first, gap->second * kUnit % bytes, 0});
      left += window.back().left;
      ++gap;
      try_window();
      continue;
    }
    const Slot& one = slot->second;
    if (one.state == State::kResident && one.pins == 0 && may_slide(slot->first)) {
      window.push_back({slot->first, 0, one.units * kUnit});
      moved += window.back().moved;
    } else {
      window.clear();
      left = moved = 0;
    }
    ++slot;
  }
  return best;
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
         counts_.free + counts_.claimed + counts_.resident + counts_.quarantined +
                 counts_.withheld ==
             counts_.total;
}

}  // namespace withy::context_store
