// Formats of a KV block and of a chunk, and their element sizes. Neighbours: block.h lays blocks
// out, memory.h names a block together with its format, slot.h has the place of a chunk.
#pragma once

#include <cstdint>

namespace withy::engine {

// How the K and V of a block are stored. All of them hold rotated numbers (rotation.h), with one
// scale for each token, head, and K or V. New tokens are written at 8 bits; the lower formats come
// from EncodeBlock(). Stored in files and messages: values stay as they are.
enum class KvFormat : uint8_t {
  kEmpty = 0,
  kQ8 = 1,
  kQ4 = 2,
  kQ2 = 3,
  kQ4Q2 = 4,  // K at 4 bits, V at 2 bits
  kF16 = 5,   // for comparisons; not for token trees, whose rows are copied at 8 bits
  // Of chunks only: kQ8 without the blocks of layers with a sliding window (KvGeometry::windowed).
  kQ8Global = 6,
};
inline constexpr int kKvFormats = 7;

// The format of the blocks of a chunk in this format.
[[gnu::always_inline]] constexpr KvFormat BlockFormat(KvFormat format) {
  return format == KvFormat::kQ8Global ? KvFormat::kQ8 : format;
}

// Bits of an element of K and of V, without scales. Always inlined, as what KvGeometry has.
[[gnu::always_inline]] constexpr int KBits(KvFormat format) {
  constexpr int kBits[kKvFormats] = {0, 8, 4, 2, 4, 16, 8};
  return kBits[static_cast<int>(format)];
}
[[gnu::always_inline]] constexpr int VBits(KvFormat format) {
  constexpr int kBits[kKvFormats] = {0, 8, 4, 2, 2, 16, 8};
  return kBits[static_cast<int>(format)];
}
// "q8", "q4", "q2", "q4q2", "f16", "q8global"; "empty".
constexpr const char* KvFormatName(KvFormat format) {
  constexpr const char* kNames[kKvFormats] = {"empty", "q8", "q4", "q2", "q4q2", "f16", "q8global"};
  return kNames[static_cast<int>(format)];
}

}  // namespace withy::engine
