// The place of a chunk in KV memory: its blocks, one for each layer that it has, one after the
// other, all of one format. Neighbours: block.h defines a block's bytes, memory.h names single
// blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kv/block.h"
#include "engine/kv/memory.h"

namespace withy::engine {

struct KvSlot {
  uint32_t units = KvBlockName::kNone;  // offset of the first block, in units of 64 bytes
  KvFormat format = KvFormat::kQ8;

  // Of a layer that the chunk does not have: a name that does not exist.
  KvBlockName Block(const KvGeometry& geometry, int layer) const {
    if (!geometry.HasBlock(format, layer)) return {KvBlockName::kNone, BlockFormat(format)};
    const size_t step = geometry.BlockBytes(format) / KvBlockName::kUnitBytes;
    const auto before = static_cast<size_t>(geometry.BlocksBefore(format, layer));
    return {units + static_cast<uint32_t>(step * before), BlockFormat(format)};
  }
  size_t offset() const { return size_t{units} * KvBlockName::kUnitBytes; }

  friend bool operator==(const KvSlot&, const KvSlot&) = default;
};

}  // namespace withy::engine
