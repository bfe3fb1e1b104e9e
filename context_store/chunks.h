// KV chunks: their geometry, identity and blocks, and the moves of blocks between a context, which
// keeps resident chunks, and a lease, which claims chunks to write them. Pure functions over a
// BlockPool. Neighbour: lease_table.h decides which lease may do what.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "context_store/block_pool.h"

namespace withy::context_store {

inline constexpr uint32_t kChunkTokens = 16;
inline constexpr size_t kIdentityBytes = 32;

// KV dimensions of the model that a worker serves. Blocks of another geometry are useless to it.
struct Geometry {
  std::string model_id;  // 32 bytes
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t head_dim = 0;
  uint32_t block_bytes = 0;
  bool operator==(const Geometry&) const = default;
};

// Errors: INVALID_ARGUMENT (an invalid field, or not even one chunk fits `arena_bytes`).
absl::Status CheckGeometry(const Geometry& geometry, uint64_t arena_bytes);

struct ChunkIdentity {
  std::string identity;  // 32 bytes
  uint32_t tokens = 0;   // 1..16; only the last chunk may have fewer than 16
  uint32_t model_level_percent = 0;
};

struct ChunkBlocks {
  uint32_t chunk = 0;
  BlockIds blocks;  // one per layer
};

struct ResidentChunk {
  ChunkBlocks where;
  ChunkIdentity identity;
};

// A context's chunks in the arena: where.chunk == index.
using ResidentChunks = std::vector<ResidentChunk>;
// A lease's blocks, by chunk.
using ClaimedChunks = std::map<uint32_t, BlockIds>;

// The first chunk that neither the context nor the lease has.
uint32_t NextChunk(const ClaimedChunks& claimed, const ResidentChunks& resident);

// Checks the chunks to commit against what the context and the lease have. Errors: INVALID_ARGUMENT
// (an invalid identity, a gap, or a full chunk that changed without a claim).
absl::Status CheckCommit(const ClaimedChunks& claimed, const ResidentChunks& resident,
                         const std::vector<ChunkIdentity>& chunks);

// Frees all but the first `keep_chunks` chunks.
void Truncate(uint32_t keep_chunks, ResidentChunks* resident, BlockPool* pool);
// Moves the context's chunks from `first` on to the lease `owner`.
void TakeOver(uint32_t first, uint64_t owner, ResidentChunks* resident, ClaimedChunks* claimed,
              BlockPool* pool);
// Makes `commit` the context's chunks: replaces or adds those that are claimed, frees those beyond
// the commit. Other claims stay with the lease.
void KeepCommitted(std::vector<ChunkIdentity> commit, ResidentChunks* resident,
                   ClaimedChunks* claimed, BlockPool* pool);
// Frees all of a lease's blocks.
void FreeClaimed(ClaimedChunks* claimed, BlockPool* pool);

}  // namespace withy::context_store
