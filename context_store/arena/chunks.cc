#include "context_store/arena/chunks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace withy::context_store {
namespace {

constexpr uint32_t kMostLayers = 4096;
constexpr uint32_t kMostHeads = 4096;
constexpr uint32_t kMostHeadDim = 256;
constexpr uint32_t kHeadDimStep = 16;

void Drop(ContextChunk* chunk, ContextChunks* context, SlotPool* pool) {
  LeaveSlot(chunk, context, pool);
  GiveUpCopy(chunk, context);
}

}  // namespace

absl::Status CheckGeometry(const Geometry& g, uint64_t arena_bytes) {
  if (g.model_id.size() != kIdentityBytes || g.layers == 0 || g.layers > kMostLayers ||
      g.kv_heads == 0 || g.kv_heads > kMostHeads || g.head_dim == 0 || g.head_dim > kMostHeadDim ||
      g.head_dim % kHeadDimStep != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "geometry: a model_id of 32 bytes (has ", g.model_id.size(), "), layers (", g.layers,
        ") and kv_heads (", g.kv_heads, ") of 1 to ", kMostHeads, " and a head_dim (", g.head_dim,
        ") that is a multiple of ", kHeadDimStep, " up to ", kMostHeadDim, " are needed"));
  }
  const int windowed = g.windowed.CountBelow(engine::KvLayerSet::kMost);
  if ((g.window_reach == 0) != (windowed == 0) || windowed >= static_cast<int>(g.layers) ||
      windowed != g.windowed.CountBelow(static_cast<int>(g.layers))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "geometry: window_reach ", g.window_reach, " with ", windowed, " windowed_layers of ",
        g.layers, " layers: both or neither must be set, and not for all layers"));
  }
  if (g.block_bytes != g.kv().BlockBytes(KvFormat::kQ8)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "geometry: the worker lays out a KV block in ", g.block_bytes, " bytes, this store in ",
        g.kv().BlockBytes(KvFormat::kQ8), ": use both from one build"));
  }
  if (arena_bytes < g.ChunkBytes(KvFormat::kQ8)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "geometry: a chunk of ", g.ChunkBytes(KvFormat::kQ8), " bytes does not fit the arena of ",
        arena_bytes, " bytes: raise store.arena_bytes"));
  }
  return absl::OkStatus();
}

uint32_t HeldPrefix(const ClaimedChunks& claimed, const ContextChunks& context) {
  uint32_t chunk = 0;
  while ((chunk < context.chunks.size() && context.chunks[chunk].slot.has_value()) ||
         claimed.contains(chunk)) {
    ++chunk;
  }
  return chunk;
}

uint32_t NextChunk(const ClaimedChunks& claimed, const ContextChunks& context) {
  const uint32_t held = HeldPrefix(claimed, context);
  return claimed.empty() ? held : std::max(held, claimed.rbegin()->first + 1);
}

absl::Status CheckCommit(const ClaimedChunks& claimed, const ContextChunks& context,
                         const std::vector<ChunkIdentity>& chunks) {
  for (size_t i = 0; i < chunks.size(); ++i) {
    const ChunkIdentity& chunk = chunks[i];
    const bool last = i + 1 == chunks.size();
    if (chunk.identity.size() != kIdentityBytes || chunk.tokens == 0 ||
        chunk.tokens > kChunkTokens || (!last && chunk.tokens != kChunkTokens) ||
        chunk.model_level_percent > 100) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit of chunk ", i, ": identity of ", chunk.identity.size(), " bytes, ",
                       chunk.tokens, " tokens, level ", chunk.model_level_percent,
                       "; must be 32, 16 (1 to 16 in the last chunk), at most 100"));
    }
    if (claimed.contains(static_cast<uint32_t>(i))) continue;
    if (i >= context.chunks.size() || !context.chunks[i].slot.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit of chunk ", i, ", which is neither resident nor claimed"));
    }
    const ChunkIdentity& old = context.chunks[i].identity;
    if (old.tokens == kChunkTokens && old.identity != chunk.identity) {
      return absl::InvalidArgumentError(absl::StrCat(
          "commit of chunk ", i, ": its identity changed, but it was full and not claimed again"));
    }
  }
  return absl::OkStatus();
}

void GiveUpCopy(ContextChunk* chunk, ContextChunks* context) {
  if (chunk->stored != 0) context->given_up.push_back(std::exchange(chunk->stored, 0));
}

void LeaveSlot(ContextChunk* chunk, ContextChunks* context, SlotPool* pool) {
  if (!chunk->slot.has_value()) return;
  const SlotAt slot = chunk->slot->units;
  if (chunk->shared && pool->at(slot).contexts > 1) context->left.push_back(slot);
  pool->Free(slot);
  chunk->slot.reset();
  chunk->loading = chunk->shared = false;
}

bool Writable(const ContextChunk& chunk, const SlotPool& pool) {
  return chunk.slot.has_value() && chunk.slot->format == KvFormat::kQ8 && !chunk.loading &&
         !(chunk.shared && pool.at(chunk.slot->units).contexts > 1);
}

void Truncate(size_t keep_chunks, ContextChunks* context, SlotPool* pool) {
  while (context->chunks.size() > keep_chunks) {
    Drop(&context->chunks.back(), context, pool);
    context->chunks.pop_back();
  }
}

void MoveToLease(uint32_t first, uint64_t owner, ContextChunks* context, ClaimedChunks* claimed,
                 SlotPool* pool) {
  while (context->chunks.size() > first) {
    ContextChunk& chunk = context->chunks.back();
    const auto number = static_cast<uint32_t>(context->chunks.size() - 1);
    if (Writable(chunk, *pool) && !claimed->contains(number)) {
      pool->Take(chunk.slot->units, owner);
      claimed->emplace(number, chunk.slot->units);
      chunk.slot.reset();
    }
    Drop(&chunk, context, pool);
    context->chunks.pop_back();
  }
}

void KeepCommitted(std::vector<ChunkIdentity> commit, ContextChunks* context,
                   ClaimedChunks* claimed, SlotPool* pool) {
  for (uint32_t i = 0; i < commit.size(); ++i) {
    if (i == context->chunks.size()) context->chunks.emplace_back();
    ContextChunk& chunk = context->chunks[i];
    if (auto slot = claimed->extract(i)) {
      LeaveSlot(&chunk, context, pool);
      pool->Keep(slot.mapped());
      chunk.slot = KvSlot{slot.mapped(), KvFormat::kQ8};
    }
    if (chunk.stored != 0 && chunk.identity.identity != commit[i].identity) {
      GiveUpCopy(&chunk, context);
      chunk.was_stored = true;
    }
    chunk.identity = std::move(commit[i]);
  }
  Truncate(commit.size(), context, pool);
}

void EndLoading(ContextChunks* context, SlotPool* pool) {
  for (ContextChunk& chunk : context->chunks) {
    if (chunk.loading) LeaveSlot(&chunk, context, pool);
  }
  size_t keep = context->chunks.size();
  while (keep > 0 && context->chunks[keep - 1].nowhere()) --keep;
  Truncate(keep, context, pool);
}

void FreeClaimed(ClaimedChunks* claimed, SlotPool* pool) {
  for (const auto& [chunk, slot] : *claimed) pool->Free(slot);
  claimed->clear();
}

}  // namespace withy::context_store
