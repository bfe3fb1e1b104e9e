#include "context_store/lease/context_load.h"

#include <algorithm>
#include <utility>

#include "context_store/disk/kv_index.h"
#include "policy/constants.h"

namespace withy::context_store {
namespace {

// A group has so many pieces of a layer at least: where no cut is near, one at its end is read
// twice.
constexpr uint64_t kLeastPieces = 1;

}  // namespace

ContextLoad::ContextLoad(const LoadTools& tools, LeaseId lease, const LeaseSpec& spec,
                         std::vector<ChunkLoad> loads, const std::vector<uint32_t>& left,
                         const policy::LoadCosts& planned)
    : tools_(tools),
      lease_(lease),
      context_id_(spec.context_id),
      epoch_(spec.epoch),
      geometry_(tools.book.table().kv().geometry),
      loads_(std::move(loads)),
      planned_(planned),
      failed_(loads_.size(), false) {
  tools_.book.BeginWriting();
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
  const bool yields = tools.policy == policy::LoadPolicy::kPrefix;
  // Only the first piece of the prompt is computed while layers are read.
  const uint32_t piece_tokens =
      std::min(spec.prompt_tokens, static_cast<uint32_t>(policy::kRowsWithoutAnswers));
  const double prompt_chunks = static_cast<double>(piece_tokens) / kChunkTokens;
  std::vector<bool> cuts(dealt_, true);
  for (const bool cut : tools.disk.Cuts(loads_)) cuts.push_back(cut);
  progress_ = std::make_unique<policy::KvLoadProgress>(
      chunks, planned_,
      policy::LoadProgressOptions{
          .dealt = dealt_,
          .recomputable = yields ? recomputable : dealt_,
          .tail_ms = prompt_chunks * planned_.RecomputeMs({loads_.back().chunk, 0}),
          .least_group_bytes = kLeastPieces * kKvPieceBytes * geometry_.layers,
          .cuts = std::move(cuts)},
      NowMs());
}

std::vector<ChunkLoad> ContextLoad::LoadsOf(size_t begin, size_t end) const {
  const auto at = [&](size_t i) {
    return loads_.begin() + static_cast<std::ptrdiff_t>(i - dealt_);
  };
  return {at(begin), at(end)};
}

std::optional<ContextLoad::Range> ContextLoad::BeginGroup(std::vector<ChunkLoad>* loads) {
  absl::MutexLock lock(&tools_.book.mutex());
  if (yielding_) return std::nullopt;
  while (const std::optional<Range> range = progress_->NextGroup(NowMs())) {
    groups_[range->number].range = *range;
    *loads = LoadsOf(range->begin, range->end);
    const bool wanted = std::any_of(loads->begin(), loads->end(), [&](const ChunkLoad& load) {
      return tools_.book.table().chunks().IsLoading(context_id_, load);
    });
    if (wanted) return range;
    EndGroup(range->number, /*complete=*/false);  // the lease is over, or has given them up
  }
  return std::nullopt;
}

void ContextLoad::Read(const Range& range, const std::vector<ChunkLoad>& loads) {
  const auto self = shared_from_this();
  const KvReadId read = tools_.disk.StartRead(
      context_id_, geometry_, tools_.book.arena().memory(), loads,
      {.on_layer = [self, number = range.number](uint32_t layer) { self->OnLayer(number, layer); },
       .on_failed = [self, range](std::span<const size_t> lost) { self->OnFailed(range, lost); },
       .on_done = [self, number = range.number] { self->OnDone(number); }});
  absl::MutexLock lock(&tools_.book.mutex());
  if (const auto group = groups_.find(range.number); group != groups_.end()) {
    group->second.read = read;
  }
}

void ContextLoad::Advance() {
  {
    absl::MutexLock lock(&tools_.book.mutex());
    again_ = true;
    if (std::exchange(advancing_, true)) return;
  }
  for (bool more = true; more;) {
    {
      absl::MutexLock lock(&tools_.book.mutex());
      again_ = false;
    }
    std::vector<ChunkLoad> loads;
    while (const std::optional<Range> range = BeginGroup(&loads)) Read(*range, loads);
    absl::MutexLock lock(&tools_.book.mutex());
    more = advancing_ = again_;
  }
  Deliver();
  tools_.book.AdvanceWaiting();
}

void ContextLoad::OnLayer(uint32_t number, uint32_t layer) {
  const bool last = layer + 1 == geometry_.layers;
  {
    absl::MutexLock lock(&tools_.book.mutex());
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

void ContextLoad::OnFailed(const Range& range, std::span<const size_t> loads) {
  {
    absl::MutexLock lock(&tools_.book.mutex());
    if (!groups_.contains(range.number)) return;
    uint32_t first = UINT32_MAX;
    for (const size_t i : loads) {
      const size_t load = range.begin - dealt_ + i;
      failed_[load] = true;
      first = std::min(first, loads_[load].chunk);
    }
    events_.emplace_back([first](LeaseListener& listener) { listener.OnLoadFailed(first); });
  }
  tools_.metrics.chunks.faults.Add(loads.size());
  Deliver();
}

void ContextLoad::OnDone(uint32_t number) {
  {
    absl::MutexLock lock(&tools_.book.mutex());
    if (!groups_.contains(number)) return;
    EndGroup(number, /*complete=*/false);
    TellLayers();
  }
  Deliver();
  Advance();
}

void ContextLoad::EndGroup(uint32_t number, bool complete) {
  const Range range = groups_.at(number).range;
  groups_.erase(number);
  const std::vector<ChunkLoad> loads = LoadsOf(range.begin, range.end);
  std::vector<bool> read(loads.size(), false);
  for (size_t i = 0; i < read.size(); ++i) {
    const size_t load = range.begin - dealt_ + i;
    failed_[load] = failed_[load] || !complete;
    if (failed_[load]) continue;
    read[i] = true;
    tools_.book.arena().SetEpoch(geometry_.kv(), loads[i].slot, epoch_);
    tools_.metrics.chunks.read.Add();
  }
  tools_.book.table().chunks().FinishLoad(context_id_, loads, read);
  progress_->OnGroupEnded(number, NowMs());
  if (!yielding_ && progress_->done()) End();
  tools_.book.RecordGauges();
}

void ContextLoad::End() {
  if (std::exchange(ended_, true)) return;
  tools_.book.EndWriting();
  policy::EndedLoad shown{.planned = planned_,
                          .recomputed = progress_->recomputed(),
                          .recompute_slowdown = progress_->recompute_slowdown(NowMs()),
                          .read_slowdown = progress_->read_slowdown(NowMs())};
  if (std::find(failed_.begin(), failed_.end(), true) == failed_.end()) {
    for (const ChunkLoad& load : loads_) {
      shown.read_bytes += geometry_.ChunkBytes(load.slot.format);
    }
  }
  tools_.costs.OnLoadEnded(shown);
}

void ContextLoad::TellLayers() {
  if (yielding_ || !progress_->all_dealt()) return;
  uint32_t layers = geometry_.layers;
  for (const auto& [number, group] : groups_) layers = std::min(layers, group.layers);
  // Cake computes nothing behind chunks that are still being read.
  const bool cake = tools_.policy == policy::LoadPolicy::kCake;
  if (layers <= told_layers_ || (cake && layers < geometry_.layers)) return;
  told_layers_ = layers;
  progress_->Close();
  events_.emplace_back([layers](LeaseListener& listener) { listener.OnLayer(layers - 1); });
}

void ContextLoad::Yield(uint32_t computed_before, uint32_t most) {
  policy::KvLoadProgress::Yield more;
  KvReadId cancelled = 0;
  {
    absl::MutexLock lock(&tools_.book.mutex());
    const auto computed = std::lower_bound(positions_.begin(), positions_.end(), computed_before);
    progress_->OnRecomputed(static_cast<size_t>(computed - positions_.begin()), NowMs());
    // While a group is being begun, its read has no number yet that could be cancelled.
    if (!advancing_) more = progress_->NextYield(most, NowMs());
    if (more.cancelled.has_value()) {
      cancelled = groups_.at(*more.cancelled).read;
      groups_.erase(*more.cancelled);
    }
    yielding_ = true;
  }
  if (cancelled != 0) tools_.disk.CancelRead(cancelled);
  {
    absl::MutexLock lock(&tools_.book.mutex());
    NoteYield(more);
    yielding_ = false;
    TellLayers();
    if (progress_->done()) End();
  }
  Deliver();
  Advance();
}

void ContextLoad::NoteYield(const policy::KvLoadProgress::Yield& more) {
  std::vector<ChunkSlot> left;
  if (more.count() > 0) {
    uint64_t evicted = 0;
    left = tools_.book.table().chunks().Yield(lease_, LoadsOf(more.begin, more.end), &evicted);
    tools_.metrics.chunks.evicted.Add(evicted);
    if (left.size() < more.count()) progress_->Return(more.count() - left.size());
    if (!left.empty()) tools_.book.Stamp(lease_, epoch_, left);
    tools_.metrics.chunks.recomputed.Add(left.size());
    tools_.metrics.chunks.yielded.Add(left.size());
    tools_.book.RecordGauges();
  }
  events_.emplace_back([left = std::move(left), arrived = arrived_blocks_](
                           LeaseListener& listener) { listener.OnYielded(left, arrived); });
}

void ContextLoad::Deliver() {
  absl::Mutex& mutex = tools_.book.mutex();
  absl::MutexLock lock(&mutex);
  if (std::exchange(delivering_, true)) return;
  while (!events_.empty()) {
    const std::function<void(LeaseListener&)> event = std::move(events_.front());
    events_.pop_front();
    const OpenLease* lease = tools_.book.Find(lease_);
    const std::shared_ptr<LeaseListener> listener = lease == nullptr ? nullptr : lease->listener;
    mutex.Unlock();
    if (listener != nullptr) event(*listener);
    mutex.Lock();
  }
  delivering_ = false;
}

}  // namespace withy::context_store
