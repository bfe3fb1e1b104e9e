// The headers of a chunk's blocks in the arena: what says whose KV a block holds, and whether it is
// whole. Neighbours: engine/kv/block.h has the layout, context_kv.h asks.
#pragma once

#include "engine/kv/block.h"
#include "serving/session/chunk_identity.h"
#include "serving/session/lease.h"

namespace withy::serving {

// Whether all blocks of the chunk are those that its name says. A block that this attachment to the
// store wrote is not checked again. An older one is checked byte by byte, and stamped so that the
// next call does not check it.
bool HeadersMatch(const Arena& arena, const engine::KvGeometry& geometry,
                  const ResidentChunk& chunk);

// The header of a block of 8 bits, of `block_bytes` bytes, that was written in full.
engine::KvBlockHeader MakeHeader(const ChunkName& name, int32_t layer, uint64_t epoch,
                                 const std::byte* block, size_t block_bytes);

}  // namespace withy::serving
