#include "context_store/arena/hidden_kv.h"

#include "policy/kv/kv_window.h"

namespace withy::context_store {

bool IsHidden(const ArenaKv& kv, const KvContext& context, uint32_t number) {
  const std::vector<ContextChunk>& chunks = context.kv.chunks;
  if (chunks.empty()) return false;
  const auto full = static_cast<uint32_t>(chunks.size() - 1) * uint32_t{kChunkTokens};
  return number <
         policy::HiddenChunks(full + chunks.back().identity.tokens, kv.geometry.window_reach);
}

bool MayLack(const ArenaKv& kv, const KvContext& context, uint32_t number) {
  if (kv.compresses_ahead || !IsHidden(kv, context, number)) return false;
  const ContextChunk& chunk = context.kv.chunks[number];
  return !(chunk.shared && kv.pool.at(chunk.slot->units).contexts > 1) &&
         !kv.copies.shared().contains(chunk.stored) &&
         !kv.public_chunks.contains(chunk.identity.identity);
}

KvFormat LoadFormat(const ArenaKv& kv, const KvContext& context, uint32_t number) {
  const KvFormat stored = context.kv.chunks[number].stored_format;
  return stored == KvFormat::kQ8 && MayLack(kv, context, number) ? KvFormat::kQ8Global : stored;
}

std::vector<bool> Lacking(const ArenaKv& kv, const KvContext& context) {
  std::vector<bool> lacks;
  if (kv.geometry.window_reach == 0) return lacks;
  for (uint32_t i = 0; i < context.kv.chunks.size(); ++i) {
    const ContextChunk& chunk = context.kv.chunks[i];
    const bool read = !chunk.slot.has_value() && chunk.stored != 0;
    lacks.push_back((chunk.slot.has_value() && LacksBlocks(chunk.slot->format)) ||
                    (read && LacksBlocks(LoadFormat(kv, context, i))));
  }
  return lacks;
}

uint64_t BytesToLoad(const ArenaKv& kv, const std::string& context_id) {
  const auto found = kv.contexts.find(context_id);
  if (found == kv.contexts.end()) return 0;
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < found->second.kv.chunks.size(); ++i) {
    if (found->second.kv.chunks[i].slot.has_value()) continue;
    bytes += kv.geometry.ChunkBytes(LoadFormat(kv, found->second, i));
  }
  return bytes;
}

void GiveUpLackingCopies(const ArenaKv& kv, KvContext* context) {
  for (uint32_t i = 0; i < context->kv.chunks.size(); ++i) {
    ContextChunk& chunk = context->kv.chunks[i];
    const bool lacks = chunk.stored != 0 && LacksBlocks(chunk.stored_format) &&
                       chunk.slot.has_value() && !LacksBlocks(chunk.slot->format);
    if (!lacks || IsHidden(kv, *context, i)) continue;
    GiveUpCopy(&chunk, &context->kv);
    chunk.was_stored = true;
  }
}

void KeepUsable(ArenaKv* kv, KvContext* context, size_t keep_chunks) {
  Truncate(keep_chunks, &context->kv, &kv->pool);
  const std::vector<bool> lacks = Lacking(*kv, *context);
  const auto chunks = static_cast<uint32_t>(context->kv.chunks.size());
  Truncate(policy::ContinuableChunks(lacks, chunks, kv->geometry.window_reach), &context->kv,
           &kv->pool);
}

}  // namespace withy::context_store
