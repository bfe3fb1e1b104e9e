#include "context_store/disk/kv_index.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/status.h"
#include "context_store/invariant.h"

namespace withy::context_store {
namespace {

constexpr uint8_t kIndexVersion = 1;
constexpr size_t kExtentHeadBytes = 8 + 8 + 8 + 1 + 1 + 2 + 4 + 16 + 4;
// In the byte of an extent's protection: KvExtent::whole_blocks.
constexpr uint8_t kWholeBlocks = 2;
constexpr size_t kChunkHeadBytes = 1 + 1 + 1 + 4 + 4;

// Appends integers in little-endian order.
class IndexWriter {
 public:
  explicit IndexWriter(size_t reserve) { out_.reserve(reserve); }
  IndexWriter& Number(uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<char>(v >> (8 * i)));
    return *this;
  }
  template <size_t n>
  IndexWriter& Array(const std::array<uint8_t, n>& bytes) {
    out_.append(reinterpret_cast<const char*>(bytes.data()), n);
    return *this;
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

// Reads the output of IndexWriter. After the first field that does not fit, reads return zeros and
// ok() is false.
class IndexReader {
 public:
  explicit IndexReader(std::string_view in) : in_(in) {}
  bool ok() const { return ok_; }
  size_t left() const { return in_.size(); }

  template <class T>
  T Number() {
    uint64_t v = 0;
    if (!Has(sizeof(T))) return 0;
    for (size_t i = 0; i < sizeof(T); ++i) v |= uint64_t{static_cast<uint8_t>(in_[i])} << (8 * i);
    in_.remove_prefix(sizeof(T));
    return static_cast<T>(v);
  }
  template <size_t n>
  void Array(std::array<uint8_t, n>* bytes) {
    if (!Has(n)) return;
    std::memcpy(bytes->data(), in_.data(), n);
    in_.remove_prefix(n);
  }

 private:
  bool Has(size_t bytes) {
    if (in_.size() < bytes) ok_ = false;
    return ok_;
  }

  std::string_view in_;
  bool ok_ = true;
};

absl::Status Damaged(const char* what) {
  return absl::DataLossError(absl::StrCat("KV index is damaged: ", what));
}

absl::Status ReadExtent(IndexReader& in, KvExtent* extent) {
  extent->id = in.Number<uint64_t>();
  extent->segment = in.Number<uint64_t>();
  extent->offset = in.Number<uint64_t>();
  extent->format = in.Number<uint8_t>();
  const auto flags = in.Number<uint8_t>();
  const auto protection = static_cast<uint8_t>(flags & ~kWholeBlocks);
  extent->whole_blocks = (flags & kWholeBlocks) != 0;
  extent->layers = in.Number<uint16_t>();
  extent->block_bytes = in.Number<uint32_t>();
  in.Array(&extent->salt);
  const auto chunks = in.Number<uint32_t>();
  if (!in.ok() || chunks > in.left() / sizeof(Bytes32)) return Damaged("it ends in an extent");
  if (chunks == 0 || chunks > kMaxKvExtentChunks) return Damaged("number of chunks of an extent");
  if (extent->segment == 0 || extent->segment > kMaxKvSegment) {
    return Damaged("segment of an extent");
  }
  if (extent->offset % kDiskAlign != 0 || extent->offset > uint64_t{1} << 62) {
    return Damaged("offset of an extent");
  }
  if (protection > static_cast<uint8_t>(KvProtection::kAes256Gcm)) {
    return Damaged("protection of an extent");
  }
  extent->protection = static_cast<KvProtection>(protection);
  if (extent->layers == 0 || extent->layers > kMaxKvLayers) return Damaged("layers of an extent");
  if (extent->block_bytes == 0 || extent->block_bytes % 16 != 0 ||
      extent->block_bytes > kMaxKvBlockBytes) {
    return Damaged("block size of an extent");
  }
  if (KvExtentLayout{extent->layers, chunks, extent->block_bytes}.DataBytes() > kMaxKvExtentBytes) {
    return Damaged("size of an extent");
  }
  extent->identities.resize(chunks);
  for (Bytes32& identity : extent->identities) in.Array(&identity);
  return absl::OkStatus();
}

absl::Status ReadChunk(IndexReader& in, const std::vector<KvExtent>& extents, KvChunk* chunk) {
  chunk->tokens = in.Number<uint8_t>();
  chunk->level_percent = in.Number<uint8_t>();
  chunk->format = in.Number<uint8_t>();
  const auto density = in.Number<uint32_t>();
  std::memcpy(&chunk->density, &density, sizeof density);
  chunk->extent = in.Number<uint32_t>();
  if (chunk->stored()) {
    chunk->position = in.Number<uint32_t>();
  } else {
    in.Array(&chunk->identity);
  }
  if (!in.ok()) return Damaged("it ends in a chunk");
  if (chunk->tokens < 1 || chunk->tokens > 16) return Damaged("tokens of a chunk");
  if (chunk->level_percent < 1 || chunk->level_percent > 100) return Damaged("level of a chunk");
  if (!std::isfinite(chunk->density) || chunk->density < 0) return Damaged("density of a chunk");
  if (!chunk->stored()) return absl::OkStatus();
  if (chunk->extent >= extents.size()) return Damaged("extent of a chunk");
  const std::vector<Bytes32>& identities = extents[chunk->extent].identities;
  if (chunk->position >= identities.size()) return Damaged("position of a chunk");
  chunk->identity = identities[chunk->position];
  return absl::OkStatus();
}

}  // namespace

Bytes32 ToBytes32(std::string_view bytes) {
  Bytes32 array;
  Invariant(bytes.size() == array.size(), "an identity has 32 bytes");
  std::memcpy(array.data(), bytes.data(), array.size());
  return array;
}

KvPiece KvExtentLayout::Piece(uint32_t number) const {
  const uint32_t per_layer = PiecesPerLayer();
  KvPiece piece;
  piece.layer = number / per_layer;
  piece.index = number % per_layer;
  piece.in_layer = piece.index * PieceBytes();
  piece.offset = piece.layer * LayerBytes() + piece.index * (PieceBytes() + kKvCheckBytes);
  piece.bytes = static_cast<uint32_t>(std::min(PieceBytes(), LayerDataBytes() - piece.in_layer));
  return piece;
}

std::string KvIndexKey(std::string_view context_id) {
  return absl::StrCat(ToAbsl(kKvIndexPrefix), ToAbsl(context_id));
}

std::string EncodeKvIndex(const KvContextIndex& index) {
  size_t bytes = 1 + sizeof index.model + 8 + index.chunks.size() * (kChunkHeadBytes + 32);
  for (const KvExtent& extent : index.extents) {
    bytes += kExtentHeadBytes + extent.identities.size() * sizeof(Bytes32);
  }
  IndexWriter out(bytes);
  out.Number(kIndexVersion, 1).Array(index.model).Number(index.extents.size(), 4);
  for (const KvExtent& extent : index.extents) {
    out.Number(extent.id, 8).Number(extent.segment, 8).Number(extent.offset, 8);
    const auto protection = static_cast<uint8_t>(extent.protection);
    out.Number(extent.format, 1).Number(protection | (extent.whole_blocks ? kWholeBlocks : 0), 1);
    out.Number(extent.layers, 2).Number(extent.block_bytes, 4).Array(extent.salt);
    out.Number(extent.identities.size(), 4);
    for (const Bytes32& identity : extent.identities) out.Array(identity);
  }
  out.Number(index.chunks.size(), 4);
  for (const KvChunk& chunk : index.chunks) {
    uint32_t density = 0;
    std::memcpy(&density, &chunk.density, sizeof density);
    out.Number(chunk.tokens, 1).Number(chunk.level_percent, 1).Number(chunk.format, 1);
    out.Number(density, 4).Number(chunk.extent, 4);
    if (chunk.stored()) {
      Invariant(chunk.identity == index.extents.at(chunk.extent).identities.at(chunk.position),
                "a stored chunk has the identity of its place");
      out.Number(chunk.position, 4);
    } else {
      out.Array(chunk.identity);
    }
  }
  return out.Take();
}

absl::Status DecodeKvIndex(std::string_view payload, KvContextIndex* index) {
  IndexReader in(payload);
  const auto version = in.Number<uint8_t>();
  if (version == 0) return Damaged("version");
  if (version != kIndexVersion) {
    return absl::UnimplementedError(
        absl::StrCat("KV index has version ", static_cast<int>(version), ", this build reads ",
                     static_cast<int>(kIndexVersion), ": it was written by a newer withy"));
  }
  in.Array(&index->model);
  const auto extents = in.Number<uint32_t>();
  if (!in.ok() || extents > in.left() / kExtentHeadBytes) return Damaged("number of extents");
  index->extents.assign(extents, {});
  for (KvExtent& extent : index->extents) WITHY_RETURN_IF_ERROR(ReadExtent(in, &extent));
  const auto chunks = in.Number<uint32_t>();
  if (!in.ok() || chunks > in.left() / kChunkHeadBytes) return Damaged("number of chunks");
  index->chunks.assign(chunks, {});
  for (KvChunk& chunk : index->chunks) {
    WITHY_RETURN_IF_ERROR(ReadChunk(in, index->extents, &chunk));
  }
  return absl::OkStatus();
}

std::vector<uint32_t> LiveChunks(const KvContextIndex& index) {
  std::vector<uint32_t> live(index.extents.size(), 0);
  for (const KvChunk& chunk : index.chunks) {
    if (chunk.stored()) ++live[chunk.extent];
  }
  return live;
}

}  // namespace withy::context_store
