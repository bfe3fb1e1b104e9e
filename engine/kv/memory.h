// Names of KV blocks, and the memory that holds them. Who allocates blocks and plans passes knows
// names; an executor turns them into addresses. Neighbours: block.h has a block's bytes,
// model/model.h's ContextView lists the blocks of a context.
#pragma once

#include <cstddef>
#include <cstdint>

namespace withy::engine {

// A block's place in its memory: distance from the memory's beginning in units of 64 bytes.
struct KvBlockName {
  static constexpr size_t kUnitBytes = 64;
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t units = kNone;

  bool exists() const { return units != kNone; }
  static KvBlockName AtOffset(size_t bytes) { return {static_cast<uint32_t>(bytes / kUnitBytes)}; }
  friend bool operator==(const KvBlockName&, const KvBlockName&) = default;
};

// A region that holds blocks: a view, 64-byte aligned, of at most 256 GiB. Equal regions are the
// same memory to an executor, which may prepare it once.
struct KvMemory {
  std::byte* base = nullptr;
  size_t bytes = 0;

  std::byte* At(KvBlockName block) const {
    return base + size_t{block.units} * KvBlockName::kUnitBytes;
  }
  friend bool operator==(const KvMemory&, const KvMemory&) = default;
};

}  // namespace withy::engine
