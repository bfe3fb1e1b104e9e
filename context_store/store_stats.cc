// Store: what it tells about itself: gauges, counters, GetStoreInfo.
#include <algorithm>

#include "context_store/store.h"

namespace withy::context_store {

StoreStats Store::Stats() const {
  KvStorageStats disk;
  if (kv_ != nullptr) disk = kv_->Stats();
  absl::MutexLock lock(&mutex_);
  const auto ahead = std::count_if(leases_.begin(), leases_.end(),
                                   [](const auto& entry) { return entry.second.spec.ahead(); });
  return {.epoch = table_->epoch(),
          .attached = table_->geometry().layers > 0,
          .space = table_->slots().counts(),
          .largest_gap = table_->slots().LargestGap(),
          .arena_sum = options_.arena_sum,
          .leases_open = table_->open_leases(),
          .leases_ahead = static_cast<uint32_t>(ahead),
          .leases_waiting = table_->waiting_leases(),
          .waiting_limit = options_.max_waiting_leases,
          .faults = faults_.value(),
          .idle_work = idle_work_,
          .locked_bytes = arena_->locks().locked_bytes(),
          .kept_chunks = kept_.value(),
          .unkept_chunks = not_kept_.value(),
          .evicted_chunks = evicted_.value(),
          .demoted_chunks = demoted_.value(),
          .demoted_bytes = metrics_.demoted_bytes.value(),
          .read_chunks = read_.value(),
          .written_chunks = written_.value(),
          .not_written_chunks = metrics_.not_written.value(),
          .shared_chunks = table_->kv().shares,
          .opened_resident = metrics_.opened_resident.value(),
          .opened_partly = metrics_.opened_partly.value(),
          .opened_without = metrics_.opened_without.value(),
          .bytes = table_->kv().Bytes(),
          .disk = disk};
}

// Before anything is read from disk.
void Store::CountOpening(const LeaseSpec& spec) {
  absl::MutexLock lock(&mutex_);
  const ChunkPlaces places = table_->kv().PlacesOf(spec.context_id);
  if (places.resident + places.stored_only == 0) return;
  if (places.stored_only == 0) {
    metrics_.opened_resident.Add();
  } else if (places.resident > 0) {
    metrics_.opened_partly.Add();
  } else {
    metrics_.opened_without.Add();
  }
}

// Summing up 60,000 chunks takes about a millisecond under the lock, once after a call.
void Store::RecordMetrics() {
  if (kv_ != nullptr) metrics_.RecordDisk(kv_->Stats());
  absl::MutexLock lock(&mutex_);
  metrics_.RecordFormats(table_->kv().Bytes());
}

}  // namespace withy::context_store
