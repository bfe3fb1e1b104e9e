// The byte layout of a packed file, which workers map instead of a GGUF. Little-endian; written by
// packer.cc, read by packed_file.cc.
//
//   magic (64 bytes) | tensor table | GGUF metadata (a GGUF file without tensors) | data |
//   checksums | trailer (one page)
//
// Sections begin on multiples of 64 bytes, the data section on a page. The trailer is last, so that
// the file is written in one pass and truncation is detected. Data holds tensors in table order:
// token embedding and output first, then the layers, then the LoRA of the levels; each layer and
// each matrix begins on a page, in the layout of cpu/packed_matrix.h. A level is a prefix of each
// matrix. Checksums are CRC32C of each 1 MiB of data. Q rows and O columns are rank-major if a KV
// head has three or more query heads (QueryHeadOrder).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace withy::engine {

inline constexpr std::array<char, 8> kPackedMagic = {'W', 'I', 'T', 'H', 'Y', 'P', 'K', '\n'};
// Incremented with every change of these structures, of the matrix layout, or of the values that
// the packer computes.
inline constexpr uint32_t kPackedVersion = 5;
inline constexpr uint64_t kPackedPage = 4096;
inline constexpr uint64_t kPackedChecksumBlock = 1 << 20;
inline constexpr uint64_t kPackedMaxTensors = 1 << 16;
inline constexpr uint64_t kPackedMaxMetadataBytes = uint64_t{1} << 30;

// Identity of the source bytes of a packed file. If it differs, the packed file is out of date.
struct SourceIdentity {
  uint64_t size = 0;
  std::array<uint64_t, 2> digest{};  // of every byte; see source_identity.h
  friend bool operator==(const SourceIdentity&, const SourceIdentity&) = default;
};

struct PackedSection {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// At the start of the file's last page; the rest of the page is zero. The file begins with the same
// magic.
struct PackedTrailer {
  std::array<char, 8> magic{};
  uint32_t version = 0;
  uint32_t trailer_crc = 0;  // CRC of this structure with this field zero
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
  // 0, or a random number of a file that was packed in the place of a damaged one: KV that may have
  // been computed with the damaged weights has another one. Not part of model_id.
  uint32_t kv_epoch = 0;
};
static_assert(sizeof(PackedTrailer) == 144);

// The vector of LongRoPE's frequencies for long windows; "rope_frequencies" has those for short
// ones.
inline constexpr std::string_view kLongRopeVector = "rope_frequencies_long";

enum class PackedKind : uint32_t { kVector = 0, kMatrix = 1, kLowRank = 2 };

// One entry of the tensor table. A vector is n_in floats, 64-byte aligned. A matrix is [n_out,
// n_in], page-aligned. The outputs of a LoRA (cpu/low_rank.h) are [n_out, n_in = rank], 64-byte
// aligned.
struct PackedEntry {
  std::array<char, 40> name{};  // GGUF name without ".weight", NUL-terminated
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
