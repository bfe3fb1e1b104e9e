// Store: work on the KV of contexts that no call uses, in the background. What to do is decided in
// policy/; each step holds the lock only to begin and to end, and is dropped if a call has come
// meanwhile.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/synchronization/notification.h"
#include "base/thread_role.h"
#include "context_store/store.h"
#include "policy/kv/kv_disk.h"

namespace withy::context_store {
namespace {

// What the extents of one call take on disk beyond their chunks, at most: checks and padding.
constexpr uint64_t kExtentExtraBytes = 64 << 10;
// A disk that took no KV is not asked for room again for so long.
constexpr int64_t kNextTryNanos = 10 * kNanosPerSecond;

}  // namespace

void Store::Tidy(const std::string& context_id) {
  if (stop_.HasBeenNotified()) return;
  SetThreadRole(ThreadRole::kComputes);
  Geometry geometry;
  {
    absl::MutexLock lock(&mutex_);
    geometry = table_->geometry();
  }
  if (options_.compresses_ahead) Compress(context_id);
  if (kv_ != nullptr && options_.writes_ahead) WriteIdle(context_id, geometry);
  ReleaseCopies();
  AdvanceWaiting();  // demotions have ended
  RecordMetrics();
}

std::vector<ChunkWork> Store::TakeUnworthy(const std::string& context_id, const Geometry& geometry,
                                           bool for_room, std::vector<ChunkWork>* work) {
  const auto context = contexts_->Find(contexts_->AppOf(context_id), context_id);
  const bool used_again = context.ok() && context->record.revision > 1;
  std::vector<ChunkWork> unworthy;
  for (const bool rewrite : {false, true}) {
    policy::WriteCandidate candidate{
        .for_room = for_room, .has_copy = rewrite, .used_again = used_again};
    for (const ChunkWork& one : *work) {
      if (one.rewrite == rewrite) candidate.bytes += geometry.ChunkBytes(one.from.format);
    }
    if (candidate.bytes == 0 || kv_->Judge(candidate) == policy::WriteVerdict::kWrite) continue;
    const auto refused = std::stable_partition(
        work->begin(), work->end(), [&](const ChunkWork& one) { return one.rewrite != rewrite; });
    unworthy.insert(unworthy.end(), refused, work->end());
    work->erase(refused, work->end());
  }
  metrics_.not_written.Add(unworthy.size());
  return unworthy;
}

void Store::WriteIdle(const std::string& context_id, const Geometry& geometry) {
  std::vector<ChunkWork> work;
  {
    absl::MutexLock lock(&mutex_);
    if (table_->geometry() != geometry) return;
    const size_t chunks = table_->idle().Chunks(context_id).size();
    for (uint32_t i = 0; i < chunks; ++i) {
      if (std::optional<ChunkWork> one = table_->idle().BeginWrite(context_id, i)) {
        work.push_back(*std::move(one));
      }
    }
  }
  WriteWorthy(context_id, geometry, /*for_room=*/false, std::move(work));
}

void Store::WriteWorthy(const std::string& context_id, const Geometry& geometry, bool for_room,
                        std::vector<ChunkWork> work) {
  const std::vector<ChunkWork> unworthy = TakeUnworthy(context_id, geometry, for_room, &work);
  {
    absl::MutexLock lock(&mutex_);
    for (const ChunkWork& one : unworthy) table_->idle().FinishWrite(one, /*stored=*/0);
  }
  WriteChunks(context_id, geometry, work);
}

void Store::SwapOut(uint64_t bytes) {
  std::map<std::string, std::vector<ChunkWork>> by_context;
  Geometry geometry;
  {
    absl::MutexLock lock(&mutex_);
    geometry = table_->geometry();
    for (ChunkWork& work : table_->idle().BeginSwapOut(bytes)) {
      by_context[work.context_id].push_back(std::move(work));
    }
  }
  for (auto& [context_id, work] : by_context) {
    WriteWorthy(context_id, geometry, /*for_room=*/true, std::move(work));
  }
}

uint64_t Store::BytesToLoad(const std::string& context_id) const {
  absl::MutexLock lock(&mutex_);
  uint64_t bytes = 0;
  for (const ContextChunk& chunk : table_->ChunksOf(context_id)) {
    if (!chunk.slot.has_value()) bytes += table_->geometry().ChunkBytes(chunk.stored_format);
  }
  return bytes;
}

uint64_t Store::BytesOfNewChunk() const {
  absl::MutexLock lock(&mutex_);
  return table_->geometry().ChunkBytes(KvFormat::kQ8);
}

void Store::WriteChunks(const std::string& context_id, const Geometry& geometry,
                        std::span<const ChunkWork> work) {
  uint64_t wanted_bytes = kExtentExtraBytes;
  for (const ChunkWork& one : work) wanted_bytes += geometry.ChunkBytes(one.from.format);
  const auto last_used = [this](std::string_view id) { return LastUse(id); };
  std::vector<StoredCopy> copies;
  absl::Status written;
  std::set<StoredCopy> lost;
  while (OverDiskBound() && kv_->MakeRoom(wanted_bytes, last_used, &lost)) {
  }
  do {
    written = kv_->Write(context_id, geometry, arena_->memory(), work, &copies);
  } while (absl::IsResourceExhausted(written) && kv_->MakeRoom(wanted_bytes, last_used, &lost));
  if (!written.ok()) {
    spdlog::warn("KV of context {} is not on disk and will be computed again after a restart: {}",
                 context_id, std::string(written.message()));
    copies.assign(work.size(), 0);
    no_writes_until_ns_ = clock_.SteadyNanos() + kNextTryNanos;
  }
  std::vector<StoredCopy> unwanted;
  std::vector<ContextChunk> chunks;
  {
    absl::MutexLock lock(&mutex_);
    table_->idle().ForgetCopies(lost);
    for (size_t i = 0; i < work.size(); ++i) {
      if (table_->idle().FinishWrite(work[i], copies[i])) {
        written_.Add();
      } else if (copies[i] != 0) {
        unwanted.push_back(copies[i]);
      }
    }
    chunks = table_->idle().Chunks(context_id);
  }
  AdvanceWaiting();
  kv_->Release(unwanted);
  // A context in use is written after its call. What the index names meanwhile is on disk.
  if (chunks.empty()) return;
  absl::Status saved = kv_->SaveIndex(context_id, geometry, chunks);
  // If the context was deleted meanwhile, nothing of it must stay.
  if (saved.ok() && contexts_->AppOf(context_id).empty()) {
    std::set<StoredCopy> copies_of_it;
    saved = kv_->Delete(context_id, &copies_of_it);
    ForgetCopies(copies_of_it);
  }
  if (!saved.ok()) {
    spdlog::warn("KV of context {} will be computed again after a restart: {}", context_id,
                 std::string(saved.message()));
  }
}

void Store::ForgetCopies(const std::set<StoredCopy>& lost) {
  if (lost.empty()) return;
  std::set<std::string> had;
  {
    absl::MutexLock lock(&mutex_);
    had = table_->idle().ForgetCopies(lost);
  }
  for (const std::string& context_id : had) {
    if (!contexts_->AppOf(context_id).empty()) TidyLater(context_id);
  }
}

void Store::TidyLater(const std::string& context_id) {
  ++idle_work_;
  const bool accepted = tidy_->TryRun([this, context_id] {
    Tidy(context_id);
    --idle_work_;
  });
  if (!accepted) --idle_work_;
}

void Store::ReleaseCopies() {
  if (kv_ == nullptr) return;
  std::vector<StoredCopy> copies;
  {
    absl::MutexLock lock(&mutex_);
    copies = table_->idle().TakeGivenUp();
  }
  kv_->Release(copies);
}

void Store::AwaitTidy() {
  absl::Notification done;
  tidy_->Run([&] { done.Notify(); });
  done.WaitForNotification();
}

}  // namespace withy::context_store
