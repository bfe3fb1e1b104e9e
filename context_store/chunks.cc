#include "context_store/chunks.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace withy::context_store {

absl::Status CheckGeometry(const Geometry& g, uint64_t arena_bytes) {
  if (g.model_id.size() != kIdentityBytes || g.layers == 0 || g.kv_heads == 0 || g.head_dim == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "geometry: a model_id of 32 bytes (has ", g.model_id.size(), "), layers (", g.layers,
        "), kv_heads (", g.kv_heads, ") and head_dim (", g.head_dim, ") of at least 1 are needed"));
  }
  if (g.block_bytes == 0 || g.block_bytes % 64 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("geometry: block_bytes ", g.block_bytes, " is not a multiple of 64"));
  }
  if (arena_bytes / g.block_bytes < g.layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "geometry: a chunk of ", g.layers, " blocks of ", g.block_bytes,
        " bytes does not fit the arena of ", arena_bytes, " bytes: raise store.arena_bytes"));
  }
  return absl::OkStatus();
}

uint32_t NextChunk(const ClaimedChunks& claimed, const ResidentChunks& resident) {
  const auto count = static_cast<uint32_t>(resident.size());
  return claimed.empty() ? count : std::max(count, claimed.rbegin()->first + 1);
}

absl::Status CheckCommit(const ClaimedChunks& claimed, const ResidentChunks& resident,
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
    if (i >= resident.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("commit of chunk ", i, ", which is neither resident nor claimed"));
    }
    const ChunkIdentity& old = resident[i].identity;
    if (old.tokens == kChunkTokens && old.identity != chunk.identity) {
      return absl::InvalidArgumentError(absl::StrCat(
          "commit of chunk ", i, ": its identity changed, but it was full and not claimed again"));
    }
  }
  return absl::OkStatus();
}

void Truncate(uint32_t keep_chunks, ResidentChunks* resident, BlockPool* pool) {
  while (resident->size() > keep_chunks) {
    pool->Free(resident->back().where.blocks);
    resident->pop_back();
  }
}

void TakeOver(uint32_t first, uint64_t owner, ResidentChunks* resident, ClaimedChunks* claimed,
              BlockPool* pool) {
  while (resident->size() > first) {
    ChunkBlocks& where = resident->back().where;
    pool->Take(where.blocks, owner);
    (*claimed)[where.chunk] = std::move(where.blocks);
    resident->pop_back();
  }
}

void KeepCommitted(std::vector<ChunkIdentity> commit, ResidentChunks* resident,
                   ClaimedChunks* claimed, BlockPool* pool) {
  for (uint32_t i = 0; i < commit.size(); ++i) {
    if (auto blocks = claimed->extract(i)) {
      if (i < resident->size()) {
        pool->Free((*resident)[i].where.blocks);
      } else {
        resident->push_back({{i, {}}, {}});
      }
      pool->Keep(blocks.mapped());
      (*resident)[i].where.blocks = std::move(blocks.mapped());
    }
    (*resident)[i].identity = std::move(commit[i]);
  }
  Truncate(static_cast<uint32_t>(commit.size()), resident, pool);
}

void FreeClaimed(ClaimedChunks* claimed, BlockPool* pool) {
  for (const auto& [chunk, blocks] : *claimed) pool->Free(blocks);
  claimed->clear();
}

}  // namespace withy::context_store
