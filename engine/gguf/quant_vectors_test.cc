// Every type against the values that the package gguf decodes (tests/golden/make_quant_vectors.py),
// and against sizes that do not fit.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "engine/gguf/quants.h"

namespace withy::engine {
namespace {

constexpr char kVectors[] = "tests/golden/data/quants/";

constexpr GgmlType kWithVectors[] = {
    GgmlType::kQ4_0,   GgmlType::kQ4_1,   GgmlType::kQ5_0,  GgmlType::kQ5_1,  GgmlType::kQ8_0,
    GgmlType::kQ2_K,   GgmlType::kQ3_K,   GgmlType::kQ4_K,  GgmlType::kQ5_K,  GgmlType::kQ6_K,
    GgmlType::kIQ4_NL, GgmlType::kIQ4_XS, GgmlType::kMXFP4, GgmlType::kTQ1_0, GgmlType::kTQ2_0};
constexpr GgmlType kInBytes[] = {GgmlType::kQ8_0,  GgmlType::kQ5_0,   GgmlType::kQ3_K,
                                 GgmlType::kQ8_K,  GgmlType::kIQ4_NL, GgmlType::kIQ4_XS,
                                 GgmlType::kMXFP4, GgmlType::kTQ1_0,  GgmlType::kTQ2_0};

class QuantVectorsTest : public testing::TestWithParam<GgmlType> {};

TEST_P(QuantVectorsTest, DecodesToTheReferenceBitForBit) {
  const GgmlTypeTraits& traits = *FindTypeTraits(GetParam());
  std::ifstream in(kVectors + std::string(traits.name) + ".bin", std::ios::binary);
  const std::vector<char> file{std::istreambuf_iterator<char>(in), {}};
  const size_t one = traits.block_bytes + traits.block_elements * sizeof(float);
  ASSERT_GT(file.size(), 0u);
  ASSERT_EQ(file.size() % one, 0u);
  const size_t bytes = file.size() / one * traits.block_bytes;
  const auto* blocks = reinterpret_cast<const uint8_t*>(file.data());
  std::vector<float> expected(file.size() / one * traits.block_elements);
  std::memcpy(expected.data(), file.data() + bytes, expected.size() * sizeof(float));
  std::vector<float> values(expected.size());
  const absl::Status status = Dequantize(GetParam(), {blocks, bytes}, values);
  ASSERT_TRUE(status.ok()) << status;
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], expected[i]) << "element " << i;
}

INSTANTIATE_TEST_SUITE_P(Types, QuantVectorsTest, testing::ValuesIn(kWithVectors),
                         [](const auto& param) { return std::string(TypeName(param.param)); });

// Q8_K is not in files that the package writes: a float scale and bytes.
TEST(QuantSplitTest, Q8_KIsAScaleAndBytes) {
  std::vector<uint8_t> block(292);
  const float scale = 0.37f;
  std::memcpy(block.data(), &scale, sizeof(scale));
  for (size_t i = 0; i < 256; ++i) block[4 + i] = static_cast<uint8_t>(i);
  std::vector<float> values(256);
  ASSERT_TRUE(Dequantize(GgmlType::kQ8_K, block, values).ok());
  for (int i = 0; i < 256; ++i) {
    EXPECT_EQ(values[static_cast<size_t>(i)],
              scale * static_cast<float>(static_cast<int8_t>(static_cast<uint8_t>(i))));
  }
}

TEST(QuantSplitTest, ToQ8GivesTheSameValues) {
  for (const GgmlType type : kInBytes) {
    const GgmlTypeTraits& traits = *FindTypeTraits(type);
    constexpr size_t kElements = 1024;
    for (uint32_t seed = 0; seed < 50; ++seed) {
      std::mt19937 random(seed);
      std::vector<uint8_t> src(kElements / traits.block_elements * traits.block_bytes);
      for (uint8_t& byte : src) byte = static_cast<uint8_t>(random() & 0x7B);  // finite scales
      std::vector<float> values(kElements);
      std::vector<float> scales(kElements / 32);
      std::vector<int8_t> quants(kElements);
      ASSERT_TRUE(Dequantize(type, src, values).ok());
      ASSERT_TRUE(ToQ8(type, src, {.scales = scales, .quants = quants}).ok());
      for (size_t i = 0; i < kElements; ++i) {
        ASSERT_EQ(scales[i / 32] * static_cast<float>(quants[i]), values[i])
            << TypeName(type) << ", seed " << seed << ", element " << i;
      }
    }
  }
}

// Whatever the sizes are, a conversion either fits them or is refused by the type's name.
TEST(QuantSplitTest, SizesThatDoNotFitAreRefused) {
  std::mt19937 random(9);
  for (const GgmlType type : kWithVectors) {
    const GgmlTypeTraits& traits = *FindTypeTraits(type);
    for (int round = 0; round < 300; ++round) {
      const std::vector<uint8_t> src(random() % (3 * traits.block_bytes));
      std::vector<float> values(random() % (3 * traits.block_elements));
      const absl::Status status = Dequantize(type, src, values);
      const bool fits = values.size() % traits.block_elements == 0 &&
                        src.size() == values.size() / traits.block_elements * traits.block_bytes;
      ASSERT_EQ(status.ok(), fits) << TypeName(type) << " " << src.size() << " " << values.size();
      if (fits) continue;
      EXPECT_NE(status.message().find(std::string(traits.name)), absl::string_view::npos) << status;
    }
  }
  std::vector<float> scales(3);
  std::vector<int8_t> quants(128);
  const std::vector<uint8_t> src(4 * 18);
  EXPECT_FALSE(ToQ8(GgmlType::kIQ4_NL, src, {.scales = scales, .quants = quants}).ok());
  EXPECT_FALSE(ToQ8(GgmlType::kQ6_K, src, {.scales = scales, .quants = quants}).ok());
}

}  // namespace
}  // namespace withy::engine
