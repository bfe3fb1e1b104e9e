// Space of the arena: a pure allocator of slots, each the memory of one chunk. It knows sizes and
// owners, no bytes, contexts or formats. Slots of all sizes share the space: a slot takes the
// smallest gap that holds it, and neighbouring gaps merge. Neighbour: lease_table.h moves slots
// between leases and contexts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

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
  };

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
  std::vector<Pages> Withheld() const;
  // Makes at least `bytes` of what was withheld free again, or all of it.
  void GiveBack(uint64_t bytes);

  // While the store itself reads a slot, a pinned slot that is freed is withheld until Unpin. Pins
  // of one slot are counted. Reset ends all pins: `run` tells whether a pin is of before it.
  uint64_t Pin(SlotAt slot);
  void Unpin(SlotAt slot, uint64_t run);

  uint64_t run() const { return run_; }  // number of resets
  const Counts& counts() const { return counts_; }
  // Bytes of the largest gap. What is free beyond it is fragmented.
  uint64_t LargestGap() const;
  // How many slots of `bytes` there would be room for if all slots but `staying`, and those that
  // are quarantined for a writer, were gaps. Slots in `staying` that do not exist are ignored.
  uint64_t PlacesBeside(std::vector<SlotAt> staying, uint64_t bytes) const;
  // Pins that have not ended: room that appears when they do.
  uint64_t pins() const { return pins_; }
  // Only for slots that exist.
  State state(SlotAt slot) const { return slots_.at(slot).state; }
  uint64_t owner(SlotAt slot) const { return slots_.at(slot).owner; }
  uint32_t contexts(SlotAt slot) const { return slots_.at(slot).contexts; }  // of a resident slot
  uint32_t pins(SlotAt slot) const { return slots_.at(slot).pins; }
  uint64_t bytes(SlotAt slot) const;
  // How many slots of `bytes` the gaps hold.
  uint64_t Holds(uint64_t bytes) const;
  // The slots to Slide, in this order, so that the gaps hold one more slot of `bytes`: those with
  // the fewest bytes. Empty: no slides achieve it. Only slots for which `may_slide` holds are
  // moved; it is asked about resident slots that are not pinned.
  std::vector<SlotAt> CheapestSlides(uint64_t bytes,
                                     const std::function<bool(SlotAt slot)>& may_slide) const;
  size_t slots() const { return slots_.size(); }
  // Checks that slots and gaps fill the space without overlap. For tests.
  bool Consistent() const;

 private:
  static constexpr uint64_t kNobody = 0;  // owner of a slot that is freed and pinned
  struct Slot {
    uint32_t units = 0;
    State state = State::kClaimed;
    uint64_t owner = 0;
    uint32_t pins = 0;
    uint32_t contexts = 1;
  };
  uint64_t& CountOf(State state);
  Slot& Find(SlotAt slot, const char* what);
  void AddSlot(std::map<uint32_t, uint32_t>::iterator gap, SlotAt at, uint32_t units, State state,
               uint64_t owner);
  void Leave(SlotAt at, const Slot& slot);
  void Move(Slot& slot, State to, uint64_t owner);
  void AddGap(uint32_t at, uint32_t units);
  void RemoveGap(std::map<uint32_t, uint32_t>::iterator gap);
  void Erase(std::map<SlotAt, Slot>::iterator slot);

  std::map<SlotAt, Slot> slots_;
  std::map<uint32_t, uint32_t> gaps_;                // units by offset
  std::set<std::pair<uint32_t, uint32_t>> by_size_;  // (units, offset) of each gap
  Counts counts_;
  OnLeave on_leave_;
  uint64_t run_ = 0;
  uint64_t pins_ = 0;
};

}  // namespace withy::context_store
