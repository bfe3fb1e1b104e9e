#include "context_store/disk/kv_storage.h"

#include <spdlog/spdlog.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::context_store {
namespace {

// A copy: the number of its extent, and 16 bits for its position there.
constexpr int kPositionBits = 16;

StoredCopy CopyOf(uint64_t extent, uint32_t position) { return extent << kPositionBits | position; }
uint64_t ExtentOf(StoredCopy copy) { return copy >> kPositionBits; }
uint32_t PositionOf(StoredCopy copy) { return copy & ((1u << kPositionBits) - 1); }

// The write history: the hour, then the bytes by hour, little-endian.
constexpr std::string_view kWritesKey = "meta/kv_writes";

std::string Encode(const policy::WriteHistory& history) {
  std::string bytes(reinterpret_cast<const char*>(&history.hour), sizeof history.hour);
  bytes.append(reinterpret_cast<const char*>(history.bytes.data()), sizeof history.bytes);
  return bytes;
}

// What cannot be read counts as nothing written: KV is a cache, and so is its budget.
policy::WriteHistory ReadHistory(const RecordDb& db) {
  policy::WriteHistory history;
  const absl::StatusOr<std::string> bytes = db.Get(kWritesKey);
  if (!bytes.ok() || bytes->size() != sizeof history.hour + sizeof history.bytes) return history;
  std::memcpy(&history.hour, bytes->data(), sizeof history.hour);
  std::memcpy(history.bytes.data(), bytes->data() + sizeof history.hour, sizeof history.bytes);
  return history;
}

bool IsFormat(uint8_t format) {
  return format > static_cast<uint8_t>(KvFormat::kEmpty) && format < engine::kKvFormats;
}

// Whether the extent's chunks are as this geometry lays them out.
bool FitsGeometry(const KvExtent& extent, const Geometry& geometry) {
  if (!IsFormat(extent.format)) return false;
  const auto format = static_cast<KvFormat>(extent.format);
  if (LacksBlocks(format) && geometry.window_reach == 0) return false;
  return extent.layers == static_cast<uint32_t>(geometry.kv().BlocksOf(format)) &&
         extent.block_bytes == geometry.kv().BlockBytes(format);
}

// Where the layers of an extent of chunks in one format belong that are read into slots of another
// one; empty: where they are.
std::vector<KvExtentRead::Layer> LayersOf(const engine::KvGeometry& kv, KvFormat stored,
                                          KvFormat slot) {
  std::vector<KvExtentRead::Layer> layers;
  if (!LacksBlocks(slot)) return layers;
  for (int layer = 0; layer < kv.layers; ++layer) {
    if (!kv.HasBlock(stored, layer)) continue;
    layers.push_back({.layer = static_cast<uint32_t>(layer),
                      .block = static_cast<uint32_t>(kv.BlocksBefore(slot, layer)),
                      .wanted = kv.HasBlock(slot, layer)});
  }
  return layers;
}

// The blocks, in slots of one format, that an extent of another one has, by its layers; empty: all.
std::vector<uint32_t> BlocksOf(const engine::KvGeometry& kv, KvFormat slot, KvFormat stored) {
  std::vector<uint32_t> blocks;
  if (slot == stored) return blocks;
  for (int layer = 0; layer < kv.layers; ++layer) {
    if (kv.HasBlock(stored, layer)) {
      blocks.push_back(static_cast<uint32_t>(kv.BlocksBefore(slot, layer)));
    }
  }
  return blocks;
}

// Formats of slots, and what is written of them.
struct Writing {
  KvFormat from;
  KvFormat to;
};
constexpr Writing kWritings[] = {{KvFormat::kQ8, KvFormat::kQ8},
                                 {KvFormat::kQ8, KvFormat::kQ8Global},
                                 {KvFormat::kQ8Global, KvFormat::kQ8Global},
                                 {KvFormat::kQ4, KvFormat::kQ4},
                                 {KvFormat::kQ4Q2, KvFormat::kQ4Q2},
                                 {KvFormat::kQ2, KvFormat::kQ2}};

// Indices of the chunks by extent: one for each way of writing, as far as an extent's limit allows.
std::vector<std::vector<size_t>> GroupByExtent(const Geometry& geometry,
                                               std::span<const ChunkWork> chunks) {
  std::vector<std::vector<size_t>> groups;
  for (const Writing& writing : kWritings) {
    const auto block_bytes = static_cast<uint32_t>(geometry.kv().BlockBytes(writing.to));
    const auto layers = static_cast<uint32_t>(geometry.kv().BlocksOf(writing.to));
    const size_t most =
        std::min<size_t>(MaxChunksPerExtent(layers, block_bytes), (size_t{1} << kPositionBits) - 1);
    std::vector<size_t> group;
    for (size_t i = 0; i < chunks.size(); ++i) {
      if (chunks[i].from.format != writing.from || chunks[i].to != writing.to) continue;
      group.push_back(i);
      if (group.size() == most) groups.push_back(std::exchange(group, {}));
    }
    if (!group.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

// Of chunks that are written in one way.
KvExtentWrite WriteOf(const KvOwner& owner, const Geometry& geometry,
                      const engine::KvMemory& memory, std::span<const ChunkWork> chunks,
                      std::span<const size_t> group) {
  const KvFormat from = chunks[group.front()].from.format;
  const KvFormat to = chunks[group.front()].to;
  const engine::KvGeometry kv = geometry.kv();
  KvExtentWrite write{.owner = owner,
                      .format = static_cast<uint8_t>(to),
                      .layers = static_cast<uint32_t>(kv.BlocksOf(to)),
                      .block_bytes = static_cast<uint32_t>(kv.BlockBytes(to)),
                      .identities = {},
                      .chunks = {},
                      .blocks = BlocksOf(kv, from, to),
                      .layer_stride = kv.BlockBytes(from)};
  for (const size_t i : group) {
    write.identities.push_back(ToBytes32(chunks[i].identity));
    write.chunks.push_back(memory.base + chunks[i].from.offset());
  }
  return write;
}

}  // namespace

KvStorage::KvStorage(ContextKeys& keys, RecordDb& db, const KvWriteBudget& budget)
    : keys_(keys), db_(db), clock_(*budget.clock), writes_(budget.daily_bytes, ReadHistory(db)) {}

absl::StatusOr<std::unique_ptr<KvStorage>> KvStorage::Open(KvSegmentsOptions options,
                                                           ContextKeys& keys, RecordDb& db,
                                                           KvWriteBudget budget) {
  std::unique_ptr<KvStorage> storage(new KvStorage(keys, db, budget));
  WITHY_ASSIGN_OR_RETURN(storage->segments_, KvSegments::Open(std::move(options)));
  return storage;
}

absl::StatusOr<KvOwner> KvStorage::OwnerOf(const std::string& context_id, const Geometry& geometry,
                                           bool create) {
  KvOwner owner{.context_id = context_id,
                .model = ToBytes32(geometry.model_id),
                .windowed = geometry.windowed,
                .key = nullptr};
  if (create) {
    WITHY_ASSIGN_OR_RETURN(const DataKey data_key, keys_.GetOrCreate(context_id));
    owner.key = data_key.key;
  } else {
    WITHY_ASSIGN_OR_RETURN(owner.key, keys_.Get(context_id));
  }
  return owner;
}

StoredCopy KvStorage::AddExtent(const std::string& context_id, KvExtent extent) {
  const auto live = static_cast<uint32_t>(extent.identities.size());
  extents_[++last_extent_] = {context_id, std::move(extent), live};
  return CopyOf(last_extent_, 0);
}

bool KvStorage::AdoptContext(const Geometry& geometry, KvContextIndex index,
                             StoredContext* context) {
  if (index.model != ToBytes32(geometry.model_id)) return false;
  const std::vector<uint32_t> live = LiveChunks(index);
  std::vector<StoredCopy> first(index.extents.size(), 0);
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < index.extents.size(); ++i) {
    KvExtent& extent = index.extents[i];
    if (live[i] == 0 || !FitsGeometry(extent, geometry)) continue;
    if (const absl::Status adopted = segments_->Adopt(extent, live[i]); !adopted.ok()) {
      spdlog::warn("KV of context {} is lost and will be computed again: {}", context->context_id,
                   std::string(adopted.message()));
      CountDamage(extent, adopted);
      continue;
    }
    first[i] = AddExtent(context->context_id, std::move(extent));
    extents_.at(last_extent_).live = live[i];
  }
  for (const KvChunk& chunk : index.chunks) {
    ContextChunk& known = context->chunks.emplace_back();
    known.identity = {.identity = std::string(chunk.identity.begin(), chunk.identity.end()),
                      .tokens = chunk.tokens,
                      .model_level_percent = chunk.level_percent,
                      .density = chunk.density,
                      .density_rows = chunk.density > 0 ? 1u : 0u};
    if (IsFormat(chunk.format)) known.stored_format = static_cast<KvFormat>(chunk.format);
    if (!chunk.stored() || first[chunk.extent] == 0) continue;
    known.stored = first[chunk.extent] + chunk.position;
    known.stored_format =
        static_cast<KvFormat>(extents_.at(ExtentOf(first[chunk.extent])).extent.format);
  }
  return !context->chunks.empty();
}

absl::StatusOr<std::vector<StoredContext>> KvStorage::Adopt(
    const Geometry& geometry, const std::function<bool(std::string_view)>& exists) {
  std::vector<StoredContext> contexts;
  bool again = false;
  {
    absl::MutexLock lock(&mutex_);
    again = std::exchange(adopted_, true);
    for (const auto& [number, live] : extents_) segments_->Release(live.extent, live.live);
    extents_.clear();
  }
  RecordBatch stale;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    StoredContext context;
    context.context_id = std::string(key.substr(kKvIndexPrefix.size()));
    KvContextIndex index;
    if (!again && exists(context.context_id) && payload.ok() &&
        DecodeKvIndex(*payload, &index).ok() &&
        AdoptContext(geometry, std::move(index), &context)) {
      contexts.push_back(std::move(context));
    } else {
      stale.Delete(key);
    }
    return true;
  };
  WITHY_RETURN_IF_ERROR(db_.Scan(kKvIndexPrefix, visit));
  // What stays in the index for want of room is looked at again by the next start.
  if (const absl::Status written = db_.Write(stale); !written.ok()) {
    spdlog::warn("the index of KV keeps entries that are of no use: {}",
                 std::string(written.message()));
  }
  if (!again) segments_->DeleteUnnamed();
  return contexts;
}

absl::Status KvStorage::Write(const std::string& context_id, const Geometry& geometry,
                              const engine::KvMemory& memory, std::span<const ChunkWork> chunks,
                              std::vector<StoredCopy>* copies) {
  copies->assign(chunks.size(), 0);
  if (chunks.empty()) return absl::OkStatus();
  WITHY_ASSIGN_OR_RETURN(const KvOwner owner, OwnerOf(context_id, geometry, /*create=*/true));
  std::vector<KvExtent> extents;
  std::vector<std::vector<size_t>> members;
  for (const std::vector<size_t>& group : GroupByExtent(geometry, chunks)) {
    absl::StatusOr<KvExtent> extent =
        segments_->Append(WriteOf(owner, geometry, memory, chunks, group));
    if (!extent.ok()) {
      for (const KvExtent& written : extents) {
        segments_->Release(written, static_cast<uint32_t>(written.identities.size()));
      }
      return extent.status();
    }
    extents.push_back(*std::move(extent));
    members.push_back(group);
  }
  if (const absl::Status synced = segments_->Sync(extents); !synced.ok()) {
    for (const KvExtent& extent : extents) {
      segments_->Release(extent, static_cast<uint32_t>(extent.identities.size()));
    }
    return synced;
  }
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const KvExtent& extent : extents) bytes += extent.layout().DiskBytes();
  writes_.Wrote(bytes, clock_.UnixNanos());
  for (size_t e = 0; e < extents.size(); ++e) {
    const StoredCopy first = AddExtent(context_id, std::move(extents[e]));
    for (size_t p = 0; p < members[e].size(); ++p) (*copies)[members[e][p]] = first + p;
  }
  return absl::OkStatus();
}

absl::Status KvStorage::SaveIndex(const std::string& context_id, const Geometry& geometry,
                                  std::span<const ContextChunk> chunks) {
  KvContextIndex index{.model = ToBytes32(geometry.model_id), .chunks = {}, .extents = {}};
  {
    absl::MutexLock lock(&mutex_);
    std::map<uint64_t, uint32_t> numbers;
    for (const ContextChunk& chunk : chunks) {
      if (chunk.stored == 0) break;
      const uint64_t extent = ExtentOf(chunk.stored);
      const auto live = extents_.find(extent);
      if (live == extents_.end()) break;  // given up meanwhile
      KvChunk& named = index.chunks.emplace_back();
      named.identity = ToBytes32(chunk.identity.identity);
      named.tokens = static_cast<uint8_t>(chunk.identity.tokens);
      named.level_percent = static_cast<uint8_t>(chunk.identity.model_level_percent);
      named.format = static_cast<uint8_t>(chunk.stored_format);
      named.density = chunk.identity.density;
      if (live->second.context_id != context_id) continue;  // borrowed
      const auto [number, added] =
          numbers.try_emplace(extent, static_cast<uint32_t>(index.extents.size()));
      if (added) index.extents.push_back(live->second.extent);
      named.extent = number->second;
      named.position = PositionOf(chunk.stored);
    }
  }
  RecordBatch batch;
  {
    absl::MutexLock lock(&mutex_);
    batch.Put(kWritesKey, Encode(writes_.history()));
  }
  if (index.chunks.empty()) {
    batch.Delete(KvIndexKey(context_id));
  } else {
    // Identities of chunks are hashes of text.
    WITHY_ASSIGN_OR_RETURN(const DataKey data_key, keys_.GetOrCreate(context_id));
    batch.Put(KvIndexKey(context_id), EncodeKvIndex(index), data_key);
  }
  return db_.Write(batch);
}

std::map<std::string, absl::StatusOr<KvOwner>> KvStorage::OwnersOf(std::span<const ChunkLoad> loads,
                                                                   const Geometry& geometry) {
  std::set<std::string> ids;
  {
    absl::MutexLock lock(&mutex_);
    for (const ChunkLoad& load : loads) {
      const auto found = extents_.find(ExtentOf(load.stored));
      if (found != extents_.end()) ids.insert(found->second.context_id);
    }
  }
  std::map<std::string, absl::StatusOr<KvOwner>> owners;
  for (const std::string& id : ids) owners.emplace(id, OwnerOf(id, geometry, /*create=*/false));
  return owners;
}

std::vector<bool> KvStorage::Cuts(std::span<const ChunkLoad> loads) const {
  std::vector<bool> cuts(loads.size(), false);
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < loads.size(); ++i) {
    const uint64_t number = ExtentOf(loads[i].stored);
    const auto found = extents_.find(number);
    if (found == extents_.end()) continue;
    const uint32_t blocks = found->second.extent.layout().BlocksPerPiece();
    cuts[i] = i == 0 || ExtentOf(loads[i - 1].stored) != number ||
              (blocks > 0 && PositionOf(loads[i].stored) % blocks == 0);
  }
  return cuts;
}

KvReadId KvStorage::StartRead(const std::string& context_id, const Geometry& geometry,
                              const engine::KvMemory& memory, std::span<const ChunkLoad> loads,
                              ReadEvents events) {
  const auto give_up = [&](const std::vector<size_t>& lost, const absl::Status& why) {
    spdlog::warn("KV of context {} is computed again: {}", context_id, std::string(why.message()));
    events.on_failed(lost);
  };
  std::vector<size_t> all(loads.size());
  std::iota(all.begin(), all.end(), size_t{0});
  const std::map<std::string, absl::StatusOr<KvOwner>> owners = OwnersOf(loads, geometry);
  KvRead request{.layers = geometry.layers, .extents = {}};
  std::vector<std::vector<size_t>> members;
  std::vector<size_t> lost;
  absl::Status why_lost = absl::NotFoundError("its segment was given up");
  {
    absl::MutexLock lock(&mutex_);
    std::map<std::pair<uint64_t, KvFormat>, size_t> numbers;  // by extent and format of the slot
    for (size_t i = 0; i < loads.size(); ++i) {
      const uint64_t number = ExtentOf(loads[i].stored);
      const auto found = extents_.find(number);
      if (found == extents_.end()) {
        lost.push_back(i);
        continue;
      }
      const absl::StatusOr<KvOwner>& owner = owners.at(found->second.context_id);
      if (!owner.ok()) {
        lost.push_back(i);
        why_lost = owner.status();
        continue;
      }
      const KvFormat slot = loads[i].slot.format;
      const auto [at, added] = numbers.try_emplace({number, slot}, request.extents.size());
      if (added) {
        const KvExtent& extent = found->second.extent;
        request.extents.push_back(
            {.extent = extent,
             .owner = *owner,
             .targets = std::vector<std::byte*>(extent.identities.size()),
             .layer_stride = extent.block_bytes,
             .layers = LayersOf(geometry.kv(), static_cast<KvFormat>(extent.format), slot)});
        members.emplace_back();
      }
      request.extents[at->second].targets[PositionOf(loads[i].stored)] =
          memory.base + loads[i].slot.offset();
      members[at->second].push_back(i);
    }
  }
  if (!lost.empty()) give_up(lost, why_lost);
  if (request.extents.empty()) {
    events.on_done();
    return 0;
  }
  std::vector<KvExtent> extents;
  for (const KvExtentRead& one : request.extents) extents.push_back(one.extent);
  request.on_layer = events.on_layer;
  request.on_failed = [this, context_id, members = std::move(members), extents = std::move(extents),
                       on_failed = events.on_failed](size_t extent, const absl::Status& why) {
    CountDamage(extents[extent], why);
    spdlog::warn("KV of context {} is computed again: {}", context_id, std::string(why.message()));
    on_failed(members[extent]);
  };
  request.on_done = events.on_done;
  const absl::StatusOr<KvReadId> started = segments_->reader().Start(std::move(request));
  if (started.ok()) return *started;
  give_up(all, started.status());
  events.on_done();
  return 0;
}

void KvStorage::CountDamage(const KvExtent& extent, const absl::Status& status) {
  struct stat info {};
  const std::string path = KvSegmentPath(segments_->directory(), extent.segment);
  const bool there = stat(path.c_str(), &info) == 0;
  const bool whole =
      static_cast<uint64_t>(info.st_size) >= extent.offset + extent.layout().DiskBytes();
  absl::MutexLock lock(&damage_mutex_);
  if (!there) {
    ++damage_.missing;
  } else if (!whole) {
    ++damage_.cut;
  } else if (absl::IsDataLoss(status)) {
    ++damage_.wrong;
  } else {
    ++damage_.unread;
  }
}

policy::WriteVerdict KvStorage::Judge(const policy::WriteCandidate& candidate) {
  absl::MutexLock lock(&mutex_);
  return policy::JudgeWrite(candidate, writes_.LeftBytes(clock_.UnixNanos()),
                            writes_.limit_bytes());
}

bool KvStorage::GiveUp(uint64_t segment, std::set<StoredCopy>* lost) {
  if (const absl::Status evicted = segments_->Evict(segment); !evicted.ok()) {
    spdlog::warn("KV on disk: {}", std::string(evicted.message()));
    return false;
  }
  absl::MutexLock lock(&mutex_);
  ++given_up_segments_;
  for (auto it = extents_.begin(); it != extents_.end();) {
    const KvExtent& extent = it->second.extent;
    if (extent.segment != segment) {
      ++it;
      continue;
    }
    for (uint32_t i = 0; i < extent.identities.size(); ++i) lost->insert(CopyOf(it->first, i));
    it = extents_.erase(it);
  }
  return true;
}

bool KvStorage::MakeRoom(uint64_t wanted_bytes, const LastUsed& last_used_ns,
                         std::set<StoredCopy>* lost) {
  std::map<uint64_t, std::map<std::string, uint64_t>> live;  // by segment and context
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [number, one] : extents_) {
      live[one.extent.segment][one.context_id] +=
          uint64_t{one.live} * one.extent.layers * one.extent.block_bytes;
    }
  }
  const std::vector<KvSegmentInfo> infos = segments_->Segments();
  std::vector<std::vector<policy::LiveKv>> parts(infos.size());
  std::vector<policy::KvSegment> segments;
  uint64_t disk_bytes = 0;
  for (size_t i = 0; i < infos.size(); ++i) {
    for (const auto& [context_id, bytes] : live[infos[i].number]) {
      parts[i].push_back({bytes, last_used_ns(context_id)});
    }
    // The segment that is appended to may go, too: the next write begins another one.
    segments.push_back({.bytes = infos[i].bytes, .live = parts[i], .open = false});
    disk_bytes += infos[i].bytes;
  }
  const policy::DiskPlan plan =
      policy::PlanDisk(segments,
                       {.limit_bytes = std::min(segments_->max_bytes(), disk_bytes),
                        .text_bytes = 0,
                        .wanted_bytes = wanted_bytes},
                       clock_.UnixNanos());
  bool gave_up = false;
  for (const size_t i : plan.give_up) gave_up |= GiveUp(infos[i].number, lost);
  return gave_up;
}

KvStorageStats KvStorage::Stats() {
  KvStorageStats stats{.segments = segments_->Stats(), .damage = {}};
  {
    absl::MutexLock lock(&damage_mutex_);
    stats.damage = damage_;
  }
  absl::MutexLock lock(&mutex_);
  stats.given_up_segments = given_up_segments_;
  stats.daily_limit_bytes = writes_.limit_bytes();
  stats.written_day_bytes = writes_.limit_bytes() - writes_.LeftBytes(clock_.UnixNanos());
  return stats;
}

void KvStorage::Release(std::span<const StoredCopy> copies) {
  absl::MutexLock lock(&mutex_);
  for (const StoredCopy copy : copies) {
    const auto found = extents_.find(ExtentOf(copy));
    if (found == extents_.end()) continue;
    segments_->Release(found->second.extent, 1);
    if (--found->second.live == 0) extents_.erase(found);
  }
}

absl::Status KvStorage::Delete(std::string_view context_id, std::set<StoredCopy>* lost) {
  {
    absl::MutexLock lock(&mutex_);
    for (auto it = extents_.begin(); it != extents_.end();) {
      if (it->second.context_id != context_id) {
        ++it;
        continue;
      }
      const KvExtent& extent = it->second.extent;
      for (uint32_t i = 0; i < extent.identities.size(); ++i) lost->insert(CopyOf(it->first, i));
      segments_->Release(extent, it->second.live);
      it = extents_.erase(it);
    }
  }
  {
    const ContextKeys::Writing writing(keys_);
    RecordBatch batch;
    batch.Delete(KvIndexKey(context_id));
    ContextKeys::Remove(context_id, &batch);
    WITHY_RETURN_IF_ERROR(db_.Write(batch));
  }
  return keys_.Expunge();
}

}  // namespace withy::context_store
