#include "serving/session/context_blocks.h"

#include <algorithm>
#include <cstring>

#include "serving/session/chunk_headers.h"

namespace withy::serving {

void ContextBlocks::Add(engine::KvSlot slot) {
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    blocks_.push_back(slot.Block(geometry_, layer));
  }
  lacks_.push_back(slot.format == engine::KvFormat::kQ8Global);
  density_.push_back(0);
  versions_.push_back(engine::NewKvNumber());
}

std::byte* ContextBlocks::BlockOf(int32_t chunk, int32_t layer) const {
  const size_t first = static_cast<size_t>(chunk) * static_cast<size_t>(geometry_.layers);
  return arena_->memory().At(blocks_[first + static_cast<size_t>(layer)]);
}

void ContextBlocks::CopySlot(int32_t from_slot, int32_t to_slot) {
  for (int32_t layer = 0; layer < geometry_.layers; ++layer) {
    engine::CopyToken(geometry_, BlockOf(from_slot / engine::kChunkTokens, layer),
                      from_slot % engine::kChunkTokens,
                      BlockOf(to_slot / engine::kChunkTokens, layer),
                      to_slot % engine::kChunkTokens);
  }
  versions_[static_cast<size_t>(to_slot / engine::kChunkTokens)] = engine::NewKvNumber();
}

void ContextBlocks::Replace(int32_t chunk, engine::KvSlot slot) {
  for (int layer = 0; layer < geometry_.layers; ++layer) {
    blocks_[static_cast<size_t>(chunk * geometry_.layers + layer)] = slot.Block(geometry_, layer);
  }
  lacks_[static_cast<size_t>(chunk)] = slot.format == engine::KvFormat::kQ8Global;
  versions_[static_cast<size_t>(chunk)] = engine::NewKvNumber();
}

void ContextBlocks::Truncate(int32_t chunks) {
  const auto left = static_cast<size_t>(chunks);
  blocks_.resize(left * static_cast<size_t>(geometry_.layers));
  lacks_.resize(left);
  density_.resize(left);
  versions_.resize(left);
}

bool ContextBlocks::IsCompressed(size_t chunk) const {
  const engine::KvFormat format = blocks_[chunk * static_cast<size_t>(geometry_.layers)].format;
  return engine::KBits(format) + engine::VBits(format) <
         engine::KBits(engine::KvFormat::kQ8) + engine::VBits(engine::KvFormat::kQ8);
}

void ContextBlocks::AddDensity(std::span<const float> row) {
  for (size_t i = 0; i < std::min(row.size(), density_.size()); ++i) density_[i] += row[i];
}

void ContextBlocks::Stamp(const ChunkName& name, size_t chunk) const {
  for (int32_t layer = 0; layer < geometry_.layers; ++layer) {
    std::byte* block = BlockOf(static_cast<int32_t>(chunk), layer);
    const engine::KvBlockHeader header = MakeHeader(name, layer, arena_->epoch(), block,
                                                    geometry_.BlockBytes(engine::KvFormat::kQ8));
    std::memcpy(block, &header, sizeof(header));
  }
}

}  // namespace withy::serving
