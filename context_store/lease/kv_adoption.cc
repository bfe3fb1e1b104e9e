#include "context_store/lease/kv_adoption.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace withy::context_store {

// Gives the chunk its slot, unless that overlaps another one. A context that was adopted before may
// have the same slot.
bool KvAdoption::AdoptSlot(const KvContext& context, const KeptChunk& kept, ContextChunk* chunk) {
  const uint64_t bytes = kv_.geometry.ChunkBytes(kept.slot.format);
  if (kv_.pool.ClaimAt(kept.slot.units, bytes, kStoresOwn)) {
    kv_.pool.Keep(kept.slot.units);
    chunk->slot = kept.slot;
    return true;
  }
  const std::vector<std::string> identity = {kept.identity.identity};
  ContextChunk* equal = kv_.FindEqual(context, kept.chunk, identity).front();
  if (equal == nullptr || equal->slot != kept.slot) return false;
  kv_.Join(chunk, equal);
  return true;
}

uint32_t KvAdoption::Adopt(std::string_view context_id, const std::vector<KeptChunk>& kept,
                           std::vector<ContextChunk> stored, std::string_view app_id) {
  const std::string id(context_id);
  KvContext& context = kv_.FindOrAdd(context_id, app_id);
  if (!context.idle() || !context.kv.chunks.empty()) {
    for (const ContextChunk& chunk : stored) {
      if (chunk.stored != 0) kv_.copies.GiveUp(chunk.stored);
    }
    kv_.EraseIfEmpty(id);
    return 0;
  }
  std::vector<ContextChunk>& chunks = context.kv.chunks = std::move(stored);
  for (const KeptChunk& one : kept) {
    constexpr uint32_t kMostChunks = 1 << 20;
    if (one.chunk >= kMostChunks) continue;
    if (chunks.size() <= one.chunk) chunks.resize(one.chunk + 1);
    ContextChunk& chunk = chunks[one.chunk];
    // Described twice: the process was killed in between.
    if (chunk.slot.has_value() || !AdoptSlot(context, one, &chunk)) continue;
    // What is in the arena is newer than the index on disk.
    if (chunk.stored != 0 && chunk.identity.identity != one.identity.identity) {
      GiveUpCopy(&chunk, &context.kv);
    }
    chunk.identity = one.identity;
  }
  size_t keep = 0;
  while (keep < chunks.size() && (chunks[keep].slot.has_value() || chunks[keep].stored != 0)) {
    if (chunks[keep++].identity.tokens < kChunkTokens) break;
  }
  Truncate(keep, &context.kv, &kv_.pool);
  kv_.Collect(&context);
  kv_.Describe(id);
  context.last_used = ++kv_.uses;
  const auto resident = std::count_if(chunks.begin(), chunks.end(), [](const ContextChunk& chunk) {
    return chunk.slot.has_value();
  });
  kv_.EraseIfEmpty(id);
  return static_cast<uint32_t>(resident);
}

void KvAdoption::End() {
  if (kv_.directory == nullptr) return;
  for (const KeptChunk& chunk : kv_.directory->Chunks()) {
    const auto context = kv_.contexts.find(chunk.context_id);
    const bool adopted = context != kv_.contexts.end() &&
                         chunk.chunk < context->second.kv.chunks.size() &&
                         context->second.kv.chunks[chunk.chunk].slot == chunk.slot;
    if (!adopted) kv_.directory->Remove(chunk.slot.units, chunk.context_id);
  }
}

}  // namespace withy::context_store
