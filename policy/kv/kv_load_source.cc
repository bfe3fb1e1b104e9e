#include "policy/kv/kv_load_source.h"

#include <algorithm>

namespace withy::policy {
namespace {

// The chunks that the plan knows: those to compute before the first read, then the reads.
std::vector<MissingChunk> Missing(const KvLoad& load, std::span<const MissingChunk> reads) {
  using Chunk = KvLoad::Chunk;
  std::vector<MissingChunk> missing;
  for (uint32_t chunk = load.Find(Chunk::kToCompute); chunk < reads.front().position;
       chunk = load.Find(Chunk::kToCompute, chunk + 1)) {
    missing.push_back({chunk, 0});
  }
  missing.insert(missing.end(), reads.begin(), reads.end());
  return missing;
}

std::vector<uint32_t> Positions(std::span<const MissingChunk> chunks) {
  std::vector<uint32_t> positions;
  for (const MissingChunk& chunk : chunks) positions.push_back(chunk.position);
  return positions;
}

LoadProgressOptions ProgressOptions(const LoadSourceOptions& options, size_t dealt) {
  std::vector<bool> cuts;
  if (!options.cuts.empty()) {
    cuts.assign(dealt, true);
    cuts.insert(cuts.end(), options.cuts.begin(), options.cuts.end());
  }
  return {.dealt = dealt,
          .recomputable = dealt + options.yieldable,
          .tail_ms = options.tail_ms,
          .least_group_bytes = options.least_group_bytes,
          .cuts = std::move(cuts)};
}

}  // namespace

KvLoadSource::KvLoadSource(KvLoad load, uint32_t layers, std::span<const MissingChunk> reads,
                           const LoadCosts& costs, const LoadSourceOptions& options, double now_ms)
    : load_(std::move(load)),
      layers_(layers),
      tells_whole_chunks_(options.tells_whole_chunks),
      positions_(Positions(Missing(load_, reads))),
      dealt_(positions_.size() - reads.size()),
      progress_(Missing(load_, reads), costs, ProgressOptions(options, dealt_), now_ms),
      failed_(reads.size(), false) {}

void KvLoadSource::OnGivenUp(uint32_t chunk) {
  load_.OnGivenUp(chunk);
  const auto first = std::lower_bound(positions_.begin(), positions_.end(), chunk);
  progress_.ReadFrom(static_cast<size_t>(first - positions_.begin()));
}

std::optional<KvLoadSource::Group> KvLoadSource::NextGroup(double now_ms) {
  if (load_.asked()) return std::nullopt;
  const auto next = progress_.NextGroup(now_ms);
  if (!next.has_value()) return std::nullopt;
  const Group group{
      .number = next->number, .begin = next->begin - dealt_, .end = next->end - dealt_};
  reading_[group.number].group = group;
  return group;
}

std::optional<KvLoadSource::Group> KvLoadSource::Find(uint32_t number) const {
  const auto found = reading_.find(number);
  return found == reading_.end() ? std::nullopt : std::optional(found->second.group);
}

bool KvLoadSource::OnLayers(uint32_t number, uint32_t layers) {
  const auto found = reading_.find(number);
  if (found == reading_.end()) return false;
  auto& [group, before] = found->second;
  arrived_blocks_ += (layers - before) * (group.end - group.begin);
  before = layers;
  return true;
}

std::optional<KvLoadEvent> KvLoadSource::OnFailed(size_t read) {
  failed_[read] = true;
  const uint32_t chunk = positions_[dealt_ + read];
  if (load_.state(chunk) != KvLoad::Chunk::kReading) return std::nullopt;
  KvLoadEvent event{
      .kind = KvLoadEvent::Kind::kFailed, .change = load_.changes() + 1, .chunks = {chunk}};
  load_.Apply(event);
  progress_.ReadFrom(dealt_ + read);  // the worker gives up what is behind it
  return event;
}

std::vector<KvLoadEvent> KvLoadSource::OnGroupEnded(uint32_t number, double now_ms) {
  std::vector<KvLoadEvent> events;
  const auto found = reading_.find(number);
  if (found == reading_.end()) return events;
  const auto [group, layers] = found->second;
  reading_.erase(found);
  for (size_t read = group.begin; layers < layers_ && read < group.end; ++read) {
    if (failed_[read]) continue;
    if (std::optional<KvLoadEvent> event = OnFailed(read)) events.push_back(*std::move(event));
  }
  progress_.OnGroupEnded(number, now_ms);
  return events;
}

std::optional<KvLoadEvent> KvLoadSource::TellLayers() {
  if (load_.asked() || !progress_.all_dealt()) return std::nullopt;
  uint32_t layers = layers_;
  for (const auto& [number, reading] : reading_) layers = std::min(layers, reading.layers);
  if (layers <= load_.arrived() || (tells_whole_chunks_ && layers < layers_)) return std::nullopt;
  KvLoadEvent event{
      .kind = KvLoadEvent::Kind::kLayers, .change = load_.changes(), .layers = layers};
  load_.Apply(event);
  return event;
}

KvLoadSource::Yield KvLoadSource::BeginYield(uint32_t computed_before, size_t most, double now_ms) {
  load_.OnAsked(computed_before);
  const auto computed =
      std::lower_bound(positions_.begin(), positions_.end(), load_.computed_before());
  progress_.OnRecomputed(static_cast<size_t>(computed - positions_.begin()), now_ms);
  if (!load_.may_yield()) return {};
  const auto next = progress_.NextYield(most, now_ms);
  if (next.cancelled.has_value()) reading_.erase(*next.cancelled);
  if (next.count() == 0) return {.cancelled = next.cancelled};
  return {.begin = next.begin - dealt_, .end = next.end - dealt_, .cancelled = next.cancelled};
}

KvLoadEvent KvLoadSource::EndYield(const Yield& yield, size_t given) {
  if (given < yield.count()) progress_.Return(yield.count() - given);
  KvLoadEvent event{.kind = KvLoadEvent::Kind::kYielded,
                    .change = load_.changes() + 1,
                    .arrived_blocks = arrived_blocks_};
  for (size_t read = yield.begin; read < yield.begin + given; ++read) {
    event.chunks.push_back(positions_[dealt_ + read]);
  }
  load_.Apply(event);
  return event;
}

}  // namespace withy::policy
