// Writes extents of KV (docs/formats-kv.md): gathers chunks by layer, seals the pieces and sends
// them to the disk. Neighbours: kv_segments.h says where, kv_writer.h has the requests in flight,
// kv_cipher.h seals.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "base/disk_io.h"
#include "base/huge_memory.h"
#include "context_store/disk/kv_cipher.h"
#include "context_store/disk/kv_index.h"

namespace withy::context_store {

// A segment is closed when the next extent would make it larger than this. Large, because a whole
// segment is written and deleted at once, which flash likes, and because an extent lies in one
// segment, and one layer of a large extent is one long read. Not larger, because the disk bound
// evicts whole segments and a segment that is partly dead keeps its space.
inline constexpr uint64_t kKvSegmentBytes = 16 << 20;

// Chunks of one context and one format to write. Layer l of chunk i lies at
// chunks[i] + blocks[l] * layer_stride and has block_bytes bytes.
struct KvExtentWrite {
  KvOwner owner = {};
  uint8_t format = 0;
  uint32_t layers = 0;
  uint32_t block_bytes = 0;  // a multiple of 16
  std::vector<Bytes32> identities = {};
  std::vector<const std::byte*> chunks = {};  // as many as identities
  std::vector<uint32_t> blocks = {};          // as many as layers; empty: layer l is block l
  size_t layer_stride = 0;                    // bytes, >= block_bytes
};

// How many chunks one extent may have: what fits a segment, at least 1.
uint32_t MaxChunksPerExtent(uint32_t layers, uint32_t block_bytes);

// Errors: INVALID_ARGUMENT naming the sizes (also: more chunks than MaxChunksPerExtent).
absl::Status CheckExtentWrite(const KvExtentWrite& write);

// Not thread-safe: one extent at a time.
class KvExtentWriter {
 public:
  // As KvSegmentsOptions.
  struct Limits {
    uint64_t bytes_per_second = 0;
    const absl::Notification* stop = nullptr;
  };
  // `queue` has a depth of at least KvWriter::kDepth, `memory` KvWriter::kMemoryBytes.
  KvExtentWriter(std::unique_ptr<DiskQueue> queue, HugeMemory memory, const Limits& limits);

  // Writes the blocks of `write`, which was checked, to the place of `extent` in `fd`. Errors:
  // RESOURCE_EXHAUSTED (disk full), CANCELLED (stop), others of write(2).
  absl::Status Write(const KvExtentWrite& write, const KvExtent& extent, int fd);
  // To the disk, since the start: with checks, padding and failed writes.
  uint64_t written_bytes() const { return written_bytes_; }

 private:
  const Limits limits_;
  HugeMemory memory_;
  std::unique_ptr<DiskQueue> queue_;  // borrows memory_
  uint64_t written_bytes_ = 0;
};

}  // namespace withy::context_store
