#include "engine/encoder/safetensors.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "engine/encoder/testing.h"
#include "gmock/gmock.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

std::vector<uint8_t> File(const std::string& header, size_t data_bytes) {
  std::vector<uint8_t> bytes(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  std::copy(header.begin(), header.end(), bytes.begin() + 8);
  return bytes;
}

std::string Entry(const std::string& type, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + type + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

std::string OpenError(const std::string& header, size_t data_bytes) {
  const std::vector<uint8_t> bytes = File(header, data_bytes);
  return std::string(SafetensorsFile::FromBytes(bytes, "m.safetensors").status().message());
}

TEST(SafetensorsTest, ReadsEveryFloatType) {
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a":)" + Entry("F32", "[2]", "[0,8]") + R"(,"b":)" +
      Entry("F16", "[1,2]", "[8,12]") + R"(,"c":)" + Entry("BF16", "[2]", "[12,16]") + R"(,"d":)" +
      Entry("F64", "[]", "[16,24]") + R"(,"e":)" + Entry("I64", "[1]", "[24,32]") + R"(,"f":)" +
      Entry("F32", "[0,4]", "[32,32]") + "}";
  std::vector<uint8_t> bytes = File(header, 0);
  const float floats[2] = {1.5f, -2};
  const uint16_t halves[2] = {0x3C00, 0xC000};
  const uint16_t brains[2] = {0x3F80, 0xC000};
  const double wide = 0.25;
  const auto append = [&](const void* data, size_t n) {
    bytes.insert(bytes.end(), static_cast<const uint8_t*>(data),
                 static_cast<const uint8_t*>(data) + n);
  };
  append(floats, 8);
  append(halves, 4);
  append(brains, 4);
  append(&wide, 8);
  append(&wide, 8);
  auto file = SafetensorsFile::FromBytes(bytes, "m.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 6u);
  std::vector<float> pair(2);
  ASSERT_TRUE(file->Read("a", pair).ok());
  EXPECT_THAT(pair, testing::ElementsAre(1.5f, -2));
  ASSERT_TRUE(file->Read("b", pair).ok());
  EXPECT_THAT(pair, testing::ElementsAre(1, -2));
  ASSERT_TRUE(file->Read("c", pair).ok());
  EXPECT_THAT(pair, testing::ElementsAre(1, -2));
  float one = 0;
  ASSERT_TRUE(file->Read("d", {&one, 1}).ok());
  EXPECT_EQ(one, 0.25f);
  EXPECT_THAT(std::string(file->Read("e", {&one, 1}).message()),
              HasSubstr("tensor e is I64; save the model as F32, F16 or BF16"));
  EXPECT_THAT(std::string(file->Read("a", {&one, 1}).message()), HasSubstr("has 2 values"));
  EXPECT_EQ(file->Read("g", pair).code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsTest, HostileHeadersAreNamed) {
  const std::vector<uint8_t> tiny(7);
  EXPECT_THAT(std::string(SafetensorsFile::FromBytes(tiny, "t").status().message()),
              HasSubstr("t: has 7 bytes"));
  std::vector<uint8_t> huge(16, 0xFF);
  EXPECT_THAT(std::string(SafetensorsFile::FromBytes(huge, "t").status().message()),
              HasSubstr("header length is 18446744073709551615, limit 8"));
  EXPECT_THAT(OpenError("[]", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(OpenError("{\"a\":", 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(OpenError(std::string(100000, '['), 0), HasSubstr("not a JSON object"));
  EXPECT_THAT(OpenError(R"({"a":3})", 0), HasSubstr("tensor a is not an object"));
  EXPECT_THAT(OpenError(R"({"a":{"shape":[1],"data_offsets":[0,4]}})", 4), HasSubstr("no dtype"));
  const auto error = [](const std::string& entry) { return OpenError("{\"a\":" + entry + "}", 8); };
  EXPECT_THAT(error(Entry("F32", "2", "[0,8]")), HasSubstr("tensor a has no shape array"));
  EXPECT_THAT(error(Entry("F32", "[-2]", "[0,8]")),
              HasSubstr("a dimension that is not an integer"));
  EXPECT_THAT(error(Entry("F32", "[2.0]", "[0,8]")),
              HasSubstr("a dimension that is not an integer"));
  EXPECT_THAT(error(Entry("F32", "[2]", "[0]")), HasSubstr("no pair of data_offsets"));
  EXPECT_THAT(error(Entry("F32", "[2]", "[8,0]")), HasSubstr("do not lie in order within"));
  EXPECT_THAT(error(Entry("F32", "[3]", "[0,12]")), HasSubstr("within the file's 8 bytes"));
  EXPECT_THAT(error(Entry("F32", "[2]", "[-8,0]")), HasSubstr("do not lie in order within"));
  EXPECT_THAT(error(Entry("F32", "[3]", "[0,8]")), HasSubstr("takes 8 bytes, which"));
  EXPECT_THAT(error(Entry("F99", "[2]", "[0,8]")), HasSubstr("of type \"F99\""));
  // Sizes whose product overflows to 8 bytes, and to 0.
  EXPECT_THAT(error(Entry("F32", "[4611686018427387904,2]", "[0,0]")), HasSubstr("which type and"));
  EXPECT_THAT(error(Entry("U8", "[4611686018427387904,4]", "[0,0]")), HasSubstr("which type and"));
  EXPECT_THAT(OpenError("{\"a\":" + Entry("F32", "[2]", "[0,8]") +
                            ",\"b\":" + Entry("F32", "[1]", "[4,8]") + "}",
                        8),
              HasSubstr("two tensors share byte 4"));
}

TEST(SafetensorsTest, AnyBytesAreAccepted) {
  const std::vector<uint8_t> good = File(
      "{\"a\":" + Entry("F32", "[2]", "[0,8]") + ",\"b\":" + Entry("F16", "[1,2]", "[8,12]") + "}",
      12);
  std::mt19937 random(4);
  for (int round = 0; round < 20000; ++round) {
    std::vector<uint8_t> bad = good;
    for (unsigned change = 0; change <= random() % 3; ++change) {
      bad[random() % bad.size()] = static_cast<uint8_t>(random());
    }
    if (round % 5 == 0) bad.resize(random() % bad.size());
    auto file = SafetensorsFile::FromBytes(bad, "bad");
    if (!file.ok()) continue;
    for (const auto& [name, tensor] : file->tensors()) {
      ASSERT_LE(tensor.offset + tensor.bytes, bad.size());
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      (void)file->Read(name, values);
    }
  }
}

TEST(SafetensorsTest, OpensFilesFromDisk) {
  auto file = SafetensorsFile::Open("tests/golden/data/mobilebert_plain/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_NE(file->Find("embeddings.word_embeddings.weight"), nullptr);
  EXPECT_EQ(SafetensorsFile::Open("none.safetensors").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(SafetensorsFile::Open("tests").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace withy::engine
