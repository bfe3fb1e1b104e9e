// Whether the leases that are admitted can all be given what they need, in some order. Pure: works
// out policy/kv/kv_admission.h's numbers from the slots that each lease holds.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "context_store/lease/lease_state.h"

namespace withy::context_store {

// Not thread-safe: guarded by the lock of the table that owns it. `state` is borrowed.
class LeaseRoom {
 public:
  // What there would be if a lease took `takes` slots of 8 bits more, or these very slots, and then
  // needed `more`.
  struct Change {
    LeaseId lease = 0;
    uint32_t takes = 0;
    uint32_t more = 0;
    std::span<const SlotAt> slots = {};
  };

  explicit LeaseRoom(const LeaseState& state) : state_(state) {}

  bool CanAllFinish(const Change& change) const;
  bool CanAllFinishNow() const { return CanAllFinish({}); }
  // Whether the lease, which then has `held` chunks, may take so many slots more.
  bool HasRoomFor(LeaseId id, uint32_t takes, uint32_t held) const;
  // Whether all can finish although the lease has these slots more, and then needs `more`. Slots
  // that were taken between those of idle contexts may cut a gap, that there would be without
  // these, into two that are too small.
  bool StandWell(LeaseId id, std::span<const SlotAt> slots, uint32_t more) const;
  bool OthersAdmitted(LeaseId id) const;

 private:
  struct Holding {
    LeaseId lease = 0;
    std::vector<KvSlot> slots = {};  // that stay as long as it does
  };
  // Of the leases that are granted, and of the one that changes.
  std::vector<Holding> HoldingsWith(const Change& change) const;

  const LeaseState& state_;
};

}  // namespace withy::context_store
