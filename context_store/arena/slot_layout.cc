#include "context_store/arena/slot_layout.h"

#include <algorithm>
#include <deque>

namespace withy::context_store {

uint64_t LargestGap(const SlotPool& pool) {
  return pool.gaps().Largest().units * SlotPool::kUnitBytes;
}

uint64_t PlacesInGaps(const SlotPool& pool, uint64_t bytes) {
  uint64_t places = 0;
  for (const auto& [at, units] : pool.gaps().all()) places += units * SlotPool::kUnitBytes / bytes;
  return places;
}

uint64_t PlacesBeside(const SlotPool& pool, std::vector<SlotAt> staying, uint64_t bytes) {
  if (pool.counts().quarantined > 0) {
    for (const auto& [at, slot] : pool.slots()) {
      const bool quarantined = slot.state == SlotPool::State::kQuarantined;
      if (quarantined && slot.owner != SlotPool::kNobody) staying.push_back(at);
    }
  }
  std::sort(staying.begin(), staying.end());
  const uint64_t units = bytes / SlotPool::kUnitBytes;
  uint64_t places = 0, begin = 0;
  for (const SlotAt at : staying) {
    const auto slot = pool.slots().find(at);
    if (slot == pool.slots().end() || at < begin) continue;  // named twice
    places += (at - begin) / units;
    begin = uint64_t{at} + slot->second.units;
  }
  return places + (pool.counts().total / SlotPool::kUnitBytes - begin) / units;
}

std::vector<SlotAt> CheapestSlides(const SlotPool& pool, uint64_t bytes,
                                   const std::function<bool(SlotAt slot)>& may_slide) {
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
  const SlotPool::Slots& slots = pool.slots();
  const Gaps::ByPlace& gaps = pool.gaps().all();
  auto gap = gaps.begin();
  for (auto slot = slots.begin(); slot != slots.end() || gap != gaps.end();) {
    if (slot == slots.end() || (gap != gaps.end() && gap->first < slot->first)) {
      window.push_back({gap->first, gap->second * SlotPool::kUnitBytes % bytes, 0});
      left += window.back().left;
      ++gap;
      try_window();
      continue;
    }
    const SlotPool::Slot& one = slot->second;
    if (one.state == SlotPool::State::kResident && one.pins == 0 && may_slide(slot->first)) {
      window.push_back({slot->first, 0, one.bytes()});
      moved += window.back().moved;
    } else {
      window.clear();
      left = moved = 0;
    }
    ++slot;
  }
  return best;
}

std::vector<SlotPool::Pages> WithheldPages(const SlotPool& pool) {
  std::vector<SlotPool::Pages> withheld;
  for (const auto& [at, slot] : pool.slots()) {
    if (slot.state == SlotPool::State::kWithheld)
      withheld.push_back({at * SlotPool::kUnitBytes, slot.bytes()});
  }
  return withheld;
}

bool FillsItsSpace(const SlotPool& pool) {
  Gaps::ByPlace all = pool.gaps().all();
  for (const auto& [at, slot] : pool.slots()) {
    if (!all.emplace(at, slot.units).second) return false;
  }
  uint64_t next = 0;
  bool gap_before = false;
  for (const auto& [at, units] : all) {
    const bool gap = !pool.slots().contains(at);
    if (at != next || (gap && gap_before)) return false;
    next = uint64_t{at} + units;
    gap_before = gap;
  }
  const SlotPool::Counts& counts = pool.counts();
  return next * SlotPool::kUnitBytes == counts.total &&
         counts.free + counts.claimed + counts.resident + counts.quarantined + counts.withheld ==
             counts.total;
}

}  // namespace withy::context_store
