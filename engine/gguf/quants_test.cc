#include "engine/gguf/quants.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace withy::engine {
namespace {

std::vector<float> Decode(GgmlType type, const std::vector<uint8_t>& block) {
  const GgmlTypeTraits& traits = *FindTypeTraits(type);
  std::vector<float> values(block.size() / traits.block_bytes * traits.block_elements);
  const absl::Status status = Dequantize(type, block, values);
  EXPECT_TRUE(status.ok()) << status;
  return values;
}

std::vector<uint8_t> Encode(GgmlType type, const std::vector<float>& values) {
  std::vector<uint8_t> block(RowBytes(type, static_cast<int64_t>(values.size())).value());
  const absl::Status status = Quantize(type, values, block);
  EXPECT_TRUE(status.ok()) << status;
  return block;
}

void SetHalf(std::vector<uint8_t>& block, size_t at, float value) {
  const uint16_t bits = FloatToHalf(value);
  std::memcpy(block.data() + at, &bits, sizeof(bits));
}

size_t Index(int i) { return static_cast<size_t>(i); }

std::vector<float> RandomValues(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

TEST(QuantsTest, EveryHalfRoundTrips) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = HalfToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(value)))) << bits;
    } else {
      EXPECT_EQ(FloatToHalf(value), bits);
    }
  }
}

TEST(QuantsTest, HalfRoundsToNearestEven) {
  // Between every pair of neighbours: below, at and above the midpoint.
  for (uint16_t bits = 0; bits < 0x7BFF; ++bits) {
    const double low = HalfToFloat(bits);
    const double high = HalfToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = static_cast<float>((low + high) / 2);
    EXPECT_EQ(FloatToHalf(middle), bits % 2 == 0 ? bits : bits + 1) << bits;
    EXPECT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), bits);
    EXPECT_EQ(FloatToHalf(std::nextafter(middle, 1e9f)), bits + 1);
    EXPECT_EQ(FloatToHalf(-middle), FloatToHalf(middle) | 0x8000);
  }
  EXPECT_EQ(FloatToHalf(65519.0f), 0x7BFF);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7C00);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::infinity()), 0x7C00);
  EXPECT_EQ(FloatToHalf(1e-30f), 0);
}

TEST(QuantsTest, Bf16RoundsToNearestEven) {
  EXPECT_EQ(FloatToBf16(1.0f), 0x3F80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3F808000u)), 0x3F80);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_EQ(FloatToBf16(std::bit_cast<float>(0x3F808001u)), 0x3F81);
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(std::bit_cast<float>(0x7F800001u)))));
  EXPECT_EQ(Bf16ToFloat(0xBF80), -1.0f);
}

TEST(QuantsTest, PlainTypesKeepTheirPrecision) {
  const std::vector<float> values = RandomValues(77, 1);
  EXPECT_EQ(Decode(GgmlType::kF32, Encode(GgmlType::kF32, values)), values);
  const std::vector<float> half = Decode(GgmlType::kF16, Encode(GgmlType::kF16, values));
  const std::vector<float> bf16 = Decode(GgmlType::kBF16, Encode(GgmlType::kBF16, values));
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_NEAR(half[i], values[i], std::fabs(values[i]) * 0x1p-11f + 1e-7f);
    EXPECT_NEAR(bf16[i], values[i], std::fabs(values[i]) * 0x1p-8f);
  }
}

TEST(QuantsTest, Q8_0IsWithinHalfAStep) {
  const std::vector<float> values = RandomValues(32 * 50, 2);
  const std::vector<float> decoded = Decode(GgmlType::kQ8_0, Encode(GgmlType::kQ8_0, values));
  for (size_t b = 0; b < values.size(); b += 32) {
    float largest = 0;
    for (size_t i = b; i < b + 32; ++i) largest = std::max(largest, std::fabs(values[i]));
    for (size_t i = b; i < b + 32; ++i) {
      EXPECT_NEAR(decoded[i], values[i], largest / 127 * 0.5f + largest * 0x1p-11f);
    }
  }
}

TEST(QuantsTest, Q8_0BytesAreAsSpecified) {
  std::vector<float> values(32, 0.0f);
  values[0] = 127.0f;
  values[1] = -127.0f;
  values[2] = 2.5f;  // halves round away from zero
  values[3] = -2.5f;
  const std::vector<uint8_t> block = Encode(GgmlType::kQ8_0, values);
  EXPECT_EQ(block[0] | block[1] << 8, 0x3C00);
  EXPECT_EQ(static_cast<int8_t>(block[2]), 127);
  EXPECT_EQ(static_cast<int8_t>(block[3]), -127);
  EXPECT_EQ(static_cast<int8_t>(block[4]), 3);
  EXPECT_EQ(static_cast<int8_t>(block[5]), -3);
  EXPECT_EQ(block[6], 0);
}

TEST(QuantsTest, Q4_0BytesAreAsSpecified) {
  std::vector<float> values(32, 0.0f);
  values[0] = -8.0f;  // the extreme becomes -8
  values[1] = 7.0f;
  values[16] = 1.0f;
  values[17] = 7.9f;  // clipped to 7
  const std::vector<uint8_t> block = Encode(GgmlType::kQ4_0, values);
  EXPECT_EQ(block[0] | block[1] << 8, 0x3C00);
  EXPECT_EQ(block[2], 0x90);
  EXPECT_EQ(block[3], 0xFF);
  EXPECT_EQ(block[4], 0x88);
  const std::vector<float> decoded = Decode(GgmlType::kQ4_0, block);
  EXPECT_EQ(decoded[0], -8.0f);
  EXPECT_EQ(decoded[1], 7.0f);
  EXPECT_EQ(decoded[16], 1.0f);
  EXPECT_EQ(decoded[17], 7.0f);
  EXPECT_EQ(decoded[18], 0.0f);
}

TEST(QuantsTest, Q4_1BytesAreAsSpecified) {
  std::vector<float> values(32, -2.0f);  // the minimum becomes 0
  values[1] = 5.5f;                      // the maximum 15
  values[16] = -1.5f;
  values[17] = -1.2f;  // 1.6 steps
  const std::vector<uint8_t> block = Encode(GgmlType::kQ4_1, values);
  EXPECT_EQ(block[0] | block[1] << 8, FloatToHalf(0.5f));
  EXPECT_EQ(block[2] | block[3] << 8, FloatToHalf(-2.0f));
  EXPECT_EQ(block[4], 0x10);
  EXPECT_EQ(block[5], 0x2F);
  EXPECT_EQ(block[6], 0x00);
  EXPECT_EQ(Decode(GgmlType::kQ4_1, block)[1], 5.5f);
}

TEST(QuantsTest, Q4_1IsWithinHalfAStep) {
  std::vector<float> values = RandomValues(32 * 50, 5);
  for (size_t i = 0; i < 320; ++i) values[i] += 3;  // all on one side of zero
  const std::vector<float> decoded = Decode(GgmlType::kQ4_1, Encode(GgmlType::kQ4_1, values));
  for (size_t b = 0; b < values.size(); b += 32) {
    const auto [least, most] = std::minmax_element(values.begin() + static_cast<ptrdiff_t>(b),
                                                   values.begin() + static_cast<ptrdiff_t>(b) + 32);
    const float rounding = 0x1p-10f * std::max(std::fabs(*least), std::fabs(*most));
    for (size_t i = b; i < b + 32; ++i) {
      EXPECT_NEAR(decoded[i], values[i], (*most - *least) / 30 + rounding);
    }
  }
}

// Quantising already quantised values does not change them.
TEST(QuantsTest, QuantisingTwiceIsQuantisingOnce) {
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1}) {
    const std::vector<float> once = Decode(type, Encode(type, RandomValues(32 * 200, 6)));
    const std::vector<float> twice = Decode(type, Encode(type, once));
    for (size_t i = 0; i < once.size(); ++i) {
      ASSERT_NEAR(once[i], twice[i], 4e-3f * std::fabs(once[i]) + 1e-3f) << TypeName(type);
    }
  }
}

TEST(QuantsTest, ExtremeBlocksStayDefined) {
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1}) {
    for (const float extreme : {0.0f, 1e-45f, 1e-38f, 3e38f, -3e38f}) {
      std::vector<float> values(32, extreme);
      values[5] = 0.0f;
      (void)Encode(type, values);
    }
    std::vector<float> values(32, 1.0f);
    values[9] = std::numeric_limits<float>::quiet_NaN();
    std::vector<uint8_t> block(FindTypeTraits(type)->block_bytes);
    const absl::Status status = Quantize(type, values, block);
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_NE(status.message().find("element 9"), absl::string_view::npos) << status;
  }
}

TEST(QuantsTest, Q4_1AndQ5BlocksDecode) {
  std::vector<uint8_t> block(20);
  SetHalf(block, 0, 0.5f);
  SetHalf(block, 2, -2.0f);
  block[4] = 0xF1;
  std::vector<float> values = Decode(GgmlType::kQ4_1, block);
  EXPECT_EQ(values[0], -1.5f);
  EXPECT_EQ(values[16], 5.5f);
  EXPECT_EQ(values[1], -2.0f);

  block.assign(22, 0);
  SetHalf(block, 0, 1.0f);
  block[2] = 0x01;  // fifth bit of element 0
  block[4] = 0x02;  // fifth bit of element 17
  block[6] = 0x03;
  block[7] = 0x50;
  values = Decode(GgmlType::kQ5_0, block);
  EXPECT_EQ(values[0], 3.0f);
  EXPECT_EQ(values[16], -16.0f);
  EXPECT_EQ(values[17], 5.0f);

  block.assign(24, 0);
  SetHalf(block, 0, 2.0f);
  SetHalf(block, 2, 1.0f);
  block[4] = 0x01;
  block[8] = 0x42;
  values = Decode(GgmlType::kQ5_1, block);
  EXPECT_EQ(values[0], 2.0f * 18 + 1.0f);
  EXPECT_EQ(values[16], 2.0f * 4 + 1.0f);
}

// Packs one 6-bit scale and minimum in the layout of K-quants.
void PackScaleMin(std::vector<uint8_t>& block, size_t at, int i, int scale, int min) {
  uint8_t* packed = block.data() + at;
  if (i < 4) {
    packed[i] = static_cast<uint8_t>((packed[i] & 0xC0) | scale);
    packed[i + 4] = static_cast<uint8_t>((packed[i + 4] & 0xC0) | min);
  } else {
    packed[i + 4] = static_cast<uint8_t>((scale & 15) | ((min & 15) << 4));
    packed[i - 4] = static_cast<uint8_t>((packed[i - 4] & 0x3F) | ((scale >> 4) << 6));
    packed[i] = static_cast<uint8_t>((packed[i] & 0x3F) | ((min >> 4) << 6));
  }
}

TEST(QuantsTest, Q4_KAndQ5_KDecodeEverySubBlock) {
  for (const bool five_bits : {false, true}) {
    const GgmlType type = five_bits ? GgmlType::kQ5_K : GgmlType::kQ4_K;
    const size_t quants_at = five_bits ? 48 : 16;
    std::vector<uint8_t> block(FindTypeTraits(type)->block_bytes);
    SetHalf(block, 0, 0.25f);
    SetHalf(block, 2, 0.125f);
    std::vector<float> expected(256);
    for (int sub = 0; sub < 8; ++sub) {
      const int scale = 7 * sub + 3;
      const int min = 62 - 7 * sub;
      PackScaleMin(block, 4, sub, scale, min);
      for (int i = 0; i < 32; ++i) {
        const int quant = (i * 5 + sub) % (five_bits ? 32 : 16);
        block[quants_at + static_cast<size_t>(sub / 2 * 32 + i)] |=
            static_cast<uint8_t>((quant & 15) << (sub % 2 * 4));
        if (five_bits)
          block[16 + static_cast<size_t>(i)] |= static_cast<uint8_t>((quant >> 4) << sub);
        expected[Index(sub * 32 + i)] =
            0.25f * static_cast<float>(scale * quant) - 0.125f * static_cast<float>(min);
      }
    }
    EXPECT_EQ(Decode(type, block), expected);
  }
}

TEST(QuantsTest, Q6_KDecodesEveryElement) {
  std::vector<uint8_t> block(210);
  SetHalf(block, 208, 0.5f);
  std::vector<float> expected(256);
  for (int e = 0; e < 256; ++e) {
    const int quant = (e * 11) % 64;
    const int scale = e / 16 - 7;
    block[192 + static_cast<size_t>(e / 16)] = static_cast<uint8_t>(static_cast<int8_t>(scale));
    const int half = e / 128;
    const int group = e % 128 / 32;
    const int i = e % 32;
    block[Index(half * 64 + group % 2 * 32 + i)] |=
        static_cast<uint8_t>((quant & 15) << (group / 2 * 4));
    block[Index(128 + half * 32 + i)] |= static_cast<uint8_t>((quant >> 4) << (group * 2));
    expected[static_cast<size_t>(e)] = 0.5f * static_cast<float>(scale * (quant - 32));
  }
  EXPECT_EQ(Decode(GgmlType::kQ6_K, block), expected);
}

TEST(QuantsTest, ToQ4MinGivesTheSameValues) {
  std::mt19937 random(3);
  for (const GgmlType type : {GgmlType::kQ4_K, GgmlType::kQ4_1}) {
    const GgmlTypeTraits& traits = *FindTypeTraits(type);
    const size_t elements = 1024;
    std::vector<uint8_t> src(elements / traits.block_elements * traits.block_bytes);
    for (uint8_t& byte : src) byte = static_cast<uint8_t>(random());
    for (size_t b = 0; b < src.size(); b += traits.block_bytes) {
      SetHalf(src, b, 0.01f);
      SetHalf(src, b + 2, 0.02f);
    }
    std::vector<float> scales(elements / 32);
    std::vector<float> mins(elements / 32);
    std::vector<uint8_t> quants(elements / 2);
    ASSERT_TRUE(ToQ4Min(type, src, {scales, mins, quants}).ok());
    const std::vector<float> expected = Decode(type, src);
    for (size_t e = 0; e < elements; ++e) {
      const size_t b = e / 32;
      const int quant = (quants[b * 16 + e % 16] >> (e % 32 < 16 ? 0 : 4)) & 15;
      EXPECT_EQ(scales[b] * static_cast<float>(quant) - mins[b], expected[e]) << e;
    }
  }
}

TEST(QuantsTest, WrongSizesAndTypesAreRefused) {
  std::vector<float> values(32);
  std::vector<uint8_t> bytes(34);
  EXPECT_TRUE(Dequantize(GgmlType::kQ8_0, bytes, values).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Dequantize(GgmlType::kQ4_0, bytes, values)));
  EXPECT_TRUE(absl::IsInvalidArgument(Dequantize(GgmlType::kIQ2_XS, bytes, values)));
  EXPECT_TRUE(absl::IsInvalidArgument(Dequantize(static_cast<GgmlType>(4), bytes, values)));
  EXPECT_TRUE(absl::IsInvalidArgument(Quantize(GgmlType::kQ4_K, values, bytes)));
  EXPECT_TRUE(absl::IsInvalidArgument(RowBytes(GgmlType::kQ8_0, 31).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(RowBytes(GgmlType::kQ8_0, -32).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(RowBytes(GgmlType::kI64, INT64_MAX).status()));
  EXPECT_EQ(RowBytes(GgmlType::kQ4_K, 512).value(), 288u);
}

}  // namespace
}  // namespace withy::engine
