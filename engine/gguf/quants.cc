#include "engine/gguf/quants.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/gguf/low_bit_quants.h"

namespace withy::engine {
namespace {

constexpr int kBlock = 32;        // elements of a Q4_0 … Q8_0 block and of a K-quant's sub-block
constexpr int kSuperBlock = 256;  // elements of a K-quant block

uint16_t LoadU16(const uint8_t* bytes) {
  uint16_t value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

void StoreU16(uint8_t* bytes, uint16_t value) { std::memcpy(bytes, &value, sizeof(value)); }

float LoadHalf(const uint8_t* bytes) { return HalfToFloat(LoadU16(bytes)); }

// Q8_0: half scale, 32 signed bytes.
void DecodeQ8_0(const uint8_t* block, float* out) {
  const float scale = LoadHalf(block);
  for (int i = 0; i < kBlock; ++i) out[i] = scale * static_cast<int8_t>(block[2 + i]);
}

// Q4_0: half scale, 16 bytes; byte j holds elements j and j + 16, offset by 8.
void DecodeQ4_0(const uint8_t* block, float* out) {
  const float scale = LoadHalf(block);
  for (int j = 0; j < kBlock / 2; ++j) {
    const int byte = block[2 + j];
    out[j] = static_cast<float>((byte & 15) - 8) * scale;
    out[j + kBlock / 2] = static_cast<float>((byte >> 4) - 8) * scale;
  }
}

// Q4_1: half scale, half minimum, 16 bytes as in Q4_0 without the offset.
void DecodeQ4_1(const uint8_t* block, float* out) {
  const float scale = LoadHalf(block);
  const float minimum = LoadHalf(block + 2);
  for (int j = 0; j < kBlock / 2; ++j) {
    const int byte = block[4 + j];
    out[j] = static_cast<float>(byte & 15) * scale + minimum;
    out[j + kBlock / 2] = static_cast<float>(byte >> 4) * scale + minimum;
  }
}

// The fifth bits of Q5_0 and Q5_1: bit i belongs to element i.
int FifthBit(const uint8_t* bits, int element) {
  return ((bits[element / 8] >> (element % 8)) & 1) << 4;
}

// Q5_0: half scale, 4 bytes of fifth bits, 16 bytes as in Q4_0; offset by 16.
void DecodeQ5_0(const uint8_t* block, float* out) {
  const float scale = LoadHalf(block);
  for (int j = 0; j < kBlock / 2; ++j) {
    const int low = (block[6 + j] & 15) | FifthBit(block + 2, j);
    const int high = (block[6 + j] >> 4) | FifthBit(block + 2, j + kBlock / 2);
    out[j] = static_cast<float>(low - 16) * scale;
    out[j + kBlock / 2] = static_cast<float>(high - 16) * scale;
  }
}

// Q5_1: half scale, half minimum, 4 bytes of fifth bits, 16 bytes.
void DecodeQ5_1(const uint8_t* block, float* out) {
  const float scale = LoadHalf(block);
  const float minimum = LoadHalf(block + 2);
  for (int j = 0; j < kBlock / 2; ++j) {
    const int low = (block[8 + j] & 15) | FifthBit(block + 4, j);
    const int high = (block[8 + j] >> 4) | FifthBit(block + 4, j + kBlock / 2);
    out[j] = static_cast<float>(low) * scale + minimum;
    out[j + kBlock / 2] = static_cast<float>(high) * scale + minimum;
  }
}

struct ScaleMin {
  int scale;
  int min;
};

// Eight 6-bit scales and eight 6-bit minima in 12 bytes. The first four of each are the low six
// bits of bytes 0-3 and 4-7. The others have their low four bits in bytes 8-11 and their high two
// in the top of bytes 0-3 and 4-7.
ScaleMin UnpackScaleMin(const uint8_t* packed, int i) {
  if (i < 4) return {packed[i] & 63, packed[i + 4] & 63};
  return {(packed[i + 4] & 15) | ((packed[i - 4] >> 6) << 4),
          (packed[i + 4] >> 4) | ((packed[i] >> 6) << 4)};
}

// Q4_K: half scale, half scale of minima, 12 bytes of scales and minima, 128 bytes; each 32 bytes
// hold two sub-blocks, low and high halves.
void DecodeQ4_K(const uint8_t* block, float* out) {
  const float scale = LoadHalf(block);
  const float min_scale = LoadHalf(block + 2);
  const uint8_t* quants = block + 16;
  for (int sub = 0; sub < kSuperBlock / kBlock; ++sub) {
    const ScaleMin packed = UnpackScaleMin(block + 4, sub);
    const float sub_scale = scale * static_cast<float>(packed.scale);
    const float sub_min = min_scale * static_cast<float>(packed.min);
    const int shift = (sub % 2) * 4;
    const uint8_t* bytes = quants + (sub / 2) * kBlock;
    for (int i = 0; i < kBlock; ++i) {
      out[sub * kBlock + i] = sub_scale * static_cast<float>((bytes[i] >> shift) & 15) - sub_min;
    }
  }
}

// Q5_K: as Q4_K, with 32 bytes of fifth bits before the quants: bit `sub` of byte i belongs to
// element i of that sub-block.
void DecodeQ5_K(const uint8_t* block, float* out) {
  const float scale = LoadHalf(block);
  const float min_scale = LoadHalf(block + 2);
  const uint8_t* fifth = block + 16;
  const uint8_t* quants = block + 48;
  for (int sub = 0; sub < kSuperBlock / kBlock; ++sub) {
    const ScaleMin packed = UnpackScaleMin(block + 4, sub);
    const float sub_scale = scale * static_cast<float>(packed.scale);
    const float sub_min = min_scale * static_cast<float>(packed.min);
    const int shift = (sub % 2) * 4;
    const uint8_t* bytes = quants + (sub / 2) * kBlock;
    for (int i = 0; i < kBlock; ++i) {
      const int quant = ((bytes[i] >> shift) & 15) | (((fifth[i] >> sub) & 1) << 4);
      out[sub * kBlock + i] = sub_scale * static_cast<float>(quant) - sub_min;
    }
  }
}

// Q6_K: 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales (one per 16
// elements), half scale; offset by 32. In each half of 128 elements, group g of 32 has its low bits
// in nibble g / 2 of the bytes 32 * (g % 2) on, and its high bits in pair g.
void DecodeQ6_K(const uint8_t* block, float* out) {
  const float scale = LoadHalf(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + half * 64;
    const uint8_t* high = block + 128 + half * 32;
    const uint8_t* scales = block + 192 + half * 8;
    for (int group = 0; group < 4; ++group) {
      for (int i = 0; i < kBlock; ++i) {
        const int low_bits = (low[(group % 2) * kBlock + i] >> ((group / 2) * 4)) & 15;
        const int quant = (low_bits | (((high[i] >> (group * 2)) & 3) << 4)) - 32;
        const auto sub_scale = static_cast<int8_t>(scales[group * 2 + i / 16]);
        out[half * 128 + group * kBlock + i] =
            scale * static_cast<float>(sub_scale) * static_cast<float>(quant);
      }
    }
  }
}

BlockDecoder FindDecoder(GgmlType type) {
  switch (type) {
    case GgmlType::kQ8_0:
      return DecodeQ8_0;
    case GgmlType::kQ4_0:
      return DecodeQ4_0;
    case GgmlType::kQ4_1:
      return DecodeQ4_1;
    case GgmlType::kQ5_0:
      return DecodeQ5_0;
    case GgmlType::kQ5_1:
      return DecodeQ5_1;
    case GgmlType::kQ4_K:
      return DecodeQ4_K;
    case GgmlType::kQ5_K:
      return DecodeQ5_K;
    case GgmlType::kQ6_K:
      return DecodeQ6_K;
    default:
      return FindLowBitDecoder(type);
  }
}

void EncodeQ8_0(const float* in, uint8_t* block) {
  float largest = 0.0f;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(in[i]));
  const float scale = largest / 127.0f;
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  StoreU16(block, FloatToHalf(scale));
  for (int i = 0; i < kBlock; ++i) {
    // 1 / scale overflows for denormal scales; the clamp keeps the conversion defined.
    const float quant = std::clamp(std::round(in[i] * inverse), -127.0f, 127.0f);
    block[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(quant));
  }
}

void EncodeQ4_0(const float* in, uint8_t* block) {
  float extreme = 0.0f;  // value of largest magnitude, with sign; becomes -8
  for (int i = 0; i < kBlock; ++i) {
    if (std::fabs(in[i]) > std::fabs(extreme)) extreme = in[i];
  }
  const float scale = extreme / -8.0f;
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  StoreU16(block, FloatToHalf(scale));
  const auto encode = [inverse](float value) {
    return static_cast<int>(std::clamp(value * inverse + 8.5f, 0.0f, 15.0f));
  };
  for (int j = 0; j < kBlock / 2; ++j) {
    block[2 + j] = static_cast<uint8_t>(encode(in[j]) | (encode(in[j + kBlock / 2]) << 4));
  }
}

void EncodeQ4_1(const float* in, uint8_t* block) {
  const auto [least, most] = std::minmax_element(in, in + kBlock);
  const float minimum = *least;
  // The difference of two huge values may overflow.
  const float scale = std::min((*most - minimum) / 15.0f, std::numeric_limits<float>::max());
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  StoreU16(block, FloatToHalf(scale));
  StoreU16(block + 2, FloatToHalf(minimum));
  const auto encode = [&](float value) {
    return static_cast<int>(std::clamp((value - minimum) * inverse + 0.5f, 0.0f, 15.0f));
  };
  for (int j = 0; j < kBlock / 2; ++j) {
    block[4 + j] = static_cast<uint8_t>(encode(in[j]) | (encode(in[j + kBlock / 2]) << 4));
  }
}

absl::Status CheckSizes(GgmlType type, size_t bytes, size_t elements) {
  WITHY_ASSIGN_OR_RETURN(const uint64_t expected, RowBytes(type, static_cast<int64_t>(elements)));
  if (bytes == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(elements, " elements of type ",
                                                 ToAbsl(TypeName(type)), " take ", expected,
                                                 " bytes, not ", bytes));
}

absl::Status CheckFinite(GgmlType type, std::span<const float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "element ", i, " is ", values[i], "; it cannot be stored as ", ToAbsl(TypeName(type))));
  }
  return absl::OkStatus();
}

}  // namespace

float HalfToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = (bits >> 10) & 31;
  const uint32_t mantissa = bits & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000)
    return static_cast<uint16_t>(sign | 0x7E00 | ((magnitude >> 13) & 0x1FF));
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // rounds above 65504
  if (magnitude < 0x38800000) {                       // below the smallest normal half
    // Adding 0.5 aligns the value so that the float adder rounds it to a multiple of 2^-24.
    const float aligned = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) & 0x7FF));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - (112u << 23)) >> 13));
}

float Bf16ToFloat(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t FloatToBf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16) | 64);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

absl::StatusOr<uint64_t> RowBytes(GgmlType type, int64_t elements) {
  const GgmlTypeTraits* traits = FindTypeTraits(type);
  if (traits == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown tensor type ", static_cast<uint32_t>(type)));
  }
  uint64_t bytes = 0;
  if (elements < 0 || elements % traits->block_elements != 0 ||
      __builtin_mul_overflow(static_cast<uint64_t>(elements) / traits->block_elements,
                             uint64_t{traits->block_bytes}, &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat("type ", ToAbsl(traits->name), " cannot hold ",
                                                   elements, " elements: it needs a multiple of ",
                                                   traits->block_elements));
  }
  return bytes;
}

bool CanDequantize(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16 ||
         FindDecoder(type) != nullptr;
}

bool CanQuantize(GgmlType type) {
  return type == GgmlType::kF32 || type == GgmlType::kF16 || type == GgmlType::kBF16 ||
         type == GgmlType::kQ8_0 || type == GgmlType::kQ4_0 || type == GgmlType::kQ4_1;
}

absl::Status Dequantize(GgmlType type, std::span<const uint8_t> src, std::span<float> dst) {
  if (!CanDequantize(type)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor type ", ToAbsl(TypeName(type)), " (", static_cast<uint32_t>(type),
                     ") cannot be computed with; use ", kDequantizedTypes));
  }
  WITHY_RETURN_IF_ERROR(CheckSizes(type, src.size(), dst.size()));
  if (dst.empty()) return absl::OkStatus();
  if (type == GgmlType::kF32) {
    std::memcpy(dst.data(), src.data(), src.size());
  } else if (type == GgmlType::kF16) {
    for (size_t i = 0; i < dst.size(); ++i) dst[i] = LoadHalf(src.data() + 2 * i);
  } else if (type == GgmlType::kBF16) {
    for (size_t i = 0; i < dst.size(); ++i) dst[i] = Bf16ToFloat(LoadU16(src.data() + 2 * i));
  } else {
    const GgmlTypeTraits& traits = *FindTypeTraits(type);
    const BlockDecoder decode = FindDecoder(type);
    const uint8_t* block = src.data();
    for (size_t i = 0; i < dst.size(); i += traits.block_elements, block += traits.block_bytes) {
      decode(block, dst.data() + i);
    }
  }
  return absl::OkStatus();
}

absl::Status Quantize(GgmlType type, std::span<const float> src, std::span<uint8_t> dst) {
  if (!CanQuantize(type)) {
    return absl::InvalidArgumentError(absl::StrCat("tensors cannot be written as ",
                                                   ToAbsl(TypeName(type)),
                                                   "; use F32, F16, BF16, Q8_0, Q4_0 or Q4_1"));
  }
  WITHY_RETURN_IF_ERROR(CheckSizes(type, dst.size(), src.size()));
  if (src.empty()) return absl::OkStatus();
  if (type == GgmlType::kF32) {
    std::memcpy(dst.data(), src.data(), dst.size());
  } else if (type == GgmlType::kF16) {
    for (size_t i = 0; i < src.size(); ++i) StoreU16(dst.data() + 2 * i, FloatToHalf(src[i]));
  } else if (type == GgmlType::kBF16) {
    for (size_t i = 0; i < src.size(); ++i) StoreU16(dst.data() + 2 * i, FloatToBf16(src[i]));
  } else {
    WITHY_RETURN_IF_ERROR(CheckFinite(type, src));
    const GgmlTypeTraits& traits = *FindTypeTraits(type);
    const auto encode = type == GgmlType::kQ8_0   ? EncodeQ8_0
                        : type == GgmlType::kQ4_0 ? EncodeQ4_0
                                                  : EncodeQ4_1;
    uint8_t* block = dst.data();
    for (size_t i = 0; i < src.size(); i += kBlock, block += traits.block_bytes) {
      encode(src.data() + i, block);
    }
  }
  return absl::OkStatus();
}

absl::Status ToQ4Min(GgmlType type, std::span<const uint8_t> src, const Q4MinRow& dst) {
  if (type != GgmlType::kQ4_K && type != GgmlType::kQ4_1) {
    return absl::InvalidArgumentError(absl::StrCat("tensor type ", ToAbsl(TypeName(type)),
                                                   " is not 4 bits with a minimum (Q4_K, Q4_1)"));
  }
  const size_t elements = dst.quants.size() * 2;
  WITHY_RETURN_IF_ERROR(CheckSizes(type, src.size(), elements));
  if (dst.scales.size() * kBlock != elements || dst.mins.size() * kBlock != elements) {
    return absl::InvalidArgumentError(absl::StrCat(elements, " elements need ", elements / kBlock,
                                                   " scales and minima, not ", dst.scales.size(),
                                                   " and ", dst.mins.size()));
  }
  for (size_t b = 0; b < dst.scales.size(); ++b) {
    uint8_t* quants = dst.quants.data() + b * (kBlock / 2);
    if (type == GgmlType::kQ4_1) {
      const uint8_t* block = src.data() + b * 20;
      dst.scales[b] = LoadHalf(block);
      dst.mins[b] = -LoadHalf(block + 2);
      std::memcpy(quants, block + 4, kBlock / 2);
      continue;
    }
    const int sub = static_cast<int>(b % 8);
    const uint8_t* block = src.data() + b / 8 * 144;
    const ScaleMin packed = UnpackScaleMin(block + 4, sub);
    dst.scales[b] = LoadHalf(block) * static_cast<float>(packed.scale);
    dst.mins[b] = LoadHalf(block + 2) * static_cast<float>(packed.min);
    const uint8_t* bytes = block + 16 + (sub / 2) * kBlock;
    const int shift = (sub % 2) * 4;
    for (int j = 0; j < kBlock / 2; ++j) {
      const int low = (bytes[j] >> shift) & 15;
      const int high = (bytes[j + kBlock / 2] >> shift) & 15;
      quants[j] = static_cast<uint8_t>(low | (high << 4));
    }
  }
  return absl::OkStatus();
}

absl::Status ToQ8(GgmlType type, std::span<const uint8_t> src, const Q8Row& dst) {
  const BlockSplitter split = FindBlockSplitter(type);
  if (split == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor type ", ToAbsl(TypeName(type)), " is not 8 bits with one scale"));
  }
  WITHY_RETURN_IF_ERROR(CheckSizes(type, src.size(), dst.quants.size()));
  if (dst.scales.size() * kBlock != dst.quants.size()) {
    return absl::InvalidArgumentError(absl::StrCat(dst.quants.size(), " elements need ",
                                                   dst.quants.size() / kBlock, " scales, not ",
                                                   dst.scales.size()));
  }
  const GgmlTypeTraits& traits = *FindTypeTraits(type);
  const uint8_t* block = src.data();
  for (size_t i = 0; i < dst.quants.size(); i += traits.block_elements) {
    split(block, dst.scales.data() + i / kBlock, dst.quants.data() + i);
    block += traits.block_bytes;
  }
  return absl::OkStatus();
}

}  // namespace withy::engine
