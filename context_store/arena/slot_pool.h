// Space of the arena: a pure allocator of slots, each the memory of one chunk. It knows sizes and
// owners, no bytes, contexts or formats. Slots of all sizes share the space: a slot takes the
// smallest gap that holds it. Neighbours: gaps.h has what is free, slot_layout.h tells where there
// would be room, lease_table.h moves slots between leases and contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>

#include "context_store/arena/gaps.h"
#include "engine/kv/memory.h"

namespace withy::context_store {

// A slot's offset in the arena, in units of 64 bytes (engine/kv/memory.h).
using SlotAt = uint32_t;

// Not thread-safe: guarded by its owner's lock. A transition that is not listed below is a bug of
// the caller and ends the process.
class SlotPool {
 public:
  //  Claim --> kClaimed --Keep--> kResident --Take--> kClaimed
  //  kClaimed, kResident --Free--> gone;  kClaimed, kResident --Quarantine--> kQuarantined
  //  kQuarantined --Release--> gone;  Withhold --> kWithheld --GiveBack--> gone
  //  kResident --Share--> kResident with one context more, which Free takes away again
  enum class State : uint8_t { kClaimed, kResident, kQuarantined, kWithheld };

  // In bytes.
  struct Counts {
    uint64_t total = 0;
    uint64_t free = 0;
    uint64_t claimed = 0;
    uint64_t resident = 0;
    uint64_t quarantined = 0;
    uint64_t withheld = 0;
    // Of resident slots: those that several contexts have, and what these would take more if each
    // had its own.
    uint64_t shared_slots = 0;
    uint64_t saved = 0;
    uint64_t pins = 0;  // that have not ended: room that appears when they do

    uint64_t& Of(State state);
  };

  static constexpr uint64_t kUnitBytes = engine::KvBlockName::kUnitBytes;
  static constexpr uint64_t kNobody = 0;  // owner of a slot that is freed and pinned
  struct Slot {
    uint32_t units = 0;
    State state = State::kClaimed;
    uint64_t owner = 0;
    uint32_t pins = 0;
    uint32_t contexts = 1;  // that have it; of a resident one

    uint64_t bytes() const { return units * kUnitBytes; }
  };
  using Slots = std::map<SlotAt, Slot>;

  // Called when a slot stops being resident, before it can be claimed. Not by Reset.
  using OnLeave = std::function<void(SlotAt slot)>;
  void set_on_leave(OnLeave on_leave) { on_leave_ = std::move(on_leave); }

  // Resets the pool to `bytes` free bytes, of which whole units count.
  void Reset(uint64_t bytes);

  // A slot of `bytes` (a multiple of 64) for `owner` (a lease); nullopt if no gap holds it.
  [[nodiscard]] std::optional<SlotAt> Claim(uint64_t bytes, uint64_t owner);
  // A slot of `bytes` at this place; false if part of it is not free.
  [[nodiscard]] bool ClaimAt(SlotAt slot, uint64_t bytes, uint64_t owner);
  // Moves a lease's slot to its context.
  void Keep(SlotAt slot);
  // Moves a context's slot to `owner` (a lease).
  void Take(SlotAt slot, uint64_t owner);
  // Moves a resident slot that is not pinned down to the start of the gap before it, so that gaps
  // become one; nullopt: there is none. The caller moves the bytes.
  std::optional<SlotAt> Slide(SlotAt slot);
  // One more context has the resident slot. Free ends it for one of them; Take and Quarantine are
  // for a slot that one context has.
  void Share(SlotAt slot);
  void Free(SlotAt slot);
  // Withholds the slot until `writer` (a worker, not 0) can no longer write to it.
  void Quarantine(SlotAt slot, uint64_t writer);
  // Frees all slots quarantined for `writer`.
  void Release(uint64_t writer);

  // Takes whole pages of the largest gap out of use, at most `bytes` (at least a page), so that
  // their memory can be given to the system. nullopt: no gap has a whole page.
  struct Pages {
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };
  std::optional<Pages> Withhold(uint64_t bytes, uint64_t page_bytes);
  // Makes at least `bytes` of what was withheld free again, or all of it.
  void GiveBack(uint64_t bytes);

  // While the store itself reads a slot, a pinned slot that is freed is withheld until Unpin. Pins
  // of one slot are counted. Reset ends all pins: `run` tells whether a pin is of before it.
  uint64_t Pin(SlotAt slot);
  void Unpin(SlotAt slot, uint64_t run);

  uint64_t run() const { return run_; }  // number of resets
  const Counts& counts() const { return counts_; }
  const Slots& slots() const { return slots_; }
  const Slot& at(SlotAt slot) const { return slots_.at(slot); }  // one that exists
  const Gaps& gaps() const { return gaps_; }

 private:
  Slot& Find(SlotAt slot, const char* what);
  bool AddSlot(SlotAt at, uint64_t bytes, State state, uint64_t owner);
  void Move(SlotAt at, Slot& slot, State to, uint64_t owner);
  void Erase(Slots::iterator slot);

  Slots slots_;
  Gaps gaps_;
  Counts counts_;
  OnLeave on_leave_;
  uint64_t run_ = 0;
};

}  // namespace withy::context_store
