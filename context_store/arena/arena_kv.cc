#include "context_store/arena/arena_kv.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "context_store/arena/hidden_kv.h"

namespace withy::context_store {

const KvContext* ArenaKv::FindIdle(std::string_view context_id) const {
  const auto found = contexts.find(std::string(context_id));
  return found == contexts.end() || !found->second.idle() ? nullptr : &found->second;
}

KvContext* ArenaKv::FindIdle(std::string_view context_id) {
  return const_cast<KvContext*>(std::as_const(*this).FindIdle(context_id));
}

std::vector<ContextChunk> ArenaKv::ChunksOf(std::string_view context_id) const {
  const auto found = contexts.find(std::string(context_id));
  if (found == contexts.end()) return {};
  std::vector<ContextChunk> chunks = found->second.kv.chunks;
  for (ContextChunk& chunk : chunks) {
    chunk.shared = chunk.shared && pool.at(chunk.slot->units).contexts > 1;
    chunk.indexed = copies.Indexed(chunk.stored);
  }
  return chunks;
}

ContextKv ArenaKv::KvOf(std::string_view context_id) const {
  ContextKv kv;
  for (const ContextChunk& chunk : ChunksOf(context_id)) {
    if (chunk.slot.has_value()) kv.resident_bytes += geometry.ChunkBytes(chunk.slot->format);
    if (chunk.indexed) kv.stored_bytes += geometry.ChunkBytes(chunk.stored_format);
    if (chunk.nowhere()) continue;
    kv.tokens += chunk.identity.tokens;
    const KvFormat used = chunk.slot.has_value() ? chunk.slot->format : chunk.stored_format;
    if (HasFewerBits(used, KvFormat::kQ8)) kv.compressed_tokens += chunk.identity.tokens;
  }
  return kv;
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

KvContext& ArenaKv::FindOrAdd(std::string_view context_id, std::string_view app_id) {
  KvContext& context = contexts[std::string(context_id)];
  if (context.id.empty()) context.id = context_id;
  if (!app_id.empty()) context.app_id = app_id;
  return context;
}

BytesByFormat ArenaKv::Bytes() const {
  BytesByFormat bytes;
  std::unordered_set<SlotAt> shared;
  std::unordered_set<StoredCopy> counted;
  for (const auto& [id, context] : contexts) {
    for (const ContextChunk& chunk : context.kv.chunks) {
      if (chunk.slot.has_value() && (!chunk.shared || shared.insert(chunk.slot->units).second)) {
        bytes.resident[static_cast<size_t>(chunk.slot->format)] +=
            geometry.ChunkBytes(chunk.slot->format);
      }
      if (chunk.stored != 0 &&
          (!copies.shared().contains(chunk.stored) || counted.insert(chunk.stored).second)) {
        bytes.stored[static_cast<size_t>(chunk.stored_format)] +=
            geometry.ChunkBytes(chunk.stored_format);
      }
    }
  }
  return bytes;
}

void ArenaKv::Collect(KvContext* context) {
  for (const StoredCopy copy : std::exchange(context->kv.given_up, {})) copies.GiveUp(copy);
  if (directory != nullptr) {
    for (const SlotAt slot : context->kv.left) directory->Remove(slot, context->id);
  }
  context->kv.left.clear();
}

bool ArenaKv::MayShare(const KvContext& one, const KvContext& other,
                       const std::string& identity) const {
  return (!one.app_id.empty() && one.app_id == other.app_id) || public_chunks.contains(identity);
}

template <class Visit>
void ArenaKv::ForEachEqual(const KvContext& context, uint32_t first,
                           std::span<const std::string> identities, Visit visit) {
  std::vector<KvContext*> alike;  // equal so far
  for (auto& [id, other] : contexts) {
    if (&other != &context && other.kv.chunks.size() > first) alike.push_back(&other);
  }
  for (size_t i = 0; i < identities.size() && !alike.empty(); ++i) {
    const size_t number = first + i;
    std::erase_if(alike, [&](const KvContext* other) {
      return number >= other->kv.chunks.size() ||
             other->kv.chunks[number].identity.identity != identities[i] ||
             !MayShare(context, *other, identities[i]);
    });
    for (KvContext* other : alike) {
      ContextChunk& chunk = other->kv.chunks[number];
      const bool usable = chunk.slot.has_value() && !chunk.loading &&
                          chunk.identity.tokens == static_cast<uint32_t>(kChunkTokens);
      if (usable) visit(i, other, &chunk);
    }
  }
}

std::vector<ContextChunk*> ArenaKv::FindEqual(const KvContext& context, uint32_t first,
                                              std::span<const std::string> identities) {
  std::vector<ContextChunk*> equal(identities.size(), nullptr);
  ForEachEqual(context, first, identities, [&](size_t i, KvContext*, ContextChunk* chunk) {
    if (equal[i] == nullptr || IsLess(equal[i]->slot->format, chunk->slot->format)) {
      equal[i] = chunk;
    }
  });
  return equal;
}

void ArenaKv::Join(ContextChunk* chunk, ContextChunk* equal) {
  pool.Share(equal->slot->units);
  chunk->slot = equal->slot;
  chunk->shared = equal->shared = true;
  copies.Borrow(chunk, *equal);
}

void ArenaKv::Share(ContextChunk* chunk, ContextChunk* equal) {
  Join(chunk, equal);
  ++shares;
}

uint32_t ArenaKv::ShareMissing(KvContext* context) {
  std::vector<ContextChunk>& chunks = context->kv.chunks;
  const auto missing = std::find_if(chunks.begin(), chunks.end(), [](const ContextChunk& chunk) {
    return !chunk.slot.has_value();
  });
  if (missing == chunks.end()) return 0;
  std::vector<std::string> identities;
  for (auto chunk = missing; chunk != chunks.end(); ++chunk) {
    identities.push_back(chunk->identity.identity);
  }
  const auto first = static_cast<uint32_t>(missing - chunks.begin());
  const std::vector<ContextChunk*> equal = FindEqual(*context, first, identities);
  uint32_t shared = 0;
  for (size_t i = 0; i < equal.size(); ++i) {
    ContextChunk& chunk = chunks[first + i];
    const bool full = chunk.identity.tokens == static_cast<uint32_t>(kChunkTokens);
    if (equal[i] == nullptr || chunk.slot.has_value() || !full) continue;
    // Its copy, or what recomputing gives.
    const KvFormat otherwise = chunk.stored != 0
                                   ? LoadFormat(*this, *context, first + static_cast<uint32_t>(i))
                                   : KvFormat::kQ8;
    const KvFormat instead = equal[i]->slot->format;
    if (!MayStandFor(*equal[i], otherwise) || (LacksBlocks(instead) && !LacksBlocks(otherwise))) {
      continue;
    }
    Share(&chunk, equal[i]);
    ++shared;
  }
  return shared;
}

uint32_t ArenaKv::Deduplicate(KvContext* context) {
  std::vector<ContextChunk>& chunks = context->kv.chunks;
  std::vector<std::string> identities;
  for (const ContextChunk& chunk : chunks) {
    if (chunk.identity.tokens != static_cast<uint32_t>(kChunkTokens)) break;
    identities.push_back(chunk.identity.identity);
  }
  const std::vector<ContextChunk*> equal = FindEqual(*context, 0, identities);
  uint32_t shared = 0;
  for (size_t i = 0; i < equal.size(); ++i) {
    ContextChunk& chunk = chunks[i];
    if (equal[i] == nullptr || !chunk.slot.has_value() || chunk.loading ||
        pool.at(chunk.slot->units).contexts > 1) {
      continue;
    }
    const bool same = chunk.slot->format == equal[i]->slot->format;
    const bool better = !compresses_ahead && IsLess(chunk.slot->format, equal[i]->slot->format);
    if (!same && !better) continue;
    LeaveSlot(&chunk, &context->kv, &pool);
    Share(&chunk, equal[i]);
    ++shared;
  }
  Collect(context);
  if (!compresses_ahead) shared += Restore(context, identities);
  return shared;
}

// What idle contexts have in fewer bits than the context, or without blocks that it has, becomes
// exact or whole again, and takes no room.
uint32_t ArenaKv::Restore(KvContext* context, std::span<const std::string> identities) {
  std::vector<std::tuple<KvContext*, ContextChunk*, ContextChunk*>> restored;
  ForEachEqual(*context, 0, identities, [&](size_t i, KvContext* other, ContextChunk* chunk) {
    ContextChunk& own = context->kv.chunks[i];
    if (!own.slot.has_value() || own.loading || !other->idle() ||
        !IsLess(chunk->slot->format, own.slot->format)) {
      return;
    }
    restored.emplace_back(other, chunk, &own);
  });
  for (const auto& [other, chunk, own] : restored) {
    LeaveSlot(chunk, &other->kv, &pool);
    Share(chunk, own);
    Collect(other);
    Describe(other->id);
  }
  return static_cast<uint32_t>(restored.size());
}

std::vector<KvContext*> ArenaKv::ContextsWith(SlotAt slot, uint32_t number) {
  std::vector<KvContext*> with;
  for (auto& [id, context] : contexts) {
    if (number >= context.kv.chunks.size()) continue;
    const std::optional<KvSlot>& has = context.kv.chunks[number].slot;
    if (has.has_value() && has->units == slot) with.push_back(&context);
  }
  return with;
}

std::vector<KvContext*> ArenaKv::ContextsWith(KvContext* context, uint32_t number) {
  const ContextChunk& chunk = context->kv.chunks[number];
  if (!chunk.shared) return {context};
  return ContextsWith(chunk.slot->units, number);
}

SharedUses ArenaKv::UsesOfShared(const KvContext* except) const {
  SharedUses by_slot;
  for (const auto& [id, context] : contexts) {
    for (const ContextChunk& chunk : context.kv.chunks) {
      if (!chunk.shared) continue;
      SharedUse& use = by_slot[chunk.slot->units];
      use.idle = use.idle && context.idle() && &context != except;
      use.copies = use.copies && chunk.HasExactCopy();
      if (use.latest == nullptr || context.last_used > use.latest->last_used) {
        use.latest = &context;
      }
    }
  }
  return by_slot;
}

void ArenaKv::Evict(KvContext* context, uint32_t number) {
  ContextChunk& chunk = context->kv.chunks[number];
  if (chunk.stored != 0) {
    LeaveSlot(&chunk, &context->kv, &pool);
  } else {
    KeepUsable(this, context, number);
  }
  Collect(context);
}

void ArenaKv::EraseIfEmpty(const std::string& context_id) {
  const auto found = contexts.find(context_id);
  if (found == contexts.end()) return;
  if (found->second.unused()) contexts.erase(found);
}

void ArenaKv::Describe(const std::string& context_id) {
  if (directory == nullptr) return;
  const auto found = contexts.find(context_id);
  if (found == contexts.end()) return;
  for (uint32_t i = 0; i < found->second.kv.chunks.size(); ++i) Describe(found->second, i);
}

void ArenaKv::Describe(const KvContext& context, uint32_t number) {
  const ContextChunk& chunk = context.kv.chunks[number];
  if (directory == nullptr || !chunk.slot.has_value()) return;
  directory->Put({context.id, number, *chunk.slot, chunk.identity});
}

}  // namespace withy::context_store
