#include "engine/gguf/low_bit_quants.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "engine/gguf/quants.h"

namespace withy::engine {
namespace {

constexpr int kScaled = 32;      // elements that share a scale once they are split
constexpr int kLongBlock = 256;  // elements of a Q2_K, Q3_K, Q8_K, IQ4_XS or TQ block

// Values of the four bits of IQ4_NL and IQ4_XS, closer to each other around zero.
constexpr std::array<int8_t, 16> kUnevenValues = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};
// Twice the values of a float of one sign, two exponent bits and one mantissa bit (MXFP4).
constexpr std::array<int8_t, 16> kTwiceFp4 = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};

float HalfAt(const uint8_t* bytes) {
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  return HalfToFloat(bits);
}

// Two bits for each element: bytes of 32 elements hold elements i, 32 + i, 64 + i and 96 + i.
int TwoBits(const uint8_t* bytes, int element) {
  const int shift = element % 128 / 32 * 2;
  return (bytes[element / 128 * 32 + element % 32] >> shift) & 3;
}

// 16 bytes of 4-bit indices: byte j has those of elements j (low half) and j + 16.
void LookUp(const std::array<int8_t, 16>& values, const uint8_t* bytes, int8_t* quants) {
  for (int j = 0; j < kScaled / 2; ++j) {
    quants[j] = values[bytes[j] & 15];
    quants[j + kScaled / 2] = values[bytes[j] >> 4];
  }
}

// Q2_K: 16 bytes of 4-bit scales (low half) and minima, each of 16 elements; 64 bytes of 2-bit
// quants; half scale of the scales, half scale of the minima.
void DecodeQ2_K(const uint8_t* block, float* out) {
  const float scale = HalfAt(block + 80);
  const float min_scale = HalfAt(block + 82);
  for (int e = 0; e < kLongBlock; ++e) {
    const uint8_t packed = block[e / 16];
    out[e] = scale * static_cast<float>(packed & 15) * static_cast<float>(TwoBits(block + 16, e)) -
             min_scale * static_cast<float>(packed >> 4);
  }
}

// The 6-bit scale of 16 elements of Q3_K, offset by 32: bytes 0-7 hold the low four bits of scales
// i and i + 8, bytes 8-11 the high two of scales i, i + 4, i + 8 and i + 12.
int Q3Scale(const uint8_t* packed, int i) {
  const int low = (packed[i % 8] >> (i / 8 * 4)) & 15;
  const int high = (packed[8 + i % 4] >> (i / 4 * 2)) & 3;
  return (low | (high << 4)) - 32;
}

// Q3_K: 32 bytes of third bits (bit b of byte i: element 32 b + i), 64 bytes of 2-bit quants, 12
// bytes of scales, half scale. An element without its third bit is 4 less. Scale times quant is
// between -124 and 128: its negative fits a byte, with the block's scale negated.
void SplitQ3_K(const uint8_t* block, float* scales, int8_t* quants) {
  std::fill_n(scales, kLongBlock / kScaled, -HalfAt(block + 108));
  for (int e = 0; e < kLongBlock; ++e) {
    const int third = (block[e % 32] >> (e / 32)) & 1;
    const int quant = TwoBits(block + 32, e) - (third != 0 ? 0 : 4);
    quants[e] = static_cast<int8_t>(-quant * Q3Scale(block + 96, e / 16));
  }
}

// Q8_K: float scale, 256 signed bytes, 16 sums of 16 quants (not needed here).
void SplitQ8_K(const uint8_t* block, float* scales, int8_t* quants) {
  float scale;
  std::memcpy(&scale, block, sizeof(scale));
  std::fill_n(scales, kLongBlock / kScaled, scale);
  std::memcpy(quants, block + 4, kLongBlock);
}

// Q8_0: half scale, 32 signed bytes.
void SplitQ8_0(const uint8_t* block, float* scales, int8_t* quants) {
  scales[0] = HalfAt(block);
  std::memcpy(quants, block + 2, kScaled);
}

// Q5_0: half scale, 4 bytes of fifth bits, 16 bytes of low bits; offset by 16.
void SplitQ5_0(const uint8_t* block, float* scales, int8_t* quants) {
  scales[0] = HalfAt(block);
  for (int e = 0; e < kScaled; ++e) {
    const int low = (block[6 + e % 16] >> (e / 16 * 4)) & 15;
    const int fifth = (block[2 + e / 8] >> (e % 8)) & 1;
    quants[e] = static_cast<int8_t>((low | (fifth << 4)) - 16);
  }
}

// IQ4_NL: half scale, 16 bytes of indices.
void SplitIQ4_NL(const uint8_t* block, float* scales, int8_t* quants) {
  scales[0] = HalfAt(block);
  LookUp(kUnevenValues, block + 2, quants);
}

// IQ4_XS: half scale, 16 bits with the high two of each 6-bit scale, 4 bytes with the low four, 128
// bytes of indices; scales offset by 32.
void SplitIQ4_XS(const uint8_t* block, float* scales, int8_t* quants) {
  const float scale = HalfAt(block);
  uint16_t high_bits;
  std::memcpy(&high_bits, block + 2, sizeof(high_bits));
  for (int sub = 0; sub < kLongBlock / kScaled; ++sub) {
    const int low = (block[4 + sub / 2] >> (sub % 2 * 4)) & 15;
    const int high = (high_bits >> (sub * 2)) & 3;
    scales[sub] = scale * static_cast<float>((low | (high << 4)) - 32);
    LookUp(kUnevenValues, block + 8 + sub * 16, quants + sub * kScaled);
  }
}

// MXFP4: an exponent byte e, 16 bytes of 4-bit floats; the values are multiples of 2^(e - 128).
void SplitMXFP4(const uint8_t* block, float* scales, int8_t* quants) {
  const uint32_t exponent = block[0];
  // Below the smallest normal float the bits of the fraction count down.
  scales[0] = std::bit_cast<float>(exponent < 2 ? 0x00200000u << exponent : (exponent - 1) << 23);
  LookUp(kTwiceFp4, block + 1, quants);
}

// Digit `place` (0: the first) of a byte that holds five digits of base 3 as a fraction of 256.
int8_t Digit(uint8_t byte, int place) {
  constexpr std::array<int, 5> kPowers = {1, 3, 9, 27, 81};
  const auto rest = static_cast<uint8_t>(byte * kPowers[static_cast<size_t>(place)]);
  return static_cast<int8_t>(((rest * 3) >> 8) - 1);
}

// TQ1_0: 48 bytes of five digits, 4 bytes of four digits, half scale. Digit by digit: 32 bytes,
// then 16, then the last 4.
void SplitTQ1_0(const uint8_t* block, float* scales, int8_t* quants) {
  std::fill_n(scales, kLongBlock / kScaled, HalfAt(block + 52));
  struct Run {
    int begin;
    int bytes;
    int digits;
  };
  for (const Run& run : {Run{0, 32, 5}, Run{32, 16, 5}, Run{48, 4, 4}}) {
    for (int place = 0; place < run.digits; ++place) {
      for (int i = 0; i < run.bytes; ++i) *quants++ = Digit(block[run.begin + i], place);
    }
  }
}

// TQ2_0: 64 bytes of 2-bit quants, offset by 1; half scale.
void SplitTQ2_0(const uint8_t* block, float* scales, int8_t* quants) {
  std::fill_n(scales, kLongBlock / kScaled, HalfAt(block + 64));
  for (int e = 0; e < kLongBlock; ++e) quants[e] = static_cast<int8_t>(TwoBits(block, e) - 1);
}

template <BlockSplitter kSplit, int kElements>
void DecodeSplit(const uint8_t* block, float* out) {
  std::array<float, kElements / kScaled> scales;
  std::array<int8_t, kElements> quants;
  kSplit(block, scales.data(), quants.data());
  for (size_t e = 0; e < kElements; ++e) {
    out[e] = scales[e / kScaled] * static_cast<float>(quants[e]);
  }
}

}  // namespace

BlockDecoder FindLowBitDecoder(GgmlType type) {
  switch (type) {
    case GgmlType::kQ2_K:
      return DecodeQ2_K;
    case GgmlType::kQ3_K:
      return DecodeSplit<SplitQ3_K, kLongBlock>;
    case GgmlType::kQ8_K:
      return DecodeSplit<SplitQ8_K, kLongBlock>;
    case GgmlType::kIQ4_NL:
      return DecodeSplit<SplitIQ4_NL, kScaled>;
    case GgmlType::kIQ4_XS:
      return DecodeSplit<SplitIQ4_XS, kLongBlock>;
    case GgmlType::kMXFP4:
      return DecodeSplit<SplitMXFP4, kScaled>;
    case GgmlType::kTQ1_0:
      return DecodeSplit<SplitTQ1_0, kLongBlock>;
    case GgmlType::kTQ2_0:
      return DecodeSplit<SplitTQ2_0, kLongBlock>;
    default:
      return nullptr;
  }
}

BlockSplitter FindBlockSplitter(GgmlType type) {
  switch (type) {
    case GgmlType::kQ8_0:
      return SplitQ8_0;
    case GgmlType::kQ5_0:
      return SplitQ5_0;
    case GgmlType::kQ3_K:
      return SplitQ3_K;
    case GgmlType::kQ8_K:
      return SplitQ8_K;
    case GgmlType::kIQ4_NL:
      return SplitIQ4_NL;
    case GgmlType::kIQ4_XS:
      return SplitIQ4_XS;
    case GgmlType::kMXFP4:
      return SplitMXFP4;
    case GgmlType::kTQ1_0:
      return SplitTQ1_0;
    case GgmlType::kTQ2_0:
      return SplitTQ2_0;
    default:
      return nullptr;
  }
}

}  // namespace withy::engine
