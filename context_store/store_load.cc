// Store: brings the KV of a lease's context into the arena while the lease goes on. Which chunks
// are read and which are left to the worker is decided in policy/kv/kv_load_progress.h while both
// go on; chunks arrive in groups, a group layer by layer, on the reader's thread.
#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "context_store/disk/kv_index.h"
#include "context_store/store.h"
#include "policy/constants.h"
#include "policy/kv/kv_load_progress.h"

namespace withy::context_store {
namespace {

// What a load leaves to the worker when it begins, as a share of the plan's time. It asks for more.
constexpr double kFirstShare = policy::KvLoadProgress::kFirstHandOverShare;
// A group has so many pieces of a layer at least: where no cut is near, one at its end is read
// twice.
constexpr uint64_t kLeastPieces = 1;

}  // namespace

// One load. Every member is guarded by the store's lock, and methods take it, if not said
// otherwise. Shared by the reader's functions, which may end after the lease.
class Store::Loading : public std::enable_shared_from_this<Store::Loading> {
 public:
  // `left`: chunks that the worker recomputes from the start on.
  Loading(Store& store, LeaseId lease, const LeaseSpec& spec, std::vector<ChunkLoad> loads,
          const std::vector<uint32_t>& left) ABSL_EXCLUSIVE_LOCKS_REQUIRED(store.mutex_);

  // Reads the next groups and tells the listener what there is to tell. Takes the lock.
  void Advance();
  // As Store::Recompute. Takes the lock.
  void Recompute(uint32_t computed_before, uint32_t most);

 private:
  using Range = policy::KvLoadProgress::Group;
  struct Group {
    Range range;
    KvReadId read = 0;
    uint32_t layers = 0;  // in place
  };

  double NowMs() const { return static_cast<double>(store_.clock_.SteadyNanos()) / 1e6; }
  std::vector<ChunkLoad> LoadsOf(size_t begin, size_t end) const {
    const auto at = [&](size_t i) {
      return loads_.begin() + static_cast<std::ptrdiff_t>(i - dealt_);
    };
    return {at(begin), at(end)};
  }
  std::optional<Range> BeginGroup(std::vector<ChunkLoad>* loads);
  void Read(const Range& range, const std::vector<ChunkLoad>& loads);
  // On the reader's thread.
  void OnLayer(uint32_t number, uint32_t layer);
  void OnFailed(const Range& range, std::span<const size_t> loads);
  void OnDone(uint32_t number);

  void EndGroup(uint32_t number, bool complete) ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);
  void LearnCosts() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);
  // Notes an event for the layers that are in place of all that is read.
  void TellLayers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);
  void HandOver(const policy::KvLoadProgress::HandOver& more)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_.mutex_);
  // Calls the listener with what was noted, in order, from one thread at a time.
  void Deliver();

  Store& store_;
  const LeaseId lease_;
  const std::string context_id_;
  const uint64_t epoch_;
  const Geometry geometry_;
  const std::vector<ChunkLoad> loads_;
  size_t dealt_ = 0;                 // chunks before the loads that the worker had from the start
  std::vector<uint32_t> positions_;  // of the chunks that progress_ knows
  policy::LoadCosts planned_;        // that the plan was made with
  std::unique_ptr<policy::KvLoadProgress> progress_;

  std::map<uint32_t, Group> groups_;  // being read, by number
  std::vector<bool> failed_;          // by load
  uint32_t told_layers_ = 0;
  uint64_t arrived_blocks_ = 0;
  bool advancing_ = false, again_ = false;  // a thread is in Advance; it has to look once more
  bool revising_ = false;                   // a hand-over has begun and not been noted
  std::deque<std::function<void(LeaseListener&)>> events_;
  bool delivering_ = false;
};

Store::Loading::Loading(Store& store, LeaseId lease, const LeaseSpec& spec,
                        std::vector<ChunkLoad> loads, const std::vector<uint32_t>& left)
    : store_(store),
      lease_(lease),
      context_id_(spec.context_id),
      epoch_(spec.epoch),
      geometry_(store.table_->geometry()),
      loads_(std::move(loads)),
      planned_(store.costs_.load),
      failed_(loads_.size(), false) {
  std::vector<policy::MissingChunk> chunks;
  for (const uint32_t chunk : left) {
    if (chunk < loads_.front().chunk) chunks.push_back({chunk, 0});
  }
  dealt_ = chunks.size();
  size_t recomputable = dealt_;
  for (const ChunkLoad& load : loads_) {
    chunks.push_back({load.chunk, geometry_.ChunkBytes(load.slot.format)});
    recomputable += load.recomputable ? 1 : 0;
  }
  for (const policy::MissingChunk& chunk : chunks) positions_.push_back(chunk.position);
  const bool revised = store.options_.load_policy == policy::LoadPolicy::kPrefix;
  // Only the first piece of the prompt is computed while layers are read.
  const uint32_t piece_tokens =
      std::min(spec.prompt_tokens, static_cast<uint32_t>(policy::kRowsWithoutAnswers));
  const double prompt_chunks = static_cast<double>(piece_tokens) / kChunkTokens;
  std::vector<bool> cuts(dealt_, true);
  for (const bool cut : store.kv_->Cuts(loads_)) cuts.push_back(cut);
  progress_ = std::make_unique<policy::KvLoadProgress>(
      chunks, planned_,
      policy::LoadProgressOptions{
          .dealt = dealt_,
          .recomputable = revised ? recomputable : dealt_,
          .tail_ms = prompt_chunks * planned_.RecomputeMs({loads_.back().chunk, 0}),
          .least_group_bytes = kLeastPieces * kKvPieceBytes * geometry_.layers,
          .cuts = std::move(cuts)},
      NowMs());
}

std::optional<Store::Loading::Range> Store::Loading::BeginGroup(std::vector<ChunkLoad>* loads) {
  absl::MutexLock lock(&store_.mutex_);
  if (revising_) return std::nullopt;
  while (const std::optional<Range> range = progress_->NextGroup(NowMs())) {
    groups_[range->number].range = *range;
    *loads = LoadsOf(range->begin, range->end);
    const bool wanted = std::any_of(loads->begin(), loads->end(), [&](const ChunkLoad& load) {
      return store_.table_->IsLoading(context_id_, load);
    });
    if (wanted) return range;
    EndGroup(range->number, /*complete=*/false);  // the lease is over, or has given them up
  }
  return std::nullopt;
}

void Store::Loading::Read(const Range& range, const std::vector<ChunkLoad>& loads) {
  const auto self = shared_from_this();
  const KvReadId read = store_.kv_->StartRead(
      context_id_, geometry_, store_.arena_->memory(), loads,
      {.on_layer = [self, number = range.number](uint32_t layer) { self->OnLayer(number, layer); },
       .on_failed = [self, range](std::span<const size_t> lost) { self->OnFailed(range, lost); },
       .on_done = [self, number = range.number] { self->OnDone(number); }});
  absl::MutexLock lock(&store_.mutex_);
  if (const auto group = groups_.find(range.number); group != groups_.end()) {
    group->second.read = read;
  }
}

void Store::Loading::Advance() {
  {
    absl::MutexLock lock(&store_.mutex_);
    again_ = true;
    if (std::exchange(advancing_, true)) return;
  }
  for (bool more = true; more;) {
    {
      absl::MutexLock lock(&store_.mutex_);
      again_ = false;
    }
    std::vector<ChunkLoad> loads;
    while (const std::optional<Range> range = BeginGroup(&loads)) Read(*range, loads);
    absl::MutexLock lock(&store_.mutex_);
    more = advancing_ = again_;
  }
  Deliver();
  store_.AdvanceWaiting();
}

void Store::Loading::OnLayer(uint32_t number, uint32_t layer) {
  const bool last = layer + 1 == geometry_.layers;
  {
    absl::MutexLock lock(&store_.mutex_);
    const auto group = groups_.find(number);
    if (group == groups_.end()) return;
    group->second.layers = layer + 1;
    arrived_blocks_ += group->second.range.end - group->second.range.begin;
    // The chunks are the context's before the worker can commit.
    if (last) EndGroup(number, /*complete=*/true);
    TellLayers();
  }
  Deliver();
  if (last) Advance();
}

void Store::Loading::OnFailed(const Range& range, std::span<const size_t> loads) {
  {
    absl::MutexLock lock(&store_.mutex_);
    if (!groups_.contains(range.number)) return;
    uint32_t first = UINT32_MAX;
    for (const size_t i : loads) {
      const size_t load = range.begin - dealt_ + i;
      failed_[load] = true;
      first = std::min(first, loads_[load].chunk);
    }
    events_.emplace_back([first](LeaseListener& listener) { listener.OnLoadFailed(first); });
  }
  store_.faults_.Add(loads.size());
  Deliver();
}

void Store::Loading::OnDone(uint32_t number) {
  {
    absl::MutexLock lock(&store_.mutex_);
    if (!groups_.contains(number)) return;
    EndGroup(number, /*complete=*/false);
    TellLayers();
  }
  Deliver();
  Advance();
}

void Store::Loading::EndGroup(uint32_t number, bool complete) {
  const Range range = groups_.at(number).range;
  groups_.erase(number);
  const std::vector<ChunkLoad> loads = LoadsOf(range.begin, range.end);
  std::vector<bool> read(loads.size(), false);
  for (size_t i = 0; i < read.size(); ++i) {
    const size_t load = range.begin - dealt_ + i;
    failed_[load] = failed_[load] || !complete;
    if (failed_[load]) continue;
    read[i] = true;
    store_.arena_->SetEpoch(geometry_.kv(), loads[i].slot, epoch_);
    store_.read_.Add();
  }
  store_.table_->FinishLoad(context_id_, loads, read);
  progress_->OnGroupEnded(number, NowMs());
  if (!revising_ && progress_->done()) End();
  store_.RecordGauges();
}

void Store::Loading::End() {
  if (store_.loading_.erase(lease_) == 0) return;  // it has ended before
  --store_.writers_;
  LearnCosts();
}

// The next plan counts on a disk and a worker as fast as this load found them, a quarter more each
// time. Both take from each other's processors and memory while they run at the same time, which no
// calibration of one alone knows.
void Store::Loading::LearnCosts() {
  constexpr uint64_t kLeastBytes = 1 << 20;
  constexpr size_t kLeastRecomputed = 4;
  constexpr double kShare = 0.25;
  // A worker that was slow once is tried again in time.
  constexpr double kForget = 0.02;
  policy::LoadCosts& costs = store_.costs_.load;
  const double factor = costs.recompute_chunk_ms / store_.calibrated_.recompute_chunk_ms;
  const double planned = planned_.recompute_chunk_ms / store_.calibrated_.recompute_chunk_ms;
  const double shown =
      progress_->recomputed() < kLeastRecomputed
          ? factor + kForget * (1 - factor)
          : factor + kShare * (progress_->recompute_slowdown(NowMs()) * planned - factor);
  costs.ScaleRecompute(std::clamp(shown, 0.5, 4.0) / factor);
  uint64_t bytes = 0;
  for (size_t i = 0; i < loads_.size(); ++i) {
    if (failed_[i]) return;
    bytes += geometry_.ChunkBytes(loads_[i].slot.format);
  }
  if (bytes < kLeastBytes) return;
  double& cost = costs.read_mib_ms;
  cost += kShare * (progress_->read_slowdown(NowMs()) * planned_.read_mib_ms - cost);
}

void Store::Loading::TellLayers() {
  if (revising_ || !progress_->all_dealt()) return;
  uint32_t layers = geometry_.layers;
  for (const auto& [number, group] : groups_) layers = std::min(layers, group.layers);
  // Cake computes nothing behind chunks that are still being read.
  const bool cake = store_.options_.load_policy == policy::LoadPolicy::kCake;
  if (layers <= told_layers_ || (cake && layers < geometry_.layers)) return;
  told_layers_ = layers;
  progress_->Close();
  events_.emplace_back([layers](LeaseListener& listener) { listener.OnLayer(layers - 1); });
}

void Store::Loading::Recompute(uint32_t computed_before, uint32_t most) {
  policy::KvLoadProgress::HandOver more;
  KvReadId cancelled = 0;
  {
    absl::MutexLock lock(&store_.mutex_);
    const auto computed = std::lower_bound(positions_.begin(), positions_.end(), computed_before);
    progress_->OnRecomputed(static_cast<size_t>(computed - positions_.begin()), NowMs());
    // While a group is being begun, its read has no number yet that could be cancelled.
    if (!advancing_) more = progress_->NextRecompute(most, NowMs());
    if (more.cancelled.has_value()) {
      cancelled = groups_.at(*more.cancelled).read;
      groups_.erase(*more.cancelled);
    }
    revising_ = true;
  }
  if (cancelled != 0) store_.kv_->CancelRead(cancelled);
  {
    absl::MutexLock lock(&store_.mutex_);
    HandOver(more);
    revising_ = false;
    TellLayers();
    if (progress_->done()) End();
  }
  Deliver();
  Advance();
}

void Store::Loading::HandOver(const policy::KvLoadProgress::HandOver& more) {
  std::vector<ChunkSlot> left;
  if (more.count() > 0) {
    uint64_t evicted = 0;
    left = store_.table_->LeaveToWorker(lease_, LoadsOf(more.begin, more.end), &evicted);
    store_.evicted_.Add(evicted);
    if (left.size() < more.count()) progress_->Return(more.count() - left.size());
    std::vector<KvSlot> slots;
    for (const ChunkSlot& chunk : left) {
      store_.arena_->Stamp(geometry_.kv(), chunk.slot, epoch_);
      slots.push_back(chunk.slot);
    }
    store_.LockSlots(lease_, slots);
    store_.recomputed_.Add(left.size());
    store_.taken_over_.Add(left.size());
    store_.RecordGauges();
  }
  events_.emplace_back([left = std::move(left), arrived = arrived_blocks_](
                           LeaseListener& listener) { listener.OnRevised(left, arrived); });
}

void Store::Loading::Deliver() {
  absl::MutexLock lock(&store_.mutex_);
  if (std::exchange(delivering_, true)) return;
  while (!events_.empty()) {
    const std::function<void(LeaseListener&)> event = std::move(events_.front());
    events_.pop_front();
    const auto lease = store_.leases_.find(lease_);
    const std::shared_ptr<LeaseListener> listener =
        lease == store_.leases_.end() ? nullptr : lease->second.listener;
    store_.mutex_.Unlock();
    if (listener != nullptr) event(*listener);
    store_.mutex_.Lock();
  }
  delivering_ = false;
}

ResidentChunks Store::BringBack(LeaseId lease, const LeaseSpec& spec) {
  std::shared_ptr<Loading> loading;
  ResidentChunks resident;
  {
    absl::MutexLock lock(&mutex_);
    uint64_t evicted = 0;
    LoadRules rules{
        .costs = costs_.load, .policy = options_.load_policy, .level_percent = spec.level_percent};
    if (rules.policy == policy::LoadPolicy::kPrefix) rules.claimed_share = kFirstShare;
    std::vector<ChunkLoad> loads = table_->BeginLoad(lease, rules, &evicted);
    evicted_.Add(evicted);
    resident = table_->Resident(lease);
    std::vector<uint32_t> left;
    std::vector<KvSlot> slots;
    for (const ResidentChunk& chunk : resident) {
      slots.push_back(chunk.where.slot);
      if (chunk.state != ResidentChunk::State::kRecompute) continue;
      left.push_back(chunk.where.chunk);
      arena_->Stamp(table_->geometry().kv(), chunk.where.slot, spec.epoch);
    }
    LockSlots(lease, slots);
    recomputed_.Add(left.size());
    RecordGauges();
    if (loads.empty()) return resident;
    ++writers_;
    loading = std::make_shared<Loading>(*this, lease, spec, std::move(loads), left);
    loading_[lease] = loading;
  }
  loading->Advance();
  return resident;
}

void Store::Recompute(LeaseId lease, uint32_t computed_before, uint32_t most) {
  std::shared_ptr<Loading> loading;
  std::shared_ptr<LeaseListener> listener;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = loading_.find(lease); found != loading_.end()) loading = found->second;
    if (const auto found = leases_.find(lease); found != leases_.end()) {
      listener = found->second.listener;
    }
  }
  if (loading != nullptr) return loading->Recompute(computed_before, most);
  if (listener != nullptr) listener->OnRevised({}, 0);  // everything is there
}

}  // namespace withy::context_store
