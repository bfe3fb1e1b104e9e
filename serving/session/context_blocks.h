// The blocks of one call's context, by chunk: where they are in the arena, and the attention that
// they got. Neighbours: context_kv.h says which chunks there are, chunk_headers.h has the headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv/slot.h"
#include "engine/model/model.h"
#include "serving/session/chunk_identity.h"
#include "serving/session/lease.h"

namespace withy::serving {

// Not thread-safe. Chunks are numbered from 0 on, without gaps.
class ContextBlocks {
 public:
  ContextBlocks(const engine::KvGeometry& geometry, std::shared_ptr<const Arena> arena)
      : geometry_(geometry), arena_(std::move(arena)) {}

  const engine::KvGeometry& geometry() const { return geometry_; }
  const Arena& arena() const { return *arena_; }
  int32_t chunks() const { return static_cast<int32_t>(density_.size()); }
  int32_t slots() const {
    return chunks() * engine::kChunkTokens;
  }  // tokens that there is room for

  // Whether a chunk of 8 bits, which can be written, may lie there.
  bool MayWrite(engine::KvSlot slot) const {
    return slot.format == engine::KvFormat::kQ8 && arena_->Holds(geometry_, slot);
  }
  void Add(engine::KvSlot slot);
  // The chunk lies there from now on; nothing of it is computed.
  void Replace(int32_t chunk, engine::KvSlot slot);
  // Keeps the first `chunks` (<= chunks()).
  void Truncate(int32_t chunks);
  // Whether the chunk has fewer bits than the working format.
  bool IsCompressed(size_t chunk) const;
  // By chunk: whether it lacks the blocks of layers with a window.
  const std::vector<bool>& lacks() const { return lacks_; }

  // Valid until the next chunks are added.
  engine::ContextView View(int32_t committed_tokens) {
    return {.memory = arena_->memory(),
            .blocks = blocks_,
            .committed_tokens = committed_tokens,
            .density = density_,
            .chunk_versions = versions_};
  }
  // The attention that rows gave to the chunk: through View().density, and by AddDensity.
  float density(size_t chunk) const { return density_[chunk]; }
  // Adds the attention that a row outside View().density gave to chunks, [chunks at most].
  void AddDensity(std::span<const float> row);
  // Copies K and V of the token in one slot to another one, in all layers.
  void CopySlot(int32_t from_slot, int32_t to_slot);
  // Writes the headers of the chunk's blocks, which were written in full.
  void Stamp(const ChunkName& name, size_t chunk) const;

 private:
  std::byte* BlockOf(int32_t chunk, int32_t layer) const;

  const engine::KvGeometry geometry_;
  const std::shared_ptr<const Arena> arena_;  // shared: a step may use it after a detach
  std::vector<engine::KvBlockName> blocks_;   // [chunk * layers + layer]
  std::vector<bool> lacks_;                   // by chunk
  std::vector<float> density_;                // by chunk, as ContextView::density
  std::vector<uint64_t> versions_;            // by chunk, as ContextView::chunk_versions
};

}  // namespace withy::serving
