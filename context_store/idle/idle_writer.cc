#include "context_store/idle/idle_writer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <utility>

#include "policy/kv/kv_disk.h"

namespace withy::context_store {
namespace {

// What the extents of one call take on disk beyond their chunks, at most: checks and padding.
constexpr uint64_t kExtentExtraBytes = 64 << 10;
// A disk that took no KV is not asked for room again for so long.
constexpr int64_t kNextTryNanos = 10 * kNanosPerSecond;

}  // namespace

std::vector<ChunkWork> IdleWriter::TakeUnworthy(bool for_room, Batch* batch) {
  const ContextRecords& contexts = records_.contexts();
  const auto context = contexts.Find(contexts.AppOf(batch->context_id), batch->context_id);
  const bool used_again = context.ok() && context->record.revision > 1;
  std::vector<ChunkWork>& work = batch->work;
  std::vector<ChunkWork> unworthy;
  for (const bool rewrite : {false, true}) {
    policy::WriteCandidate candidate{
        .for_room = for_room, .has_copy = rewrite, .used_again = used_again};
    for (const ChunkWork& one : work) {
      if (one.rewrite == rewrite) candidate.bytes += batch->geometry.ChunkBytes(one.to);
    }
    if (candidate.bytes == 0 || disk_.Judge(candidate) == policy::WriteVerdict::kWrite) continue;
    const auto refused = std::stable_partition(
        work.begin(), work.end(), [&](const ChunkWork& one) { return one.rewrite != rewrite; });
    unworthy.insert(unworthy.end(), refused, work.end());
    work.erase(refused, work.end());
  }
  metrics_.chunks.not_written.Add(unworthy.size());
  return unworthy;
}

void IdleWriter::Write(const std::string& context_id) {
  Batch batch{.context_id = context_id, .geometry = {}};
  {
    absl::MutexLock lock(&book_.mutex());
    batch.geometry = book_.table().kv().geometry;
    IdleKv& idle = book_.table().idle();
    const size_t chunks = idle.Chunks(context_id).size();
    for (uint32_t i = 0; i < chunks; ++i) {
      if (std::optional<ChunkWork> one = idle.BeginWrite(context_id, i)) {
        batch.work.push_back(*std::move(one));
      }
    }
  }
  WriteWorthy(/*for_room=*/false, std::move(batch));
}

void IdleWriter::WriteWorthy(bool for_room, Batch batch) {
  const std::vector<ChunkWork> unworthy = TakeUnworthy(for_room, &batch);
  {
    absl::MutexLock lock(&book_.mutex());
    for (const ChunkWork& one : unworthy) book_.table().idle().FinishWrite(one, /*stored=*/0);
  }
  WriteAll(batch);
}

void IdleWriter::SwapOut(uint64_t bytes) {
  std::map<std::string, Batch> by_context;
  {
    absl::MutexLock lock(&book_.mutex());
    const Geometry& geometry = book_.table().kv().geometry;
    for (ChunkWork& work : book_.table().idle().BeginSwapOut(bytes)) {
      Batch& batch =
          by_context.try_emplace(work.context_id, Batch{work.context_id, geometry}).first->second;
      batch.work.push_back(std::move(work));
    }
  }
  for (auto& [context_id, batch] : by_context) WriteWorthy(/*for_room=*/true, std::move(batch));
}

std::vector<StoredCopy> IdleWriter::StoreChunks(const Batch& batch, std::set<StoredCopy>* lost) {
  uint64_t wanted_bytes = kExtentExtraBytes;
  for (const ChunkWork& one : batch.work) {
    wanted_bytes += batch.geometry.ChunkBytes(one.to);
  }
  const auto last_used = [this](std::string_view id) { return records_.LastUse(id); };
  while (records_.OverBound(disk_.Stats().segments.disk_bytes) &&
         disk_.MakeRoom(wanted_bytes, last_used, lost)) {
  }
  std::vector<StoredCopy> copies;
  absl::Status written;
  do {
    written =
        disk_.Write(batch.context_id, batch.geometry, book_.arena().memory(), batch.work, &copies);
  } while (absl::IsResourceExhausted(written) && disk_.MakeRoom(wanted_bytes, last_used, lost));
  if (written.ok()) return copies;
  spdlog::warn("KV of context {} is not on disk and will be computed again after a restart: {}",
               batch.context_id, std::string(written.message()));
  RestUntil(clock_.SteadyNanos() + kNextTryNanos);
  return std::vector<StoredCopy>(batch.work.size(), 0);
}

void IdleWriter::WriteAll(const Batch& batch) {
  std::set<StoredCopy> lost;
  const std::vector<StoredCopy> copies = StoreChunks(batch, &lost);
  std::vector<StoredCopy> unwanted;
  std::vector<ContextChunk> chunks;
  {
    absl::MutexLock lock(&book_.mutex());
    IdleKv& idle = book_.table().idle();
    idle.ForgetCopies(lost);
    for (size_t i = 0; i < batch.work.size(); ++i) {
      if (idle.FinishWrite(batch.work[i], copies[i])) {
        metrics_.chunks.written.Add();
        idle.copies().NotIndexed(copies[i]);
      } else if (copies[i] != 0) {
        unwanted.push_back(copies[i]);
      }
    }
    chunks = idle.Chunks(batch.context_id);
  }
  book_.AdvanceWaiting();
  disk_.Release(unwanted);
  // A context in use is written after its call. What the index names meanwhile is on disk.
  if (!chunks.empty()) SaveIndex(batch, chunks);
}

void IdleWriter::SaveIndex(const Batch& batch, std::span<const ContextChunk> chunks) {
  absl::Status saved = disk_.SaveIndex(batch.context_id, batch.geometry, chunks);
  // If the context was deleted meanwhile, nothing of it must stay.
  if (saved.ok() && !records_.Knows(batch.context_id)) {
    std::set<StoredCopy> copies_of_it;
    saved = disk_.Delete(batch.context_id, &copies_of_it);
    forget_(copies_of_it);
  }
  if (!saved.ok()) {
    spdlog::warn("KV of context {} will be computed again after a restart: {}", batch.context_id,
                 std::string(saved.message()));
    return;
  }
  absl::MutexLock lock(&book_.mutex());
  for (const ContextChunk& chunk : chunks) {
    book_.table().idle().copies().NowIndexed(chunk.stored);
  }
}

void IdleWriter::ReleaseCopies() {
  std::vector<StoredCopy> copies;
  {
    absl::MutexLock lock(&book_.mutex());
    copies = book_.table().idle().copies().TakeGivenUp();
  }
  disk_.Release(copies);
}

}  // namespace withy::context_store
