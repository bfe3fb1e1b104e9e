#include "context_store/arena_kv.h"

#include <utility>

namespace withy::context_store {

const KvContext* ArenaKv::FindIdle(std::string_view context_id) const {
  const auto found = contexts.find(std::string(context_id));
  return found == contexts.end() || !found->second.idle() ? nullptr : &found->second;
}

KvContext* ArenaKv::FindIdle(std::string_view context_id) {
  return const_cast<KvContext*>(std::as_const(*this).FindIdle(context_id));
}

ChunkPlaces ArenaKv::PlacesOf(std::string_view context_id) const {
  ChunkPlaces places;
  const auto found = contexts.find(std::string(context_id));
  if (found == contexts.end()) return places;
  for (const ContextChunk& chunk : found->second.kv.chunks) {
    ++(chunk.slot.has_value() ? places.resident : places.stored_only);
  }
  return places;
}

BytesByFormat ArenaKv::Bytes() const {
  BytesByFormat bytes;
  for (const auto& [id, context] : contexts) {
    for (const ContextChunk& chunk : context.kv.chunks) {
      if (chunk.slot.has_value()) {
        bytes.resident[static_cast<size_t>(chunk.slot->format)] +=
            geometry.ChunkBytes(chunk.slot->format);
      }
      if (chunk.stored != 0) {
        bytes.stored[static_cast<size_t>(chunk.stored_format)] +=
            geometry.ChunkBytes(chunk.stored_format);
      }
    }
  }
  return bytes;
}

void ArenaKv::Collect(KvContext* context) {
  std::vector<StoredCopy>& copies = context->kv.given_up;
  given_up.insert(given_up.end(), copies.begin(), copies.end());
  copies.clear();
}

void ArenaKv::EraseIfEmpty(const std::string& context_id) {
  const auto found = contexts.find(context_id);
  if (found == contexts.end()) return;
  const KvContext& context = found->second;
  if (context.idle() && context.waiting.empty() && context.kv.chunks.empty()) contexts.erase(found);
}

void ArenaKv::Describe(const std::string& context_id) {
  if (directory == nullptr) return;
  const auto found = contexts.find(context_id);
  if (found == contexts.end()) return;
  const std::vector<ContextChunk>& chunks = found->second.kv.chunks;
  for (uint32_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].slot.has_value()) {
      directory->Put({context_id, i, *chunks[i].slot, chunks[i].identity});
    }
  }
}

}  // namespace withy::context_store
