// What the index knows about a context's KV: which chunks it has, and where those on disk lie.
// Plain structs, the geometry of an extent, and the bytes of the index record (docs/formats-kv.md).
// Pure. Neighbours: kv_segments.h writes and reads the extents; the store keeps one record a
// context under KvIndexKey.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/disk_io.h"
#include "base/round_up.h"

namespace withy::context_store {

using Bytes32 = std::array<uint8_t, 32>;
// Precondition: 32 bytes.
Bytes32 ToBytes32(std::string_view bytes);

// Random bytes that make an extent's encryption key unique (kv_cipher.h).
using KvSalt = std::array<uint8_t, 16>;

enum class KvProtection : uint8_t { kChecksum = 0, kAes256Gcm = 1 };

// The data of an extent is cut into pieces of at most so many bytes, each followed by a check of
// kKvCheckBytes. Large enough
// that checks cost 0.02 % of the space and 2 % of the decryption's time, small enough to lie in a
// core's L2 cache between decryption and copy, and that few needless bytes are read for one chunk.
inline constexpr size_t kKvPieceBytes = 64 << 10;
// An AES-256-GCM tag, or four CRC32C sums.
inline constexpr size_t kKvCheckBytes = 16;

// Part of one layer's bytes of an extent.
struct KvPiece {
  uint32_t layer = 0;
  uint32_t index = 0;     // in the layer
  uint64_t offset = 0;    // of its data, in bytes from the start of the extent
  uint64_t in_layer = 0;  // of its data, in bytes from the start of the layer's data
  uint32_t bytes = 0;     // of its data, 1..kKvPieceBytes; the check follows
};

// Where the blocks of an extent lie: layer by layer; in a layer chunk by chunk, densely.
struct KvExtentLayout {
  uint32_t layers = 0;
  uint32_t chunks = 0;
  uint32_t block_bytes = 0;  // one layer of one chunk
  bool whole_blocks = true;  // KvExtent::whole_blocks

  // Blocks of a piece, where it has whole ones only; else 0.
  uint32_t BlocksPerPiece() const {
    return whole_blocks ? static_cast<uint32_t>(kKvPieceBytes / block_bytes) : 0;
  }
  uint64_t PieceBytes() const {
    return BlocksPerPiece() == 0 ? kKvPieceBytes : uint64_t{BlocksPerPiece()} * block_bytes;
  }
  uint64_t LayerDataBytes() const { return uint64_t{chunks} * block_bytes; }
  uint64_t DataBytes() const { return LayerDataBytes() * layers; }
  uint32_t PiecesPerLayer() const {
    return static_cast<uint32_t>((LayerDataBytes() + PieceBytes() - 1) / PieceBytes());
  }
  uint32_t Pieces() const { return PiecesPerLayer() * layers; }
  uint64_t LayerBytes() const { return LayerDataBytes() + PiecesPerLayer() * kKvCheckBytes; }
  // All bytes on disk: data, checks, and zeros up to a multiple of kDiskAlign.
  uint64_t DiskBytes() const { return RoundUp(LayerBytes() * layers, kDiskAlign); }
  // `number` counts through all layers: 0 .. Pieces() - 1, in the order on disk.
  KvPiece Piece(uint32_t number) const;
};

// Calls visit(chunk, in_block, in_piece, bytes) for each part of a block that lies in `piece`, in
// order: `bytes` bytes at offset `in_block` of the chunk's block, at offset `in_piece` of the
// piece.
template <class Visit>
void ForEachBlockPart(const KvPiece& piece, uint32_t block_bytes, Visit visit) {
  for (uint32_t at = 0; at < piece.bytes;) {
    const uint64_t position = piece.in_layer + at;
    const auto in_block = static_cast<uint32_t>(position % block_bytes);
    const uint32_t bytes = std::min(block_bytes - in_block, piece.bytes - at);
    visit(static_cast<size_t>(position / block_bytes), in_block, at, bytes);
    at += bytes;
  }
}

// What one write left in a segment: chunks of one format.
struct KvExtent {
  uint64_t id = 0;       // random; no two extents have the same
  uint64_t segment = 0;  // number of the file, 1..kMaxKvSegment
  uint64_t offset = 0;   // in the file, in bytes; a multiple of kDiskAlign
  uint8_t format = 0;    // engine::KvFormat
  KvProtection protection = KvProtection::kChecksum;
  uint32_t layers = 0;
  uint32_t block_bytes = 0;  // a multiple of 16
  // Where blocks are no larger than pieces, pieces end where blocks end: chunks from a multiple of
  // BlocksPerPiece() on are read without the bytes of others. False in extents of earlier builds.
  bool whole_blocks = true;
  KvSalt salt = {};
  std::vector<Bytes32> identities = {};  // of the chunk at each position, as written

  KvExtentLayout layout() const {
    return {layers, static_cast<uint32_t>(identities.size()), block_bytes, whole_blocks};
  }
  bool operator==(const KvExtent&) const = default;
};

inline constexpr uint32_t kKvNotStored = UINT32_MAX;

struct KvChunk {
  Bytes32 identity = {};
  uint8_t tokens = 0;         // 1..16
  uint8_t level_percent = 0;  // 1..100
  uint8_t format = 0;         // engine::KvFormat that the chunk is to have
  float density = 0;          // LLMS eq. 1; finite, >= 0
  // Where it is on disk: an element of KvContextIndex::extents and a position there.
  uint32_t extent = kKvNotStored;
  uint32_t position = 0;

  bool stored() const { return extent != kKvNotStored; }
  bool operator==(const KvChunk&) const = default;
};

struct KvContextIndex {
  Bytes32 model = {};           // id of the model that computed the KV
  std::vector<KvChunk> chunks;  // of the context, in order
  std::vector<KvExtent> extents;

  bool operator==(const KvContextIndex&) const = default;
};

// Limits of a valid index; beyond them a record is damaged.
inline constexpr uint32_t kMaxKvLayers = 1024;
inline constexpr uint32_t kMaxKvBlockBytes = 16 << 20;
inline constexpr uint32_t kMaxKvExtentChunks = 1 << 16;
inline constexpr uint64_t kMaxKvExtentBytes = 1 << 30;
inline constexpr uint64_t kMaxKvSegment = uint64_t{1} << 62;

inline constexpr std::string_view kKvIndexPrefix = "kvx/";
std::string KvIndexKey(std::string_view context_id);

// A payload for RecordBatch::Put. Precondition: a stored chunk has the identity of its position.
std::string EncodeKvIndex(const KvContextIndex& index);
// Checks every number, so that the result can be used without further checks. Errors: DATA_LOSS
// (names the field), UNIMPLEMENTED (version of a newer build). `index` is then unspecified.
absl::Status DecodeKvIndex(std::string_view payload, KvContextIndex* index);

// Number of stored chunks in each extent.
std::vector<uint32_t> LiveChunks(const KvContextIndex& index);

}  // namespace withy::context_store
