// Converts tensor blocks to floats and back, bit-compatible with ggml's formats and rounding.
// Neighbours: weights/ packs the results; cpu/ has fast paths for the packed layouts. Plain scalar
// code: it runs at import, not per token.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/gguf/types.h"

namespace withy::engine {

// IEEE half precision; rounds to nearest even, overflow gives infinity, NaN stays a (quiet) NaN.
float HalfToFloat(uint16_t bits);
uint16_t FloatToHalf(float value);
// bfloat16; rounds to nearest even, NaN stays a (quiet) NaN.
float Bf16ToFloat(uint16_t bits);
uint16_t FloatToBf16(float value);

// Bytes of `elements` consecutive elements of a row. Errors: InvalidArgument for an unknown type, a
// count that is negative or not a multiple of the type's block, or an overflow.
absl::StatusOr<uint64_t> RowBytes(GgmlType type, int64_t elements);

// The types that can be computed with, for messages.
inline constexpr char kDequantizedTypes[] =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, Q8_K, IQ4_NL, "
    "IQ4_XS, MXFP4, TQ1_0 or TQ2_0";

// True for kDequantizedTypes.
bool CanDequantize(GgmlType type);
// True for F32, F16, BF16, Q8_0, Q4_0, Q4_1.
bool CanQuantize(GgmlType type);

// Sets dst[i] to element i. `src` holds exactly dst.size() elements: whole rows or any multiple of
// the block. Errors: InvalidArgument naming the type if it cannot be decoded or the sizes do not
// match.
absl::Status Dequantize(GgmlType type, std::span<const uint8_t> src, std::span<float> dst);

// The inverse, with the rounding of ggml's reference: Q8_0 scale max|x|/127, Q4_0 scale (signed
// extreme)/-8, Q4_1 scale (max - min)/15 and minimum, stored as half; quants use the unrounded
// scale. A NaN or infinity in `src` is InvalidArgument naming its index for block types, and is
// kept by F32, F16, BF16.
absl::Status Quantize(GgmlType type, std::span<const float> src, std::span<uint8_t> dst);

// 4 bits with a minimum: element i of 32-element block b is scales[b] * q - mins[b], q in 0..15.
// quants: 16 bytes per block; byte j has element j in its low half and element j + 16 in its high
// half.
struct Q4MinRow {
  std::span<float> scales;    // [elements / 32]
  std::span<float> mins;      // [elements / 32]
  std::span<uint8_t> quants;  // [elements / 2]
};

// Converts Q4_K or Q4_1 blocks exactly (same values as Dequantize up to the rounding of one
// multiply-add). Errors: InvalidArgument for another type or mismatched sizes.
absl::Status ToQ4Min(GgmlType type, std::span<const uint8_t> src, const Q4MinRow& dst);

// 8 bits: element i is scales[i / 32] * quants[i].
struct Q8Row {
  std::span<float> scales;   // [elements / 32]
  std::span<int8_t> quants;  // [elements], -128..127
};

// Converts blocks of Q8_0, Q5_0, Q3_K, Q8_K, IQ4_NL, IQ4_XS, MXFP4, TQ1_0 or TQ2_0 to the same
// values as Dequantize. Scales of Q8_K, IQ4_XS and MXFP4 need not fit half precision. Quants of TQ
// are -1..1. Errors: InvalidArgument for another type or mismatched sizes.
absl::Status ToQ8(GgmlType type, std::span<const uint8_t> src, const Q8Row& dst);

}  // namespace withy::engine
