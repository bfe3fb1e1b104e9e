#include "serving/session/chunk_headers.h"

#include <cstring>

#include "base/crc32c.h"

namespace withy::serving {
namespace {

engine::KvBlockHeader ReadHeader(const std::byte* block) {
  engine::KvBlockHeader header;
  std::memcpy(&header, block, sizeof(header));
  return header;
}

uint32_t PayloadChecksum(const std::byte* block, size_t block_bytes) {
  return Crc32c(
      0, {block + sizeof(engine::KvBlockHeader), block_bytes - sizeof(engine::KvBlockHeader)});
}

}  // namespace

bool HeadersMatch(const Arena& arena, const engine::KvGeometry& geometry,
                  const ResidentChunk& chunk) {
  const engine::KvSlot slot = chunk.where.slot;
  if (!arena.Holds(geometry, slot)) return false;
  for (int layer = 0; layer < geometry.layers; ++layer) {
    const engine::KvBlockName name = slot.Block(geometry, layer);
    if (!name.exists()) continue;  // its window hides the chunk
    std::byte* block = arena.At(name);
    engine::KvBlockHeader header = ReadHeader(block);
    if (header.layer != static_cast<uint32_t>(layer) || header.filled != chunk.name.tokens ||
        header.format != name.format ||
        std::memcmp(header.identity, chunk.name.identity.data(), sizeof(header.identity)) != 0) {
      return false;
    }
    if (header.epoch == arena.epoch()) continue;
    if (header.checksum != PayloadChecksum(block, geometry.BlockBytes(slot.format))) return false;
    header.epoch = arena.epoch();
    std::memcpy(block, &header, sizeof(header));
  }
  return true;
}

engine::KvBlockHeader MakeHeader(const ChunkName& name, int32_t layer, uint64_t epoch,
                                 const std::byte* block, size_t block_bytes) {
  engine::KvBlockHeader header = {};
  header.epoch = epoch;
  std::memcpy(header.identity, name.identity.data(), sizeof(header.identity));
  header.layer = static_cast<uint32_t>(layer);
  header.checksum = PayloadChecksum(block, block_bytes);
  header.level = static_cast<uint8_t>(name.level_percent);
  header.format = engine::KvFormat::kQ8;
  header.filled = static_cast<uint8_t>(name.tokens);
  return header;
}

}  // namespace withy::serving
