// The KV block: K and V of all KV heads for one layer of one chunk of 16 tokens, at 8 bits. It lies
// in the shared arena, is written token by token, and is read in place by attention. Neighbours:
// cpu/ writes and reads it, context_store/ owns its header and memory.
//
// Layout: a header of 64 bytes, then for each KV head (so that a thread reads one contiguous range)
//   K scales f32 [16] | K u8 (q + 128) [head_dim / 4][16 tokens][4]
//   | V scales f32 [16] | V s8 [4 token quads][head_dim][4 tokens]
#pragma once

#include <cstddef>
#include <cstdint>

namespace withy::engine {

inline constexpr int kChunkTokens = 16;

enum class KvFormat : uint8_t { kEmpty = 0, kQ8 = 1, kQ4 = 2, kQ2 = 3 };

// First 64 bytes of a block. Only the store and the worker that holds the lease touch it; kernels
// never do.
struct KvBlockHeader {
  uint64_t epoch;        // arena epoch at which the block was claimed
  uint8_t identity[32];  // chunk identity (hash of previous identity, tokens, model, LoRA, level,
                         // format)
  uint32_t layer;
  uint32_t checksum;  // crc32c of the payload once the chunk is committed
  uint8_t level;      // model level that computed it, in per cent
  KvFormat format;
  uint8_t filled;  // tokens written, 0..16
  uint8_t reserved[13];
};
static_assert(sizeof(KvBlockHeader) == 64);

// Shape of a model's KV. head_dim is a multiple of 16, at most 256.
struct KvGeometry {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;

  // Bytes of K and V of one KV head.
  size_t HeadBytes() const {
    return 2 * kChunkTokens * (sizeof(float) + static_cast<size_t>(head_dim));
  }
  size_t KScaleOffset(int head) const {
    return sizeof(KvBlockHeader) + HeadBytes() * static_cast<size_t>(head);
  }
  size_t KOffset(int head) const { return KScaleOffset(head) + sizeof(float) * kChunkTokens; }
  size_t VScaleOffset(int head) const { return KScaleOffset(head) + HeadBytes() / 2; }
  size_t VOffset(int head) const { return VScaleOffset(head) + sizeof(float) * kChunkTokens; }
  // Bytes of a block (one layer of one chunk) and of a chunk (all layers); multiples of 64.
  size_t BlockBytes() const { return KScaleOffset(kv_heads); }
  size_t ChunkBytes() const { return BlockBytes() * static_cast<size_t>(layers); }

  bool operator==(const KvGeometry&) const = default;
};

// Copies K and V of one token from (src, src_slot) to (dst, dst_slot); slots are 0..15. Leaves the
// headers unchanged. Used to move accepted tree rows into place and to assemble the tail of a tree
// row (cpu/attention.h).
void CopyToken(const KvGeometry& g, const std::byte* src, int src_slot, std::byte* dst,
               int dst_slot);

// Writes the dequantised token in `slot` to k[kv_heads * head_dim] and v[kv_heads * head_dim].
void ReadToken(const KvGeometry& g, const std::byte* block, int slot, float* k, float* v);

}  // namespace withy::engine
