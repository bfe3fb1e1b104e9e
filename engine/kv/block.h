// The KV block: K and V of all KV heads for one layer of one chunk of 16 tokens. It lies in the
// shared arena, is written token by token at 8 bits, may be encoded at fewer bits later, and is
// read in place by attention. Neighbours: cpu/ writes and reads it, encode.h makes the lower
// formats, rotation.h defines the rotation of K and V, context_store/ owns its header and memory.
//
// Layout: a header of 64 bytes, then for each KV head (so that a thread reads one contiguous range)
//   kQ8:   K scales f32 [16] | K u8 (q + 128) [head_dim / 4][16 tokens][4]
//          | V scales f32 [16] | V s8 [4 token quads][head_dim][4 tokens]
//   lower: K scales u8 [16] | V scales u8 [16] | zeros [16] | K means 4 bits [head_dim]
//          | KvUnits | K | V
//   kF16:  K [head_dim][16 tokens] | V [16 tokens][head_dim]
// then zeros up to a multiple of 64 bytes.
// A field u of b bits stands for
//   K: k_mean * (mean - 8) + k_scale * scale * (u - zero)
//   V:                       v_scale * scale * (u - zero)
// with k_mean, k_scale and v_scale from KvUnits. A zero is (2^b - 1) / 2 + (z - 8) / 4. The low
// half of a token's byte is the z of K, the high half that of V. The means are those of the chunk's
// tokens. Keys have much in common, above all in the channels that RoPE hardly turns: without the
// means, their error is four times as large. Four bits suffice, since the fields take what a mean
// misses. The K means are [head_dim / 8][4]: the low half of byte i of a row belongs to dimension
// 8 * row + i, the high half to dimension 8 * row + 4 + i.
// K at 4 bits is [head_dim / 8][64 bytes]. The low half of byte 4 * token + i belongs to dimension
// 8 * row + i, the high half to dimension 8 * row + 4 + i: two rows of kQ8's K in one. At 2 bits,
// it is [head_dim / 16][64 bytes], with four rows in one, the lowest bits first.
// V at 4 bits is [head_dim / 16][2][16 dimensions][4 tokens]. The first 64 bytes hold token quads 0
// (low halves) and 1, the next quads 2 and 3. At 2 bits, 64 bytes hold all four quads, the lowest
// bits first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/kv/format.h"
#include "engine/kv/layer_set.h"

namespace withy::engine {

inline constexpr int kChunkTokens = 16;
inline constexpr int kMaxHeadDim = 256;
// Keys are read by runs of so many tokens, from the first run on of which a row sees a key.
inline constexpr int kAttentionRunTokens = 256;
inline constexpr int kKvZeroUnits = 4;  // units of a zero in one step
inline constexpr int kKvMeanZero = 8;   // the K mean that stands for 0

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

// Where the parts of one KV head lie, in bytes from the start of the block. What a format does not
// have is 0.
struct KvOffsets {
  size_t k_scale = 0;
  size_t v_scale = 0;
  size_t zero = 0;
  size_t k_mean = 0;
  size_t units = 0;
  size_t k = 0;
  size_t v = 0;
};

// The values of 1 in the scales and means of a head, in the lower formats.
struct KvUnits {
  float k_scale;
  float v_scale;
  float k_mean;
  float reserved;  // 0
};

// The zero that the stored z of fields of `bits` stands for, in kKvZeroUnits of a step.
[[gnu::always_inline]] constexpr int KvZero(int bits, int z) {
  return ((1 << bits) - 1) * kKvZeroUnits / 2 + z - 8;
}

// Shape of a model's KV. head_dim is a multiple of 16, at most kMaxHeadDim. Its functions are
// always inlined, since files for several instruction sets use them: a shared copy could contain
// instructions that the CPU lacks.
struct KvGeometry {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  // Layers with a sliding window, whose blocks chunks of kQ8Global lack. Never all layers.
  KvLayerSet windowed = {};

  // Bytes of K and V of one KV head.
  [[gnu::always_inline]] constexpr size_t HeadBytes(KvFormat format = KvFormat::kQ8) const {
    const size_t elements = KElementBytes(format) + VElementBytes(format);
    if (format == KvFormat::kF16) return elements;
    if (format == KvFormat::kQ8) return elements + 2 * kChunkTokens * sizeof(float);
    return elements + 3 * kChunkTokens + static_cast<size_t>(head_dim) / 2 + sizeof(KvUnits);
  }
  [[gnu::always_inline]] constexpr size_t HeadOffset(KvFormat format, int head) const {
    return sizeof(KvBlockHeader) + HeadBytes(format) * static_cast<size_t>(head);
  }
  [[gnu::always_inline]] constexpr KvOffsets Offsets(KvFormat format, int head) const {
    const size_t at = HeadOffset(format, head);
    if (format == KvFormat::kF16) return {.k = at, .v = at + KElementBytes(format)};
    if (format == KvFormat::kQ8) {
      const size_t k = at + kChunkTokens * sizeof(float);
      const size_t v_scale = k + KElementBytes(format);
      return {.k_scale = at, .v_scale = v_scale, .k = k, .v = v_scale + (k - at)};
    }
    const size_t k_mean = at + 3 * kChunkTokens;
    const size_t units = k_mean + static_cast<size_t>(head_dim) / 2;
    const size_t k = units + sizeof(KvUnits);
    return {.k_scale = at,
            .v_scale = at + kChunkTokens,
            .zero = at + 2 * kChunkTokens,
            .k_mean = k_mean,
            .units = units,
            .k = k,
            .v = k + KElementBytes(format)};
  }
  // Bytes of a block (one layer of one chunk) and of a chunk (the layers that it has); multiples of
  // 64.
  constexpr size_t BlockBytes(KvFormat format = KvFormat::kQ8) const {
    return (HeadOffset(BlockFormat(format), kv_heads) + 63) / 64 * 64;
  }
  constexpr size_t ChunkBytes(KvFormat format = KvFormat::kQ8) const {
    return BlockBytes(format) * static_cast<size_t>(BlocksOf(format));
  }
  // Whether a chunk of this format has a block of the layer; the number of its blocks; the number
  // of those before the layer's.
  constexpr bool HasBlock(KvFormat format, int layer) const {
    return format != KvFormat::kQ8Global || !windowed.Has(layer);
  }
  constexpr int BlocksOf(KvFormat format) const { return BlocksBefore(format, layers); }
  constexpr int BlocksBefore(KvFormat format, int layer) const {
    return format == KvFormat::kQ8Global ? layer - windowed.CountBelow(layer) : layer;
  }

  bool operator==(const KvGeometry&) const = default;

 private:
  [[gnu::always_inline]] constexpr size_t Elements() const {
    return static_cast<size_t>(head_dim) * kChunkTokens;
  }
  [[gnu::always_inline]] constexpr size_t KElementBytes(KvFormat format) const {
    return Elements() * static_cast<size_t>(KBits(format)) / 8;
  }
  [[gnu::always_inline]] constexpr size_t VElementBytes(KvFormat format) const {
    return Elements() * static_cast<size_t>(VBits(format)) / 8;
  }
};

// Copies K and V of one token from (src, src_slot) to (dst, dst_slot), both of kQ8; slots are
// 0..15. Leaves the headers unchanged. Used to move accepted tree rows into place and to assemble
// the tail of a tree row (cpu/attention.h).
void CopyToken(const KvGeometry& g, const std::byte* src, int src_slot, std::byte* dst,
               int dst_slot);

// Writes the token in `slot`, dequantised and rotated back, to k[kv_heads * head_dim] and
// v[kv_heads * head_dim].
void ReadToken(const KvGeometry& g, const std::byte* block, int slot, float* k, float* v,
               KvFormat format = KvFormat::kQ8);

}  // namespace withy::engine
