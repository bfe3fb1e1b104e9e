// Element types of weights in the kernels, and scalar conversions of the 16-bit floats. Neighbours:
// packed_matrix.h lays weights out, gguf/ maps file types to these. Knows nothing of models or
// files. Conversions that files with flags of their own use are always inlined: a shared copy of
// them could contain instructions that the CPU lacks.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace withy::engine {

// How the elements of a packed matrix are stored.
enum class WeightType : uint8_t {
  kF32 = 0,
  kF16 = 1,
  kBf16 = 2,
  kQ8 = 3,   // w = scale * q, q in -128..127, one f16 scale for 32 inputs (GGUF Q8_0)
  kQ4 = 4,   // w = scale * (q - 8), q in 0..15, one f16 scale for 32 inputs (GGUF Q4_0)
  kQ4M = 5,  // w = scale * q + min, q in 0..15, f16 scale and min for 32 inputs (GGUF Q4_1, Q4_K)
  kFp4 = 6,  // w = scale * kFp4Values[q], one f16 scale for 32 inputs (GGUF MXFP4)
  kNl4 = 7,  // w = scale * kNl4Values[q], likewise (GGUF IQ4_NL, IQ4_XS)
};
inline constexpr WeightType kLastWeightType = WeightType::kNl4;

inline constexpr int kTileRows = 16;    // output rows that one tile interleaves
inline constexpr int kQuantBlock = 32;  // inputs that share a scale

constexpr bool IsQuantized(WeightType type) { return type >= WeightType::kQ8; }

// Twice a float of one sign, two exponent bits and one mantissa bit.
inline constexpr int8_t kFp4Values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr int8_t kNl4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                          1,    13,   25,  38,  53,  69,  89,  113};

// Whether quants are indices of a table of values.
constexpr bool HasTable(WeightType type) {
  return type == WeightType::kFp4 || type == WeightType::kNl4;
}
constexpr const int8_t* TableOf(WeightType type) {
  return type == WeightType::kFp4 ? kFp4Values : kNl4Values;
}
// Whether products start from the rows' sums for quants of 8 bits.
constexpr bool MultipliesAsQ8(WeightType type) { return type == WeightType::kQ8 || HasTable(type); }

constexpr const char* WeightTypeName(WeightType type) {
  switch (type) {
    case WeightType::kF32:
      return "f32";
    case WeightType::kF16:
      return "f16";
    case WeightType::kBf16:
      return "bf16";
    case WeightType::kQ8:
      return "q8";
    case WeightType::kQ4:
      return "q4";
    case WeightType::kQ4M:
      return "q4m";
    case WeightType::kFp4:
      return "fp4";
    case WeightType::kNl4:
      return "nl4";
  }
  return "?";
}

// IEEE half -> float, exact.
[[gnu::always_inline]] inline float F16ToF32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fu;
  const uint32_t mantissa = h & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -value : value;
  }
  const uint32_t bits =
      exponent == 31 ? 0x7f800000u | (mantissa << 13) : ((exponent + 112) << 23) | (mantissa << 13);
  return std::bit_cast<float>(sign | bits);
}

// float -> IEEE half, rounded to nearest even; overflow gives infinity, NaN stays NaN.
[[gnu::always_inline]] inline uint16_t F32ToF16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal half: adding 0.5 shifts the mantissa into place
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

inline float Bf16ToF32(uint16_t b) { return std::bit_cast<float>(static_cast<uint32_t>(b) << 16); }

// float -> bfloat16, rounded to nearest even; NaN stays NaN.
inline uint16_t F32ToBf16(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace withy::engine
