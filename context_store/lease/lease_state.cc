#include "context_store/lease/lease_state.h"

#include <algorithm>

namespace withy::context_store {

absl::StatusOr<Lease*> LeaseState::Granted(LeaseId id) {
  const auto found = leases.find(id);
  if (found == leases.end()) return absl::AbortedError("the lease is over");
  // An attach ends all leases of older epochs except those in commit.
  Lease& lease = found->second;
  if (!lease.granted || lease.committing) {
    return absl::InvalidArgumentError(lease.committing ? "the lease is being committed"
                                                       : "the lease still waits for its context");
  }
  return &lease;
}

KvContext* LeaseState::ContextOf(const Lease& lease) {
  return lease.context_id.empty() ? nullptr : &kv.contexts.at(lease.context_id);
}

uint32_t LeaseState::HeldChunks(const Lease& lease) const {
  auto held = static_cast<uint32_t>(lease.claimed.size());
  const auto context = kv.contexts.find(lease.context_id);
  if (context == kv.contexts.end() || lease.rebuild) return held;
  for (const ContextChunk& chunk : context->second.kv.chunks) held += chunk.slot.has_value();
  return held;
}

int64_t LeaseState::waiting_for_room() const {
  return std::count_if(leases.begin(), leases.end(),
                       [this](const auto& entry) { return WaitsForRoom(entry.first); });
}

bool LeaseState::Committing(LeaseId id) const {
  const auto lease = leases.find(id);
  return lease != leases.end() && lease->second.committing;
}

uint64_t LeaseState::held_bytes() const {
  uint64_t leased = 0;  // what several of the contexts have is in it as often
  for (const auto& [id, lease] : leases) {
    const auto context = lease.granted ? kv.contexts.find(lease.context_id) : kv.contexts.end();
    if (context == kv.contexts.end()) continue;
    for (const ContextChunk& chunk : context->second.kv.chunks) {
      if (chunk.slot.has_value()) leased += kv.geometry.ChunkBytes(chunk.slot->format);
    }
  }
  const SlotPool::Counts& counts = kv.pool.counts();
  return counts.claimed + counts.quarantined + std::min(leased, counts.resident);
}

}  // namespace withy::context_store
