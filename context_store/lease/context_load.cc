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

policy::KvLoad LoadOf(const ResidentChunks& resident, uint32_t layers) {
  std::vector<policy::KvLoad::Chunk> chunks;
  for (const ResidentChunk& chunk : resident) chunks.push_back(chunk.state);
  return {std::move(chunks), layers};
}

std::vector<policy::MissingChunk> ReadsOf(std::span<const ChunkLoad> loads,
                                          const Geometry& geometry) {
  std::vector<policy::MissingChunk> reads;
  for (const ChunkLoad& load : loads) {
    reads.push_back({load.chunk, geometry.ChunkBytes(load.slot.format)});
  }
  return reads;
}

policy::LoadSourceOptions OptionsOf(const LoadTools& tools, const LeaseSpec& spec,
                                    std::span<const ChunkLoad> loads,
                                    const policy::LoadCosts& planned, uint32_t layers) {
  const bool yields = tools.policy == policy::LoadPolicy::kPrefix;
  const auto recomputable = [](const ChunkLoad& load) { return load.recomputable; };
  // Only the first piece of the prompt is computed while layers are read.
  const uint32_t piece_tokens =
      std::min(spec.prompt_tokens, static_cast<uint32_t>(policy::kRowsWithoutAnswers));
  const double prompt_chunks = static_cast<double>(piece_tokens) / kChunkTokens;
  return {
      .yieldable =
          yields ? static_cast<size_t>(std::count_if(loads.begin(), loads.end(), recomputable)) : 0,
      .tail_ms = prompt_chunks * planned.RecomputeMs({loads.back().chunk, 0}),
      .least_group_bytes = kLeastPieces * kKvPieceBytes * layers,
      .cuts = tools.disk.Cuts(loads),
      .tells_whole_chunks = tools.policy == policy::LoadPolicy::kCake};
}

}  // namespace

ContextLoad::ContextLoad(const LoadTools& tools, LeaseId lease, const LeaseSpec& spec,
                         std::vector<ChunkLoad> loads, const ResidentChunks& resident,
                         const policy::LoadCosts& planned)
    : tools_(tools),
      lease_(lease),
      context_id_(spec.context_id),
      epoch_(spec.epoch),
      geometry_(tools.book.table().kv().geometry),
      loads_(std::move(loads)),
      planned_(planned),
      source_(LoadOf(resident, geometry_.layers), geometry_.layers, ReadsOf(loads_, geometry_),
              planned_, OptionsOf(tools, spec, loads_, planned_, geometry_.layers), NowMs()) {
  tools_.book.BeginWriting();
}

std::vector<ChunkLoad> ContextLoad::LoadsOf(size_t begin, size_t end) const {
  const auto at = [&](size_t i) { return loads_.begin() + static_cast<std::ptrdiff_t>(i); };
  return {at(begin), at(end)};
}

std::optional<ContextLoad::Group> ContextLoad::BeginGroup() {
  while (const std::optional<Group> group = source_.NextGroup(NowMs())) {
    const std::vector<ChunkLoad> loads = LoadsOf(group->begin, group->end);
    const bool wanted = std::any_of(loads.begin(), loads.end(), [&](const ChunkLoad& load) {
      return tools_.book.table().chunks().IsLoading(context_id_, load);
    });
    if (wanted) return group;
    EndGroup(*group);  // the lease is over, or has given them up
  }
  NoteLayers();
  return std::nullopt;
}

void ContextLoad::GiveUp(uint32_t chunk) {
  {
    absl::MutexLock lock(&tools_.book.mutex());
    if (chunk >= source_.load().chunks()) return;
    source_.OnGivenUp(chunk);
  }
  Advance();
}

void ContextLoad::EndWithLease() {
  source_.OnEnded();
  while (const std::optional<Group> group = source_.NextGroup(NowMs())) EndGroup(*group);
  NoteLayers();
}

void ContextLoad::Read(const Group& group) {
  const auto self = shared_from_this();
  const uint32_t number = group.number;
  const KvReadId read = tools_.disk.StartRead(
      context_id_, geometry_, tools_.book.arena().memory(), LoadsOf(group.begin, group.end),
      {.on_layer = [self, number](uint32_t layer) { self->OnLayer(number, layer); },
       .on_failed = [self, group](std::span<const size_t> lost) { self->OnFailed(group, lost); },
       .on_done = [self, number] { self->OnDone(number); }});
  absl::MutexLock lock(&tools_.book.mutex());
  if (source_.Find(number).has_value()) reads_[number] = read;
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
    while (true) {
      std::optional<Group> group;
      {
        absl::MutexLock lock(&tools_.book.mutex());
        group = BeginGroup();
      }
      if (!group.has_value()) break;
      Read(*group);
    }
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
    const std::optional<Group> group = source_.Find(number);
    if (!group.has_value()) return;
    source_.OnLayers(number, layer + 1);
    // The chunks are the context's before the worker can commit.
    if (last) EndGroup(*group);
    NoteLayers();
  }
  Deliver();
  if (last) Advance();
}

void ContextLoad::OnFailed(const Group& group, std::span<const size_t> loads) {
  {
    absl::MutexLock lock(&tools_.book.mutex());
    if (!source_.Find(group.number).has_value()) return;
    for (const size_t i : loads) {
      if (const auto event = source_.OnFailed(group.begin + i)) events_.push_back({*event});
    }
  }
  tools_.metrics.chunks.faults.Add(loads.size());
  Deliver();
}

void ContextLoad::OnDone(uint32_t number) {
  {
    absl::MutexLock lock(&tools_.book.mutex());
    const std::optional<Group> group = source_.Find(number);
    if (!group.has_value()) return;
    EndGroup(*group);
    NoteLayers();
  }
  Deliver();
  Advance();
}

void ContextLoad::EndGroup(const Group& group) {
  for (policy::KvLoadEvent& event : source_.OnGroupEnded(group.number, NowMs())) {
    events_.push_back({std::move(event)});
  }
  reads_.erase(group.number);
  const std::vector<ChunkLoad> loads = LoadsOf(group.begin, group.end);
  std::vector<bool> read(loads.size(), false);
  for (size_t i = 0; i < read.size(); ++i) {
    read[i] = !source_.failed(group.begin + i);
    if (!read[i]) continue;
    tools_.book.arena().SetEpoch(geometry_.kv(), loads[i].slot, epoch_);
    tools_.metrics.chunks.read.Add();
  }
  tools_.book.table().chunks().FinishLoad(context_id_, loads, read);
  tools_.book.RecordGauges();
}

void ContextLoad::NoteLayers() {
  if (std::optional<policy::KvLoadEvent> event = source_.TellLayers()) {
    events_.push_back({*std::move(event)});
  }
  if (source_.done()) End();
}

void ContextLoad::End() {
  if (std::exchange(ended_, true)) return;
  tools_.book.EndWriting();
  const policy::KvLoadProgress& progress = source_.progress();
  policy::EndedLoad shown{.planned = planned_,
                          .recomputed = progress.recomputed(),
                          .recompute_slowdown = progress.recompute_slowdown(NowMs()),
                          .read_slowdown = progress.read_slowdown(NowMs())};
  for (size_t i = 0; i < loads_.size(); ++i) {
    if (source_.failed(i)) {
      shown.read_bytes = 0;
      break;
    }
    shown.read_bytes += geometry_.ChunkBytes(loads_[i].slot.format);
  }
  tools_.costs.OnLoadEnded(shown);
}

void ContextLoad::Yield(uint32_t computed_before, uint32_t most) {
  policy::KvLoadSource::Yield yield;
  KvReadId cancelled = 0;
  {
    absl::MutexLock lock(&tools_.book.mutex());
    if (source_.load().asked()) return;  // once at a time
    // While a group is being begun, its read has no number yet that could be cancelled.
    yield = source_.BeginYield(computed_before, advancing_ ? 0 : most, NowMs());
    if (yield.cancelled.has_value()) {
      const auto read = reads_.find(*yield.cancelled);
      cancelled = read->second;
      reads_.erase(read);
    }
  }
  if (yield.cancelled.has_value()) tools_.disk.CancelRead(cancelled);
  {
    absl::MutexLock lock(&tools_.book.mutex());
    NoteYield(yield);
    NoteLayers();
  }
  Deliver();
  Advance();
}

void ContextLoad::NoteYield(const policy::KvLoadSource::Yield& yield) {
  std::vector<ChunkSlot> given;
  if (yield.count() > 0) {
    uint64_t evicted = 0;
    given = tools_.book.table().chunks().Yield(lease_, LoadsOf(yield.begin, yield.end), &evicted);
    tools_.metrics.chunks.evicted.Add(evicted);
    if (!given.empty()) tools_.book.Stamp(lease_, epoch_, given);
    tools_.metrics.chunks.recomputed.Add(given.size());
    tools_.metrics.chunks.yielded.Add(given.size());
    tools_.book.RecordGauges();
  }
  policy::KvLoadEvent event = source_.EndYield(yield, given.size());
  events_.push_back({std::move(event), std::move(given)});
}

void ContextLoad::Deliver() {
  absl::Mutex& mutex = tools_.book.mutex();
  absl::MutexLock lock(&mutex);
  if (std::exchange(delivering_, true)) return;
  while (!events_.empty()) {
    LoadEvent event = std::move(events_.front());
    events_.pop_front();
    const OpenLease* lease = tools_.book.Find(lease_);
    const std::shared_ptr<LeaseListener> listener = lease == nullptr ? nullptr : lease->listener;
    mutex.Unlock();
    if (listener != nullptr) listener->OnLoad(std::move(event));
    mutex.Lock();
  }
  delivering_ = false;
}

}  // namespace withy::context_store
