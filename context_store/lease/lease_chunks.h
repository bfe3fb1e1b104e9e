// How the chunks of a lease's context come to the lease: read from disk, yielded to the worker to
// compute, shared with other contexts, or dropped because they are wrong. Neighbours:
// lease_admission.h gives slots for new chunks, context_load.h moves the bytes.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "context_store/lease/idle_kv.h"
#include "context_store/lease/lease_room.h"
#include "context_store/lease/lease_state.h"
#include "policy/kv/kv_load_plan.h"

namespace withy::context_store {

// A chunk that is being read from disk into its slot, which is pinned meanwhile.
struct ChunkLoad {
  uint32_t chunk = 0;
  KvSlot slot;
  StoredCopy stored = 0;
  uint64_t pin = 0;  // see SlotPool::Pin
  // The lease could compute it instead, and waits for nothing before it but what it computes, too.
  bool recomputable = false;
};

// How a lease's context is brought into the arena.
struct LoadRules {
  policy::LoadCosts costs = {};
  policy::LoadPolicy policy = policy::LoadPolicy::kReadAll;
  uint32_t level_percent = 0;  // that the lease computes at; 0: it recomputes nothing
  // Of the chunks with copies that the plan wants to be recomputed, the first ones that take this
  // share of the plan's time are claimed; the others are read as long as Yield does not
  // take them.
  double claimed_share = 1;
};

// Not thread-safe: guarded by the lock of the table that owns it. Everything is borrowed.
class LeaseChunks {
 public:
  LeaseChunks(LeaseState& state, IdleKv& idle, const LeaseRoom& room)
      : state_(state), idle_(idle), room_(room) {}

  // Chunks of the lease's context that have slots, from chunk 0 on without gaps. The lease is
  // granted.
  ResidentChunks Resident(LeaseId lease) const;

  // Plans how the chunks of the lease's context that are not in the arena come there, and gives
  // them slots, from the first one on, for as many as there is room: those to be recomputed are
  // claimed, the others, which are returned, belong to the context. Evicts chunks of idle contexts,
  // and adds their number to `*evicted`. Chunks from one on that can neither be read nor recomputed
  // are dropped. FinishLoad must follow, also after the lease's end.
  std::vector<ChunkLoad> BeginLoad(LeaseId lease, const LoadRules& rules, uint64_t* evicted);
  // Whether the load's slot is still waiting for it.
  bool IsLoading(std::string_view context_id, const ChunkLoad& load) const;
  // These chunks, which nobody reads (any more), are yielded to the lease to compute: it gets slots
  // of 8 bits. Returns those for which there is room, from the first one on; their loads are over.
  std::vector<ChunkSlot> Yield(LeaseId lease, std::span<const ChunkLoad> loads, uint64_t* evicted);
  // `read[i]`: loads[i] is in its slot. A chunk that could not be read loses its copy on disk.
  void FinishLoad(std::string_view context_id, const std::vector<ChunkLoad>& loads,
                  const std::vector<bool>& read);

  // Gives the lease's context chunks from `first` on that other contexts have and that are equal to
  // those that the lease would compute. `wanted`: the identities of these full chunks, in several
  // ways in which they may have been computed; the way with the most chunks is taken. What the
  // context has from `first` on is dropped then. Returns the chunks, all resident; none if there
  // are none, or if the lease has claimed chunks there. Errors: ABORTED, INVALID_ARGUMENT (a
  // stateless lease or a rebuild, an identity that is none).
  using Identities = std::vector<std::string>;
  absl::StatusOr<ResidentChunks> Share(LeaseId lease, uint32_t first,
                                       const std::vector<Identities>& wanted);

  // Drops `chunk` and all later ones. Errors: ABORTED, INVALID_ARGUMENT (not resident).
  absl::Status Fault(LeaseId lease, uint32_t chunk);

 private:
  // Which of the context's chunks are to be recomputed; cuts the context behind what can be used.
  std::set<uint32_t> PlanLoad(const LoadRules& rules, bool rebuild, KvContext* context);
  void KeepComputable(std::set<uint32_t>* recompute, ContextChunks* kv,
                      const std::vector<KvFormat>& formats);
  std::vector<ChunkLoad> TakeLoadSlots(Lease* lease, LeaseId id,
                                       const std::set<uint32_t>& recompute, const LoadRules& rules,
                                       uint64_t* evicted);
  void GiveUpLoadSlots(Lease* lease, const std::vector<uint32_t>& missing,
                       const std::vector<ChunkLoad>& loads);
  void DropEverywhere(const KvContext* except, uint32_t number, SlotAt slot);

  LeaseState& state_;
  IdleKv& idle_;
  const LeaseRoom& room_;
};

}  // namespace withy::context_store
