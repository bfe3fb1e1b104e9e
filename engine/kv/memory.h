// Names of KV blocks, and the memory that holds them. Code that allocates blocks or plans passes
// uses names; an executor turns them into addresses. Neighbours: block.h defines a block's bytes,
// ContextView in model/model.h lists a context's blocks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "engine/kv/format.h"

namespace withy::engine {

// A block's offset from the start of its memory, in units of 64 bytes, and its format.
struct KvBlockName {
  static constexpr size_t kUnitBytes = 64;
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t units = kNone;
  KvFormat format = KvFormat::kQ8;

  bool exists() const { return units != kNone; }
  static KvBlockName AtOffset(size_t bytes, KvFormat format = KvFormat::kQ8) {
    return {static_cast<uint32_t>(bytes / kUnitBytes), format};
  }
  friend bool operator==(const KvBlockName&, const KvBlockName&) = default;
};

// A number that this process has not given before.
inline uint64_t NewKvNumber() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// A view of memory that holds blocks: 64-byte aligned, at most 256 GiB.
struct KvMemory {
  std::byte* base = nullptr;
  size_t bytes = 0;
  // Not 0: a number that no other mapping of the process has had. An executor may prepare such
  // memory once; other memory may be unmapped when a pass is over, and other pages be at its
  // address.
  uint64_t mapping = 0;

  std::byte* At(KvBlockName block) const {
    return base + size_t{block.units} * KvBlockName::kUnitBytes;
  }
  friend bool operator==(const KvMemory&, const KvMemory&) = default;
};

}  // namespace withy::engine
