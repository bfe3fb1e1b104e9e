// Store: room in the arena for calls. Lossless before lossy: chunks that can be read back bit for
// bit give way first, then those that the disk takes now; only where that is not enough are chunks
// stored in fewer bits (policy/kv/kv_demotion.h), and last of all dropped, to be computed again
// (policy/kv/kv_eviction.h). With a strategy that compresses ahead, a context is brought to the
// ratio when its call has ended. Each step holds the lock only to begin and to end, and is dropped
// if a call has come meanwhile.
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/synchronization/notification.h"
#include "base/crc32c.h"
#include "context_store/store.h"
#include "engine/kv/encode.h"
#include "policy/kv/kv_demotion.h"

namespace withy::context_store {
namespace {

// Formats in the order of the policy: from the most bytes to the fewest.
constexpr KvFormat kFormats[] = {KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2};
// Chunks that stay at 8 bits: the first ones, which all later tokens attend to, and the latest
// ones.
constexpr size_t kFirstExact = 2;
constexpr size_t kLastExact = 2;
// What is moved within the arena under one hold of the lock: a few milliseconds at most.
constexpr uint64_t kMostMovedBytes = 16 << 20;
// A disk that has written no context for so long is taken to hang, and is not waited for again
// until the second time is over.
constexpr int64_t kPatienceNanos = 10 * kNanosPerSecond;
constexpr int64_t kHangNanos = 60 * kNanosPerSecond;
constexpr absl::Duration kLook = absl::Milliseconds(100);

policy::KvFormatIndex IndexOf(KvFormat format) {
  return static_cast<policy::KvFormatIndex>(
      std::find(std::begin(kFormats), std::end(kFormats), format) - std::begin(kFormats));
}

// A context's chunks for the policy. `kept[i]`: the chunk keeps its format. `spares_copies`: so do
// those that can be read back bit for bit.
std::vector<policy::DensityChunk> DensitiesOf(const std::vector<ContextChunk>& chunks,
                                              const std::vector<bool>& kept, bool spares_copies) {
  std::vector<policy::DensityChunk> input;
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ContextChunk& chunk = chunks[i];
    const KvFormat now = chunk.slot.has_value() ? chunk.slot->format : chunk.stored_format;
    const bool exact = i < kFirstExact || i + kLastExact >= chunks.size();
    input.push_back({.density = chunk.identity.density,
                     .tokens = chunk.identity.tokens,
                     .format = IndexOf(now),
                     .pinned = exact || kept[i] || !chunk.slot.has_value() ||
                               (spares_copies && chunk.HasExactCopy()) ||
                               chunk.identity.tokens != static_cast<uint32_t>(kChunkTokens)});
  }
  return input;
}

// The blocks of a chunk in its new format, headers included.
std::vector<std::byte> EncodeChunk(const engine::KvGeometry& kv, engine::KvMemory memory,
                                   KvSlot from, KvFormat to) {
  const size_t bytes = kv.BlockBytes(to);
  std::vector<std::byte> chunk(kv.ChunkBytes(to));
  for (int layer = 0; layer < kv.layers; ++layer) {
    const std::byte* block = memory.At(from.Block(kv, layer));
    std::byte* out = chunk.data() + static_cast<size_t>(layer) * bytes;
    engine::EncodeBlock(kv, block, from.format, to, out);
    engine::KvBlockHeader header;
    std::memcpy(&header, block, sizeof header);
    header.format = to;
    header.checksum = Crc32c(0, {out + sizeof header, bytes - sizeof header});
    std::memcpy(out, &header, sizeof header);
  }
  return chunk;
}

}  // namespace

struct Store::Compression {
  Geometry geometry;
  std::vector<policy::KvFormatCost> formats;
  std::vector<std::string> ids;  // of contexts
  std::vector<std::vector<policy::DensityChunk>> chunks;
};

Store::Compression Store::FindCompressible(std::vector<std::string> context_ids,
                                           bool spares_copies) const {
  Compression found;
  found.geometry = table_->geometry();
  found.ids = std::move(context_ids);
  for (const KvFormat format : kFormats) {
    found.formats.push_back({.chunk_bytes = found.geometry.ChunkBytes(format),
                             .error = costs_.errors[static_cast<size_t>(format)]});
  }
  const std::vector<std::vector<bool>> kept = table_->idle().KeptFormats(found.ids, kLastExact);
  for (size_t i = 0; i < found.ids.size(); ++i) {
    found.chunks.push_back(
        DensitiesOf(table_->idle().Chunks(found.ids[i]), kept[i], spares_copies));
  }
  return found;
}

void Store::Carry(const Compression& of, uint64_t bytes) {
  const policy::DemotionPlan plan = policy::PlanDemotions(
      of.formats, of.chunks, options_.kv_ratio_percent / 100.0, bytes, *options_.precision);
  for (const policy::KvDemotion& one : plan.demotions) {
    const KvFormat to = kFormats[one.format];
    std::optional<ChunkWork> work;
    {
      absl::MutexLock lock(&mutex_);
      if (table_->geometry() != of.geometry) return;  // another model is served
      work =
          table_->idle().BeginDemotion(of.ids[one.context], static_cast<uint32_t>(one.chunk), to);
      if (!work.has_value()) continue;
      ++writers_;
    }
    const engine::KvMemory memory = arena_->memory();
    const std::vector<std::byte> encoded = EncodeChunk(of.geometry.kv(), memory, work->from, to);
    absl::MutexLock lock(&mutex_);
    --writers_;
    const std::optional<KvSlot> slot = table_->idle().FinishDemotion(*work, to);
    if (!slot.has_value()) continue;
    std::memcpy(memory.base + slot->offset(), encoded.data(), encoded.size());
    demoted_.Add();
    metrics_.demoted_bytes.Add(of.geometry.ChunkBytes(work->from.format) - encoded.size());
    RecordGauges();
  }
}

void Store::Compress(const std::string& context_id) {
  Compression one;
  {
    absl::MutexLock lock(&mutex_);
    one = FindCompressible({context_id}, /*spares_copies=*/false);
  }
  Carry(one, UINT64_MAX);
  absl::MutexLock lock(&mutex_);
  table_->idle().Deduplicate(context_id);
  RecordGauges();
}

void Store::CompressFor(uint64_t bytes) {
  Compression idle;
  {
    absl::MutexLock lock(&mutex_);
    idle = FindCompressible(table_->idle().ByUse(), /*spares_copies=*/true);
  }
  Carry(idle, bytes);
}

bool Store::LacksRoomLocked(uint64_t bytes) const {
  const uint64_t chunk_bytes = table_->geometry().ChunkBytes(KvFormat::kQ8);
  const uint64_t held = table_->slots().Holds(chunk_bytes) * chunk_bytes;
  if (bytes <= held) return false;
  return held + table_->idle().ExactRoom() - table_->slots().counts().free < bytes;
}

bool Store::LacksRoom(uint64_t bytes) const {
  absl::MutexLock lock(&mutex_);
  return table_->geometry().layers > 0 && LacksRoomLocked(bytes);
}

bool Store::MakesRoom(uint32_t chunks) const {
  const uint64_t bytes = chunks * BytesOfNewChunk();
  if (kv_ != nullptr && !options_.writes_ahead) return true;
  return !options_.compresses_ahead && LacksRoom(bytes);
}

void Store::AwaitSwapOut(uint64_t bytes) {
  if (clock_.SteadyNanos() < no_writes_until_ns_) return;
  // Shared with the task, which may end after the waiting.
  const auto done = std::make_shared<absl::Notification>();
  const bool accepted = tidy_->TryRun([this, bytes, done] {
    SwapOut(bytes);
    ReleaseCopies();
    done->Notify();
  });
  if (!accepted) return;
  uint64_t written = written_.value();
  int64_t since_ns = clock_.SteadyNanos();
  while (!done->WaitForNotificationWithTimeout(kLook)) {
    const int64_t now_ns = clock_.SteadyNanos();
    if (const uint64_t now = written_.value(); now != written) {
      written = now;
      since_ns = now_ns;
    }
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    if (!options_.writes_ahead || now_ns - since_ns < kPatienceNanos) continue;
    spdlog::warn("the disk has taken no KV for {} s: chunks lose bits, or are computed again",
                 kPatienceNanos / kNanosPerSecond);
    no_writes_until_ns_ = now_ns + kHangNanos;
    return;
  }
}

void Store::MakeRoom(uint64_t bytes) {
  const bool writes_now = kv_ != nullptr && !options_.writes_ahead;
  if (!writes_now && (options_.compresses_ahead || !LacksRoom(bytes))) return;
  if (kv_ != nullptr) AwaitSwapOut(bytes);
  if (options_.compresses_ahead || !options_.precision.has_value()) return;
  absl::MutexLock making(&room_mutex_);
  if (!LacksRoom(bytes)) return;  // others may have made it, while this thread waited
  uint64_t room = 0;
  {
    absl::MutexLock lock(&mutex_);
    room = table_->idle().ExactRoom();
  }
  if (room < bytes) CompressFor(bytes - room);
  absl::MutexLock lock(&mutex_);
  const uint64_t chunk_bytes = table_->geometry().ChunkBytes(KvFormat::kQ8);
  if (!LacksRoomLocked(bytes)) return;
  const engine::KvMemory memory = arena_->memory();
  table_->idle().Compact((bytes + chunk_bytes - 1) / chunk_bytes, kMostMovedBytes,
                         [&](SlotAt from, SlotAt to, uint64_t moved) {
                           std::memmove(memory.base + KvSlot{to, KvFormat::kQ8}.offset(),
                                        memory.base + KvSlot{from, KvFormat::kQ8}.offset(), moved);
                         });
  RecordGauges();
}

}  // namespace withy::context_store
