// Store: work on the KV of contexts that no call uses, in the background. What to do is decided in
// policy/; each step holds the lock only to begin and to end, and is dropped if a call has come
// meanwhile.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "absl/synchronization/notification.h"
#include "base/crc32c.h"
#include "base/thread_role.h"
#include "context_store/store.h"
#include "engine/kv/encode.h"
#include "policy/kv_precision.h"

namespace withy::context_store {
namespace {

// Formats in the order of the policy: from the most bytes to the fewest.
constexpr KvFormat kFormats[] = {KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2};
// What attention to a chunk suffers in each of them, relative to 4 bits: the mean KL divergence
// that `withy-bench-kv-quality` finds beyond that of 8 bits (SmolLM2-135M: 0.0017, 0.0086, 0.0426).
constexpr double kErrors[] = {0, 1, 5, 25};
// Chunks that stay at 8 bits: the first ones, which all later tokens attend to, and the latest
// ones.
constexpr size_t kFirstExact = 4;
constexpr size_t kLastExact = 8;

policy::KvFormatIndex IndexOf(KvFormat format) {
  return static_cast<policy::KvFormatIndex>(
      std::find(std::begin(kFormats), std::end(kFormats), format) - std::begin(kFormats));
}

// The formats that the context's chunks should have. A chunk is encoded once, from 8 bits.
std::vector<KvFormat> WantedFormats(const std::vector<ContextChunk>& chunks,
                                    const Geometry& geometry, uint32_t ratio_percent) {
  std::vector<policy::KvFormatCost> costs;
  for (size_t i = 0; i < std::size(kFormats); ++i) {
    costs.push_back({.chunk_bytes = geometry.ChunkBytes(kFormats[i]), .error = kErrors[i]});
  }
  std::vector<policy::DensityChunk> input;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ContextChunk& chunk = chunks[i];
    const KvFormat now = chunk.slot.has_value() ? chunk.slot->format : chunk.stored_format;
    const bool exact = i < kFirstExact || i + kLastExact >= chunks.size();
    input.push_back({.density = chunk.identity.density,
                     .tokens = chunk.identity.tokens,
                     .format = IndexOf(now),
                     .pinned = exact || !chunk.slot.has_value() || now != KvFormat::kQ8 ||
                               chunk.identity.tokens != static_cast<uint32_t>(kChunkTokens)});
  }
  const policy::FormatChoice choice = policy::ChooseFormats(costs, input, ratio_percent / 100.0);
  std::vector<KvFormat> wanted;
  for (const policy::KvFormatIndex format : choice.formats) wanted.push_back(kFormats[format]);
  return wanted;
}

// A chunk of `work` in its new format, headers included, block by block.
void EncodeChunk(const engine::KvGeometry& kv, engine::KvMemory memory, const ChunkWork& work) {
  const size_t bytes = kv.BlockBytes(work.to.format);
  for (int layer = 0; layer < kv.layers; ++layer) {
    const std::byte* from = memory.At(work.from.Block(kv, layer));
    std::byte* to = memory.At(work.to.Block(kv, layer));
    engine::EncodeBlock(kv, from, work.to.format, to);
    engine::KvBlockHeader header;
    std::memcpy(&header, from, sizeof header);
    header.format = work.to.format;
    header.checksum = Crc32c(0, {to + sizeof header, bytes - sizeof header});
    std::memcpy(to, &header, sizeof header);
  }
}

}  // namespace

void Store::Tidy(const std::string& context_id) {
  SetThreadRole(ThreadRole::kComputes);
  Geometry geometry;
  {
    absl::MutexLock lock(&mutex_);
    geometry = table_->geometry();
  }
  DemoteIdle(context_id, geometry);
  if (kv_ != nullptr) WriteIdle(context_id, geometry);
  ReleaseCopies();
}

void Store::DemoteIdle(const std::string& context_id, const Geometry& geometry) {
  std::vector<ContextChunk> chunks;
  {
    absl::MutexLock lock(&mutex_);
    chunks = table_->IdleChunks(context_id);
  }
  const std::vector<KvFormat> wanted = WantedFormats(chunks, geometry, options_.kv_ratio_percent);
  for (uint32_t i = 0; i < wanted.size(); ++i) {
    const std::optional<KvSlot>& slot = chunks[i].slot;
    if (!slot.has_value() || slot->format == wanted[i]) continue;
    std::optional<ChunkWork> work;
    {
      absl::MutexLock lock(&mutex_);
      if (table_->geometry() != geometry) return;  // another model is served
      uint64_t evicted = 0;
      work = table_->BeginDemotion(context_id, i, wanted[i], &evicted);
      evicted_.Add(evicted);
      if (!work.has_value()) return;
      ++writers_;
    }
    EncodeChunk(geometry.kv(), arena_->memory(), *work);
    absl::MutexLock lock(&mutex_);
    --writers_;
    if (!table_->FinishDemotion(*work, /*done=*/true)) return;
    demoted_.Add();
    RecordGauges();
  }
}

void Store::WriteIdle(const std::string& context_id, const Geometry& geometry) {
  std::vector<ChunkWork> work;
  {
    absl::MutexLock lock(&mutex_);
    if (table_->geometry() != geometry) return;
    const size_t chunks = table_->IdleChunks(context_id).size();
    for (uint32_t i = 0; i < chunks; ++i) {
      if (std::optional<ChunkWork> one = table_->BeginWrite(context_id, i)) {
        work.push_back(*std::move(one));
      }
    }
  }
  std::vector<StoredCopy> copies;
  absl::Status written;
  std::set<StoredCopy> lost;
  do {
    written = kv_->Write(context_id, geometry, arena_->memory(), work, &copies);
  } while (absl::IsResourceExhausted(written) && kv_->EvictOldest(&lost));
  if (!written.ok()) {
    spdlog::warn("KV of context {} is not on disk and will be computed again after a restart: {}",
                 context_id, std::string(written.message()));
    copies.assign(work.size(), 0);
  }
  std::vector<StoredCopy> unwanted;
  std::vector<ContextChunk> chunks;
  {
    absl::MutexLock lock(&mutex_);
    table_->ForgetCopies(lost);
    for (size_t i = 0; i < work.size(); ++i) {
      if (table_->FinishWrite(work[i], copies[i])) {
        written_.Add();
      } else if (copies[i] != 0) {
        unwanted.push_back(copies[i]);
      }
    }
    chunks = table_->IdleChunks(context_id);
  }
  kv_->Release(unwanted);
  // A context in use is written after its call. What the index names meanwhile is on disk.
  if (chunks.empty()) return;
  absl::Status saved = kv_->SaveIndex(context_id, geometry, chunks);
  // If the context was deleted meanwhile, nothing of it must stay.
  if (saved.ok() && contexts_->AppOf(context_id).empty()) saved = kv_->Delete(context_id);
  if (!saved.ok()) {
    spdlog::warn("KV of context {} will be computed again after a restart: {}", context_id,
                 std::string(saved.message()));
  }
}

void Store::LoadStored(LeaseId lease, const LeaseSpec& spec) {
  std::vector<ChunkLoad> loads;
  Geometry geometry;
  {
    absl::MutexLock lock(&mutex_);
    uint64_t evicted = 0;
    loads = table_->BeginLoad(lease, &evicted);
    evicted_.Add(evicted);
    geometry = table_->geometry();
    if (loads.empty()) return;
    ++writers_;
  }
  std::vector<bool> read;
  kv_->Read(spec.context_id, geometry, arena_->memory(), loads, &read);
  absl::MutexLock lock(&mutex_);
  --writers_;
  for (size_t i = 0; i < loads.size(); ++i) {
    if (!read[i]) continue;
    arena_->SetEpoch(geometry.kv(), loads[i].slot, spec.epoch);
    read_.Add();
  }
  table_->FinishLoad(lease, loads, read);
  RecordGauges();
}

void Store::ReleaseCopies() {
  if (kv_ == nullptr) return;
  std::vector<StoredCopy> copies;
  {
    absl::MutexLock lock(&mutex_);
    copies = table_->TakeGivenUp();
  }
  kv_->Release(copies);
}

void Store::AwaitTidy() {
  absl::Notification done;
  tidy_->Run([&] { done.Notify(); });
  done.WaitForNotification();
}

}  // namespace withy::context_store
