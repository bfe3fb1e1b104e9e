// Constants of the GGUF format: tensor types with their block shapes, metadata value types.
// Neighbours: reader.h and writer.h read and write files, quants.h converts blocks to floats and
// back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace withy::engine {

// Tensor element types, numbered as in files. All of them can be read and copied; quants.h lists
// those that can be computed with. A file may have types of other numbers: those of other programs,
// later ones, and ones that were given up (TypeLabel). Such tensors can be copied only.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ8_1 = 9,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kQ8_K = 15,
  kIQ2_XXS = 16,
  kIQ2_XS = 17,
  kIQ3_XXS = 18,
  kIQ1_S = 19,
  kIQ4_NL = 20,
  kIQ3_S = 21,
  kIQ2_S = 22,
  kIQ4_XS = 23,
  kI8 = 24,
  kI16 = 25,
  kI32 = 26,
  kI64 = 27,
  kF64 = 28,
  kIQ1_M = 29,
  kBF16 = 30,
  kTQ1_0 = 34,
  kTQ2_0 = 35,
  kMXFP4 = 39,
  kNVFP4 = 40,
  kQ1_0 = 41,
};

// A type's name ("Q8_0") and block: `block_elements` consecutive elements of a row take
// `block_bytes` bytes.
struct GgmlTypeTraits {
  std::string_view name;
  uint32_t block_elements = 0;
  uint32_t block_bytes = 0;
};

// Null for an unknown type number.
const GgmlTypeTraits* FindTypeTraits(GgmlType type);

// "Q8_0"; "unknown" for an unknown type number.
std::string_view TypeName(GgmlType type);

// For people: "Q8_0"; "IQ4_K (number 139, of ik_llama.cpp)"; "number 1000 (unknown)".
std::string TypeLabel(GgmlType type);

// Metadata value types, numbered as in files.
enum class GgufValueType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// "uint32", "string", ...; "unknown" for an unknown type number.
std::string_view ValueTypeName(GgufValueType type);

// Bytes of one scalar of `type`; 0 for strings, arrays and unknown type numbers.
uint32_t ScalarBytes(GgufValueType type);

inline constexpr uint32_t kGgufMagic = 0x46554747;  // "GGUF" read as little-endian
inline constexpr uint32_t kGgufDefaultAlignment = 32;

inline constexpr uint32_t kGgufMaxAlignment = 1 << 20;
inline constexpr uint32_t kGgufMaxDims = 4;

// Key (u64) of the offset of a second GGUF after the first one's data. It holds the tensors whose
// names begin with kGgufOwnPrefix. 0: there is none. See docs/formats-elastic.md.
inline constexpr std::string_view kGgufOwnTensors = "withy.tensors";
inline constexpr std::string_view kGgufOwnPrefix = "withy.";

// Keys of the parts of a split model: a part's index, the number of parts (0 or 1: it is not
// split), the tensors of all parts. As in llama.cpp the first part has the model's metadata.
inline constexpr std::string_view kGgufSplitIndex = "split.no";
inline constexpr std::string_view kGgufSplitCount = "split.count";
inline constexpr std::string_view kGgufSplitTensors = "split.tensors.count";

// Whether a key describes how the model is stored in its files, not the model: an offset, a part.
bool DescribesStorage(std::string_view key);

}  // namespace withy::engine
