#include "context_store/kv_storage.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status.h"

namespace withy::context_store {
namespace {

// A copy: the number of its extent, and 16 bits for its position there.
constexpr int kPositionBits = 16;

StoredCopy CopyOf(uint64_t extent, uint32_t position) { return extent << kPositionBits | position; }
uint64_t ExtentOf(StoredCopy copy) { return copy >> kPositionBits; }
uint32_t PositionOf(StoredCopy copy) { return copy & ((1u << kPositionBits) - 1); }

}  // namespace

absl::StatusOr<std::unique_ptr<KvStorage>> KvStorage::Open(KvSegmentsOptions options, KeyFile key,
                                                           RecordDb& db) {
  std::unique_ptr<KvStorage> storage(new KvStorage(db));
  WITHY_ASSIGN_OR_RETURN(storage->keys_, ContextKeys::Open(db, std::move(key)));
  WITHY_ASSIGN_OR_RETURN(storage->segments_, KvSegments::Open(std::move(options)));
  return storage;
}

absl::StatusOr<KvOwner> KvStorage::OwnerOf(const std::string& context_id, const Geometry& geometry,
                                           bool create) {
  KvOwner owner{.context_id = context_id, .model = ToBytes32(geometry.model_id), .key = nullptr};
  absl::StatusOr<std::shared_ptr<const SecretKey>> key = keys_->Get(context_id);
  if (create && absl::IsNotFound(key.status())) {
    RecordBatch batch;
    key = keys_->Create(context_id, &batch);
    WITHY_RETURN_IF_ERROR(db_.Write(batch));
  }
  WITHY_ASSIGN_OR_RETURN(owner.key, std::move(key));
  return owner;
}

StoredCopy KvStorage::AddExtent(KvExtent extent) {
  const auto live = static_cast<uint32_t>(extent.identities.size());
  extents_[++last_extent_] = {std::move(extent), live};
  return CopyOf(last_extent_, 0);
}

bool KvStorage::AdoptContext(const Geometry& geometry, KvContextIndex index,
                             StoredContext* context) {
  if (index.model != ToBytes32(geometry.model_id)) return false;
  // Chunks behind one that is not on disk are of no use.
  const auto missing = std::find_if(index.chunks.begin(), index.chunks.end(),
                                    [](const KvChunk& chunk) { return !chunk.stored(); });
  index.chunks.erase(missing, index.chunks.end());
  const std::vector<uint32_t> live = LiveChunks(index);
  std::vector<StoredCopy> first(index.extents.size(), 0);
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < index.extents.size(); ++i) {
    KvExtent& extent = index.extents[i];
    if (live[i] == 0 || extent.layers != geometry.layers ||
        extent.block_bytes != geometry.kv().BlockBytes(static_cast<KvFormat>(extent.format))) {
      continue;
    }
    if (const absl::Status adopted = segments_->Adopt(extent, live[i]); !adopted.ok()) {
      spdlog::warn("KV of context {} is lost and will be computed again: {}", context->context_id,
                   std::string(adopted.message()));
      continue;
    }
    first[i] = AddExtent(std::move(extent));
    extents_.at(last_extent_).live = live[i];
  }
  bool complete = true;
  for (const KvChunk& chunk : index.chunks) {
    if (!complete || first[chunk.extent] == 0) {
      // Its extent may be there, but is not needed.
      complete = false;
      continue;
    }
    context->chunks.push_back(
        {.identity = {.identity = std::string(chunk.identity.begin(), chunk.identity.end()),
                      .tokens = chunk.tokens,
                      .model_level_percent = chunk.level_percent,
                      .density = chunk.density,
                      .density_rows = chunk.density > 0 ? 1u : 0u},
         .slot = std::nullopt,
         .stored = first[chunk.extent] + chunk.position,
         .stored_format =
             static_cast<KvFormat>(extents_.at(ExtentOf(first[chunk.extent])).extent.format)});
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
  WITHY_RETURN_IF_ERROR(db_.Write(stale));
  if (!again) WITHY_RETURN_IF_ERROR(segments_->DeleteUnnamed().status());
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
  // One extent for each format, as far as an extent's limit allows.
  for (const KvFormat format : {KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2}) {
    const auto block_bytes = static_cast<uint32_t>(geometry.kv().BlockBytes(format));
    const size_t most = std::min<size_t>(MaxChunksPerExtent(geometry.layers, block_bytes),
                                         (size_t{1} << kPositionBits) - 1);
    std::vector<size_t> of_format;
    const auto flush = [&]() -> absl::Status {
      if (of_format.empty()) return absl::OkStatus();
      KvExtentWrite write{.owner = owner,
                          .format = static_cast<uint8_t>(format),
                          .layers = geometry.layers,
                          .block_bytes = block_bytes,
                          .identities = {},
                          .chunks = {},
                          .layer_stride = block_bytes};
      for (const size_t i : of_format) {
        write.identities.push_back(ToBytes32(chunks[i].identity));
        write.chunks.push_back(memory.base + chunks[i].from.offset());
      }
      WITHY_ASSIGN_OR_RETURN(KvExtent extent, segments_->Append(write));
      extents.push_back(std::move(extent));
      members.push_back(std::exchange(of_format, {}));
      return absl::OkStatus();
    };
    absl::Status written;
    for (size_t i = 0; i < chunks.size() && written.ok(); ++i) {
      if (chunks[i].from.format != format) continue;
      of_format.push_back(i);
      if (of_format.size() == most) written = flush();
    }
    if (written.ok()) written = flush();
    if (!written.ok()) {
      for (const KvExtent& extent : extents) {
        segments_->Release(extent, static_cast<uint32_t>(extent.identities.size()));
      }
      return written;
    }
  }
  if (const absl::Status synced = segments_->Sync(extents); !synced.ok()) {
    for (const KvExtent& extent : extents) {
      segments_->Release(extent, static_cast<uint32_t>(extent.identities.size()));
    }
    return synced;
  }
  absl::MutexLock lock(&mutex_);
  for (size_t e = 0; e < extents.size(); ++e) {
    const StoredCopy first = AddExtent(std::move(extents[e]));
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
      const auto [number, added] =
          numbers.try_emplace(extent, static_cast<uint32_t>(index.extents.size()));
      if (added) index.extents.push_back(live->second.extent);
      index.chunks.push_back(
          {.identity = ToBytes32(chunk.identity.identity),
           .tokens = static_cast<uint8_t>(chunk.identity.tokens),
           .level_percent = static_cast<uint8_t>(chunk.identity.model_level_percent),
           .format = static_cast<uint8_t>(chunk.stored_format),
           .density = chunk.identity.density,
           .extent = number->second,
           .position = PositionOf(chunk.stored)});
    }
  }
  RecordBatch batch;
  if (index.chunks.empty()) {
    batch.Delete(KvIndexKey(context_id));
  } else {
    batch.Put(KvIndexKey(context_id), EncodeKvIndex(index));
  }
  return db_.Write(batch);
}

void KvStorage::Read(const std::string& context_id, const Geometry& geometry,
                     const engine::KvMemory& memory, std::span<const ChunkLoad> loads,
                     std::vector<bool>* read) {
  read->assign(loads.size(), false);
  const absl::StatusOr<KvOwner> owner = OwnerOf(context_id, geometry, /*create=*/false);
  if (!owner.ok()) {
    spdlog::warn("KV of context {} is computed again: {}", context_id,
                 std::string(owner.status().message()));
    return;
  }
  KvRead request{.layers = geometry.layers,
                 .extents = {},
                 .on_layer = [](uint32_t) {},
                 .on_failed = {},
                 .on_done = {}};
  std::vector<std::vector<size_t>> members;
  {
    absl::MutexLock lock(&mutex_);
    std::map<uint64_t, size_t> numbers;
    for (size_t i = 0; i < loads.size(); ++i) {
      const uint64_t number = ExtentOf(loads[i].stored);
      const auto found = extents_.find(number);
      if (found == extents_.end()) continue;
      const auto [at, added] = numbers.try_emplace(number, request.extents.size());
      if (added) {
        const KvExtent& extent = found->second.extent;
        request.extents.push_back({.extent = extent,
                                   .owner = *owner,
                                   .targets = std::vector<std::byte*>(extent.identities.size()),
                                   .layer_stride = extent.block_bytes});
        members.emplace_back();
      }
      request.extents[at->second].targets[PositionOf(loads[i].stored)] =
          memory.base + loads[i].slot.offset();
      members[at->second].push_back(i);
    }
  }
  if (request.extents.empty()) return;
  std::vector<bool> failed(request.extents.size(), false);
  absl::Notification done;
  request.on_failed = [&](size_t extent, const absl::Status& status) {
    failed[extent] = true;
    spdlog::warn("KV of context {} is computed again: {}", context_id,
                 std::string(status.message()));
  };
  request.on_done = [&] { done.Notify(); };
  if (const auto started = segments_->Start(std::move(request)); !started.ok()) {
    spdlog::warn("KV of context {} is computed again: {}", context_id,
                 std::string(started.status().message()));
    return;
  }
  done.WaitForNotification();
  for (size_t e = 0; e < members.size(); ++e) {
    for (const size_t i : members[e]) (*read)[i] = !failed[e];
  }
}

bool KvStorage::EvictOldest(std::set<StoredCopy>* lost) {
  const std::vector<KvSegmentInfo> segments = segments_->Segments();
  if (segments.empty()) return false;
  const uint64_t oldest = segments.front().number;
  if (const absl::Status evicted = segments_->Evict(oldest); !evicted.ok()) {
    spdlog::warn("KV on disk: {}", std::string(evicted.message()));
    return false;
  }
  absl::MutexLock lock(&mutex_);
  for (auto it = extents_.begin(); it != extents_.end();) {
    const KvExtent& extent = it->second.extent;
    if (extent.segment != oldest) {
      ++it;
      continue;
    }
    for (uint32_t i = 0; i < extent.identities.size(); ++i) lost->insert(CopyOf(it->first, i));
    it = extents_.erase(it);
  }
  return true;
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

absl::Status KvStorage::Delete(std::string_view context_id) {
  RecordBatch batch;
  batch.Delete(KvIndexKey(context_id));
  ContextKeys::Remove(context_id, &batch);
  WITHY_RETURN_IF_ERROR(db_.Write(batch));
  return keys_->Expunge();
}

}  // namespace withy::context_store
