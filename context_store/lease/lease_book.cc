#include "context_store/lease/lease_book.h"

#include <string>

#include "context_store/lease/context_load.h"

namespace withy::context_store {

void LeaseNotices::Tell() {
  for (const auto& listener : granted) listener->OnGranted();
  for (auto& [listener, claim] : claims) {
    listener->OnClaimed(std::move(claim.chunks), std::move(claim.refused));
  }
}

LeaseBook::LeaseBook(const LeaseLimits& limits, uint64_t first_epoch, Arena& arena,
                     StoreMetrics& metrics)
    : arena_(arena),
      metrics_(metrics),
      directory_(arena.directory(), arena.bytes()),
      table_(limits, first_epoch, &directory_) {}

Geometry LeaseBook::geometry() const {
  absl::MutexLock lock(&mutex_);
  return table_.kv().geometry;
}

uint64_t LeaseBook::NewChunkBytes() const {
  absl::MutexLock lock(&mutex_);
  return table_.kv().geometry.ChunkBytes(KvFormat::kQ8);
}

void LeaseBook::Add(LeaseId lease, OpenLease open) { leases_.emplace(lease, std::move(open)); }

OpenLease* LeaseBook::Find(LeaseId lease) {
  const auto found = leases_.find(lease);
  return found == leases_.end() ? nullptr : &found->second;
}

absl::StatusOr<OpenLease> LeaseBook::Get(LeaseId lease) const {
  absl::MutexLock lock(&mutex_);
  const auto found = leases_.find(lease);
  if (found == leases_.end()) return absl::AbortedError("the lease is over");
  return found->second;
}

void LeaseBook::Forget(LeaseId lease) {
  if (const OpenLease* open = Find(lease); open != nullptr) {
    const std::shared_ptr<ContextLoad> load = open->load;
    leases_.erase(lease);
    if (load != nullptr) load->EndWithLease();
  }
  arena_.locks().Drop(lease);
}

LeaseBook::Listeners LeaseBook::TakeEnded(const std::vector<LeaseId>& ended) {
  Listeners listeners;
  for (const LeaseId id : ended) {
    OpenLease* lease = Find(id);
    if (lease == nullptr) continue;
    listeners.push_back(std::move(lease->listener));
    Forget(id);
  }
  return listeners;
}

void LeaseBook::Stamp(LeaseId lease, uint64_t epoch, std::span<const ChunkSlot> chunks) {
  std::vector<KvSlot> slots;
  for (const ChunkSlot& chunk : chunks) {
    arena_.Stamp(table_.kv().geometry.kv(), chunk.slot, epoch);
    slots.push_back(chunk.slot);
  }
  KeepInMemory(lease, slots);
}

void LeaseBook::KeepInMemory(LeaseId lease, std::span<const KvSlot> slots) {
  std::vector<ByteRange> ranges;
  for (const KvSlot& slot : slots) {
    ranges.push_back({slot.offset(), table_.kv().geometry.ChunkBytes(slot.format)});
  }
  arena_.locks().Hold(lease, std::move(ranges));
}

LeaseNotices LeaseBook::Apply(Effects effects) {
  LeaseNotices notices;
  for (const LeaseId id : effects.granted) notices.granted.push_back(leases_.at(id).listener);
  for (LateClaim& claim : effects.claims) {
    const OpenLease& lease = leases_.at(claim.lease);
    Stamp(claim.lease, lease.spec.epoch, claim.chunks);
    if (!claim.refused.empty()) metrics_.leases.refused_claims.Add();
    notices.claims.emplace_back(lease.listener, std::move(claim));
  }
  metrics_.chunks.evicted.Add(effects.evicted);
  RecordGauges();
  return notices;
}

void LeaseBook::AdvanceWaiting() {
  LeaseNotices notices;
  {
    absl::MutexLock lock(&mutex_);
    if (table_.state().waiting_for_room() == 0) return;
    notices = Apply(table_.Advance());
  }
  notices.Tell();
}

void LeaseBook::RecordGauges() {
  metrics_.arena.Record(table_.kv().pool.counts(), table_.state().held_bytes(),
                        arena_.locks().locked_bytes());
  metrics_.RecordSharing(table_.kv());
  metrics_.leases.open.Set(table_.state().open_leases());
  metrics_.leases.waiting_for_room.Set(table_.state().waiting_for_room());
}

void LeaseBook::AwaitWriters() {
  const auto written = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return writers_ == 0; };
  mutex_.Await(absl::Condition(&written));
}

}  // namespace withy::context_store
