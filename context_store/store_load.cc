// Store: brings the KV of a lease's context into the arena while the lease goes on. What is read
// and what is recomputed is decided in policy/kv_load_plan.h; chunks arrive layer by layer on the
// reader's thread.
#include <algorithm>
#include <utility>

#include "context_store/store.h"

namespace withy::context_store {

struct Store::Loading {
  LeaseId lease = 0;
  std::string context_id;
  uint64_t epoch = 0;
  Geometry geometry;
  std::vector<ChunkLoad> loads;
  int64_t started_ns = 0;
  std::vector<bool> failed;  // by load; of the reader's thread
  bool finished = false;     // likewise
};

ResidentChunks Store::BringBack(LeaseId lease, const LeaseSpec& spec) {
  auto loading = std::make_shared<Loading>();
  ResidentChunks resident;
  {
    absl::MutexLock lock(&mutex_);
    uint64_t evicted = 0;
    const LoadRules rules{
        .costs = costs_.load, .policy = options_.load_policy, .level_percent = spec.level_percent};
    std::vector<ChunkLoad> loads = table_->BeginLoad(lease, rules, &evicted);
    evicted_.Add(evicted);
    resident = table_->Resident(lease);
    const auto recompute = std::count_if(resident.begin(), resident.end(), [](const auto& chunk) {
      return chunk.state == ResidentChunk::State::kRecompute;
    });
    recomputed_.Add(static_cast<uint64_t>(recompute));
    for (const ResidentChunk& chunk : resident) {
      if (chunk.state != ResidentChunk::State::kRecompute) continue;
      arena_->Stamp(table_->geometry().kv(), chunk.where.slot, spec.epoch);
    }
    RecordGauges();
    if (loads.empty()) return resident;
    ++writers_;
    *loading = {.lease = lease,
                .context_id = spec.context_id,
                .epoch = spec.epoch,
                .geometry = table_->geometry(),
                .loads = std::move(loads),
                .started_ns = clock_.SteadyNanos(),
                .failed = {}};
  }
  loading->failed.assign(loading->loads.size(), false);
  kv_->StartRead(
      spec.context_id, loading->geometry, arena_->memory(), loading->loads,
      {.on_layer = [this, loading](uint32_t layer) { OnLayerRead(*loading, layer); },
       .on_failed = [this,
                     loading](std::span<const size_t> loads) { OnReadFailed(*loading, loads); },
       .on_done = [this, loading] { FinishLoading(*loading, /*complete=*/false); }});
  return resident;
}

std::shared_ptr<LeaseListener> Store::ListenerOf(LeaseId lease) const {
  absl::MutexLock lock(&mutex_);
  const auto found = leases_.find(lease);
  return found == leases_.end() ? nullptr : found->second.listener;
}

void Store::OnLayerRead(Loading& loading, uint32_t layer) {
  const bool last = layer + 1 == loading.geometry.layers;
  // The chunks are the context's before the worker can commit.
  if (last) FinishLoading(loading, /*complete=*/true);
  // Cake computes nothing behind chunks that are still being read.
  if (!last && options_.load_policy == policy::LoadPolicy::kCake) return;
  if (const auto listener = ListenerOf(loading.lease)) listener->OnLayer(layer);
}

void Store::OnReadFailed(Loading& loading, std::span<const size_t> loads) {
  uint32_t first = UINT32_MAX;
  for (const size_t load : loads) {
    loading.failed[load] = true;
    first = std::min(first, loading.loads[load].chunk);
  }
  faults_.Add(loads.size());
  if (const auto listener = ListenerOf(loading.lease)) listener->OnLoadFailed(first);
}

void Store::FinishLoading(Loading& loading, bool complete) {
  if (std::exchange(loading.finished, true)) return;
  std::vector<bool> read(loading.loads.size(), false);
  absl::MutexLock lock(&mutex_);
  --writers_;
  for (size_t i = 0; i < read.size(); ++i) {
    if (!complete || loading.failed[i]) continue;
    read[i] = true;
    arena_->SetEpoch(loading.geometry.kv(), loading.loads[i].slot, loading.epoch);
    read_.Add();
  }
  table_->FinishLoad(loading.context_id, loading.loads, read);
  LearnReadCost(loading, read);
  RecordGauges();
}

// The next plan counts on a disk as fast as this read found it, a quarter more each time.
void Store::LearnReadCost(const Loading& loading, const std::vector<bool>& read) {
  constexpr double kMebibyte = 1 << 20;
  constexpr double kShare = 0.25;
  double mebibytes = 0;
  for (size_t i = 0; i < read.size(); ++i) {
    if (!read[i]) return;
    mebibytes +=
        static_cast<double>(loading.geometry.ChunkBytes(loading.loads[i].slot.format)) / kMebibyte;
  }
  if (mebibytes < 1) return;
  const double ms = static_cast<double>(clock_.SteadyNanos() - loading.started_ns) / 1e6;
  double& cost = costs_.load.read_mib_ms;
  cost += kShare * (std::max(0.0, ms - costs_.load.read_fixed_ms) / mebibytes - cost);
}

}  // namespace withy::context_store
