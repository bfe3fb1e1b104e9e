// The bytes of a packed file, which workers map instead of a GGUF. Little-endian; made by
// packer.cc, read by packed_file.cc.
//
//   magic (64 bytes) | tensor table | GGUF metadata (a GGUF file without tensors) | data |
//   checksums | trailer (one page)
//
// Every section begins on a multiple of 64, data on a page. The trailer comes last, so that the
// file is written in one pass and a truncated one is seen at once. Data holds tensors in table
// order: token embedding and output first, then layer after layer, each layer beginning on a page
// and every matrix too, in the layout of cpu/packed_matrix.h; the LoRA of the levels last. A
// level is a prefix of each matrix. Checksums are CRC32C of each 1 MiB of data. Row order: Q rows
// and O columns are rank-major when a KV head has three or more query heads (see QueryHeadOrder).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace withy::engine {

inline constexpr std::array<char, 8> kPackedMagic = {'W', 'I', 'T', 'H', 'Y', 'P', 'K', '\n'};
// Counts every change of these structures, of the matrix layout, or of what the packer does with
// values.
inline constexpr uint32_t kPackedVersion = 5;
inline constexpr uint64_t kPackedPage = 4096;
inline constexpr uint64_t kPackedChecksumBlock = 1 << 20;
inline constexpr uint64_t kPackedMaxTensors = 1 << 16;
inline constexpr uint64_t kPackedMaxMetadataBytes = uint64_t{1} << 30;

// Which bytes a packed file was made from; another identity means that it is out of date.
struct SourceIdentity {
  uint64_t size = 0;
  std::array<uint64_t, 2> digest{};  // of every byte, see source_identity.h
  friend bool operator==(const SourceIdentity&, const SourceIdentity&) = default;
};

struct PackedSection {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// First bytes of the file's last page; the rest of the page is zero. The file begins with the same
// magic.
struct PackedTrailer {
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t trailer_crc = 0;  // of this structure with this field zero
  uint64_t file_bytes = 0;
  SourceIdentity source;
  std::array<uint64_t, 2> model_id{};
  PackedSection table;
  PackedSection metadata;
  PackedSection checksums;
  PackedSection data;
  uint32_t table_crc = 0;
  uint32_t metadata_crc = 0;
  uint32_t checksums_crc = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(PackedTrailer) == 144);

enum class PackedKind : uint32_t { kVector = 0, kMatrix = 1, kLowRank = 2 };

// One tensor of the table. A vector is n_in floats, 64-byte aligned; a matrix is [n_out, n_in],
// page-aligned; the outputs of a LoRA (cpu/low_rank.h) are [n_out, n_in = rank], 64-byte
// aligned.
struct PackedEntry {
  std::array<char, 40> name{};  // GGUF's name without ".weight"; zero-terminated
  PackedKind kind = PackedKind::kVector;
  uint32_t type = 0;  // WeightType
  uint32_t n_out = 0;
  uint32_t n_in = 0;
  uint32_t panel_inputs = 0;
  uint32_t reserved = 0;
  uint64_t offset = 0;  // from the start of the data section
  uint64_t bytes = 0;
};
static_assert(sizeof(PackedEntry) == 80);

}  // namespace withy::engine
