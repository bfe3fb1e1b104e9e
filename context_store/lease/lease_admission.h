// Room in the arena for the leases that are open: who is admitted, whose claims are served, who
// waits. A lease that asks for more than can be given now waits for another one to end; see
// policy/kv/kv_admission.h for what is given. Neighbours: lease_room.h, lease_table.h.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "context_store/lease/idle_kv.h"
#include "context_store/lease/lease_room.h"
#include "context_store/lease/lease_state.h"

namespace withy::context_store {

// The slots of a claim; or it waits for room, and a later Effects.claims answers it.
struct ClaimAnswer {
  bool waits = false;
  std::vector<ChunkSlot> chunks = {};
};

// Not thread-safe: guarded by the lock of the table that owns it. Everything is borrowed.
class LeaseAdmission {
 public:
  LeaseAdmission(LeaseState& state, IdleKv& idle, const LeaseRoom& room)
      : state_(state), idle_(idle), room_(room) {}

  // The lease, whose context nobody holds, gets it, and is given what it needs from now on. False:
  // there is no room for that yet.
  bool TryAdmit(LeaseId id);
  // Whether no lease that waits for room has been overtaken too often.
  bool MayOvertake(LeaseId id) const;
  // The lease was admitted before older ones.
  void CountOvertaken(LeaseId by);
  // See LeaseTable::Claim.
  absl::StatusOr<ClaimAnswer> Claim(LeaseId lease, uint32_t first, uint32_t count,
                                    uint64_t* evicted, bool may_wait);
  // Gives those that wait what there is room for now.
  void Advance(Effects* effects);

 private:
  struct ClaimSizes {
    uint32_t fresh = 0;    // slots that are new to the lease
    uint32_t dropped = 0;  // chunks of the context that it replaces
  };

  absl::StatusOr<ClaimRange> CheckClaim(const Lease& lease, uint32_t first, uint32_t count) const;
  ClaimSizes SizesOf(const Lease& lease, const ClaimRange& range) const;
  // The slots of the claim; nullopt: there are none now.
  std::optional<std::vector<ChunkSlot>> TryClaim(LeaseId id, const ClaimRange& range,
                                                 uint64_t* evicted);
  absl::Status NoRoom(uint32_t chunks) const;
  void LeaveSmallerSlots(KvContext* context);
  void ServeWishes(Effects* effects);
  void AdmitWaiting(Effects* effects);
  void RefuseIfStuck(Effects* effects);

  LeaseState& state_;
  IdleKv& idle_;
  const LeaseRoom& room_;
};

}  // namespace withy::context_store
