// The place of a whole chunk in KV memory: its blocks, one a layer, one after the other, all of one
// format. Neighbours: block.h defines a block's bytes, memory.h names single blocks.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kv/block.h"
#include "engine/kv/memory.h"

namespace withy::engine {

struct KvSlot {
  uint32_t units = KvBlockName::kNone;  // offset of the first block, in units of 64 bytes
  KvFormat format = KvFormat::kQ8;

  KvBlockName Block(const KvGeometry& geometry, int layer) const {
    const size_t step = geometry.BlockBytes(format) / KvBlockName::kUnitBytes;
    return {units + static_cast<uint32_t>(step * static_cast<size_t>(layer)), format};
  }
  size_t offset() const { return size_t{units} * KvBlockName::kUnitBytes; }

  friend bool operator==(const KvSlot&, const KvSlot&) = default;
};

}  // namespace withy::engine
