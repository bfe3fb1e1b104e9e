#include "engine/gguf/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace withy::engine {
namespace {

using testing::HasSubstr;

// Builds raw files, including invalid ones.
class Raw {
 public:
  template <typename T>
  Raw& Put(T value) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    bytes_.insert(bytes_.end(), bytes, bytes + sizeof(T));
    return *this;
  }
  Raw& Text(std::string_view text) {
    Put<uint64_t>(text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
    return *this;
  }
  Raw& Header(uint64_t tensors, uint64_t entries, uint32_t version = 3) {
    return Put(kGgufMagic).Put(version).Put(tensors).Put(entries);
  }
  Raw& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
              uint64_t offset) {
    Text(name).Put<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t dim : dims) Put(dim);
    return Put(type).Put(offset);
  }
  Raw& Uint32(std::string_view key, uint32_t value) {
    return Text(key).Put<uint32_t>(4).Put(value);
  }
  Raw& Pad(size_t alignment, size_t extra) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment + extra);
    return *this;
  }
  const std::vector<uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<uint8_t> bytes_;
};

absl::Status Parse(const Raw& raw) { return GgufFile::FromBytes(raw.bytes(), "x.gguf").status(); }

void ExpectRefused(const Raw& raw, const std::string& message) {
  const absl::Status status = Parse(raw);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  EXPECT_THAT(std::string(status.message()), HasSubstr("x.gguf: "));
}

Raw Valid() {
  Raw raw;
  raw.Header(2, 3).Uint32("a.count", 7);
  raw.Text("a.names").Put<uint32_t>(9).Put<uint32_t>(8).Put<uint64_t>(2).Text("x").Text("yz");
  raw.Text("a.name").Put<uint32_t>(8).Text("pocket");
  raw.Tensor("w", {32, 3}, 8, 0).Tensor("b", {4}, 0, 128);
  return raw.Pad(32, 128 + 16);
}

// A file of the same form with a second GGUF after its data.
Raw WithOwnTensors(uint64_t where = 128, std::string_view name = "withy.a") {
  Raw raw;
  raw.Header(1, 1).Text("withy.tensors").Put<uint32_t>(10).Put<uint64_t>(where);
  raw.Tensor("w", {4}, 0, 0).Pad(128, 0);
  return raw.Header(1, 0).Tensor(name, {8}, 0, 0).Pad(32, 32);
}

TEST(ReaderTest, ReadsBothVersions) {
  for (const uint32_t version : {2u, 3u}) {
    Raw raw;
    raw.Header(0, 1, version).Uint32("a", 5);
    const auto file = GgufFile::FromBytes(raw.bytes(), "x.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(file->version(), version);
    EXPECT_EQ(file->GetUint("a").value(), 5u);
  }
  Raw old;
  ExpectRefused(old.Header(0, 0, 1), "has GGUF version 1");
  Raw swapped;
  ExpectRefused(swapped.Header(0, 0, 0x03000000), "big-endian");
}

TEST(ReaderTest, FindsTensorsAndMetadata) {
  const Raw raw = Valid();
  const auto file = GgufFile::FromBytes(raw.bytes(), "x.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorInfo* w = file->GetTensor("w").value();
  EXPECT_EQ(w->type, GgmlType::kQ8_0);
  EXPECT_EQ(w->bytes, 3u * 34);
  EXPECT_EQ(w->cols(), 32);
  EXPECT_EQ(w->rows(), 3);
  const TensorInfo* b = file->GetTensor("b").value();
  EXPECT_EQ(b->offset, w->offset + 128);
  EXPECT_EQ(file->Data(*b).size(), 16u);
  EXPECT_EQ(file->GetStringArray("a.names").value(), (std::vector<std::string_view>{"x", "yz"}));
}

TEST(ReaderTest, GettersNameTheKey) {
  const Raw raw = Valid();
  const GgufFile file = GgufFile::FromBytes(raw.bytes(), "x.gguf").value();
  EXPECT_TRUE(absl::IsNotFound(file.GetUint("a.none").status()));
  EXPECT_THAT(std::string(file.GetUint("a.none").status().message()), HasSubstr("\"a.none\""));
  EXPECT_THAT(std::string(file.GetString("a.count").status().message()),
              HasSubstr("x.gguf: metadata key \"a.count\" is uint32, expected string"));
  EXPECT_TRUE(absl::IsInvalidArgument(file.GetUint("a.name").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(file.GetIntArray("a.names").status()));
  EXPECT_EQ(file.GetUintOr("a.none", 3).value(), 3u);
  EXPECT_EQ(file.GetUintOr("a.count", 3).value(), 7u);
  EXPECT_TRUE(absl::IsInvalidArgument(file.GetUintOr("a.name", 3).status()));
}

TEST(ReaderTest, EveryTruncationIsRefused) {
  for (const std::vector<uint8_t>& bytes : {Valid().bytes(), WithOwnTensors().bytes()}) {
    for (size_t length = 0; length < bytes.size(); ++length) {
      // An exact copy, so that a sanitizer detects reads past the end.
      const std::vector<uint8_t> cut(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(length));
      EXPECT_TRUE(absl::IsInvalidArgument(GgufFile::FromBytes(cut, "x.gguf").status())) << length;
    }
  }
}

TEST(ReaderTest, HostileCountsAreRefusedBeforeTheyAreUsed) {
  Raw entries;
  ExpectRefused(entries.Header(0, UINT64_MAX), "metadata entries");
  Raw tensors;
  ExpectRefused(tensors.Header(UINT64_MAX, 0), "tensors");
  Raw key;
  ExpectRefused(key.Header(0, 1).Put<uint64_t>(UINT64_MAX).Pad(64, 0), "limit 65535");
  Raw array;
  array.Header(0, 1).Text("a").Put<uint32_t>(9).Put<uint32_t>(10).Put<uint64_t>(uint64_t{1} << 61);
  ExpectRefused(array.Pad(64, 0), "array elements");
  Raw strings;
  strings.Header(0, 1).Text("a").Put<uint32_t>(9).Put<uint32_t>(8).Put<uint64_t>(uint64_t{1} << 40);
  ExpectRefused(strings.Pad(64, 0), "strings");
  Raw text;
  ExpectRefused(text.Header(0, 1).Text("a").Put<uint32_t>(8).Put<uint64_t>(1000).Pad(64, 0),
                "truncated");
}

TEST(ReaderTest, UnknownAndNestedTypesAreRefused) {
  Raw value;
  ExpectRefused(value.Header(0, 1).Text("a").Put<uint32_t>(13).Pad(64, 64),
                "unknown value type 13");
  Raw nested;
  nested.Header(0, 1).Text("a").Put<uint32_t>(9).Put<uint32_t>(9).Put<uint64_t>(1);
  ExpectRefused(nested.Pad(64, 64), "array of arrays");
  Raw element;
  element.Header(0, 1).Text("a").Put<uint32_t>(9).Put<uint32_t>(99).Put<uint64_t>(1);
  ExpectRefused(element.Pad(64, 64), "unknown element type 99");
}

TEST(ReaderTest, TensorsOfUnknownTypesReachToTheNextOne) {
  Raw raw;
  raw.Header(3, 0).Tensor("a", {32}, 139, 0).Tensor("b", {8}, 0, 64).Tensor("c", {3}, 4, 96);
  const Raw padded = raw.Pad(32, 160);
  const auto file = GgufFile::FromBytes(padded.bytes(), "x.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->FindTensor("a")->bytes, 64u);
  EXPECT_EQ(file->FindTensor("c")->bytes, 64u);
  EXPECT_EQ(TypeLabel(file->FindTensor("a")->type), "IQ4_K (number 139, of ik_llama.cpp)");
  EXPECT_THAT(TypeLabel(file->FindTensor("c")->type), HasSubstr("Q4_2 (number 4"));
  EXPECT_EQ(TypeLabel(static_cast<GgmlType>(1000)), "number 1000 (unknown)");
  Raw outside;
  ExpectRefused(outside.Header(1, 0).Tensor("a", {32}, 139, 4096).Pad(32, 64), "offset 4096");
}

TEST(ReaderTest, BadTensorsAreRefused) {
  const auto tensor = [](const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset) {
    Raw raw;
    return raw.Header(1, 0).Tensor("w", dims, type, offset).Pad(32, 64);
  };
  EXPECT_TRUE(Parse(tensor({16}, 0, 0)).ok());
  EXPECT_TRUE(Parse(tensor({8}, 0, 32)).ok());
  ExpectRefused(tensor({}, 0, 0), "has 0 dimensions");
  ExpectRefused(tensor({1, 1, 1, 1, 1}, 0, 0), "has 5 dimensions");
  ExpectRefused(tensor({0}, 0, 0), "dimension 0 of 0");
  ExpectRefused(tensor({uint64_t{1} << 40, uint64_t{1} << 40}, 0, 0), "dimension 1");
  ExpectRefused(tensor({UINT64_MAX}, 0, 0), "dimension 0");
  ExpectRefused(tensor({31}, 8, 0), "not a multiple of 32");
  ExpectRefused(tensor({16}, 0, 32), "truncated download");
  ExpectRefused(tensor({17}, 0, 0), "truncated download");
  ExpectRefused(tensor({1}, 0, 4), "not a multiple of the alignment");
  ExpectRefused(tensor({8}, 0, UINT64_MAX - 31), "truncated download");
  Raw twice;
  twice.Header(2, 0).Tensor("w", {1}, 0, 0).Tensor("w", {1}, 0, 0);
  ExpectRefused(twice.Pad(32, 64), "occurs twice");
}

TEST(ReaderTest, OwnTensorsStandAmongTheOthers) {
  const Raw raw = WithOwnTensors();
  const auto file = GgufFile::FromBytes(raw.bytes(), "x.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 2u);
  const TensorInfo* own = file->GetTensor("withy.a").value();
  EXPECT_EQ(own->offset + own->bytes, raw.bytes().size());
  EXPECT_EQ(own->cols(), 8);
  ExpectRefused(WithOwnTensors(120), "withy.tensors is 120; it must be a multiple of 32");
  ExpectRefused(WithOwnTensors(4096), "truncated download");
  ExpectRefused(WithOwnTensors(96), "withy.tensors at 96: is not a GGUF file");
  ExpectRefused(WithOwnTensors(128, "w"), "\"w\" occurs twice");
  Raw text;
  ExpectRefused(text.Header(0, 1).Text("withy.tensors").Put<uint32_t>(8).Text("x"), "is string");
}

TEST(ReaderTest, BadMetadataIsRefused) {
  Raw twice;
  ExpectRefused(twice.Header(0, 2).Uint32("a", 1).Uint32("a", 2), "\"a\" occurs twice");
  for (const uint32_t alignment : {0u, 1u, 24u, 1u << 31}) {
    Raw raw;
    ExpectRefused(raw.Header(0, 1).Uint32("general.alignment", alignment), "general.alignment");
  }
  Raw magic;
  ExpectRefused(magic.Put<uint32_t>(0x12345678).Pad(64, 0), "is not a GGUF file");
  Raw unprintable;
  ExpectRefused(unprintable.Header(0, 1).Text("\n\x01").Put<uint32_t>(77).Pad(64, 64), "\\n\\x01");
}

TEST(ReaderTest, RandomDamageNeverCrashes) {
  const std::vector<uint8_t> files[] = {Valid().bytes(), WithOwnTensors().bytes()};
  std::mt19937 random(17);
  for (int round = 0; round < 40000; ++round) {
    std::vector<uint8_t> damaged = files[round % 2];
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int i = 0; i < changes; ++i)
      damaged[random() % damaged.size()] = static_cast<uint8_t>(random());
    const auto file = GgufFile::FromBytes(damaged, "x.gguf");
    if (!file.ok()) continue;
    for (const TensorInfo& tensor : file->tensors()) {
      EXPECT_LE(tensor.offset + tensor.bytes, damaged.size());
    }
    for (const MetadataEntry& entry : file->metadata()) {
      (void)file->GetStringArray(entry.key);
      (void)file->GetIntArray(entry.key);
    }
  }
}

TEST(ReaderTest, OpenSaysWhatIsWrongWithTheFile) {
  EXPECT_TRUE(absl::IsNotFound(GgufFile::Open("/nonexistent/a.gguf").status()));
  EXPECT_THAT(std::string(GgufFile::Open("/nonexistent/a.gguf").status().message()),
              HasSubstr("/nonexistent/a.gguf"));
  EXPECT_TRUE(absl::IsInvalidArgument(GgufFile::Open("/tmp").status()));
  const std::string pipe = testing::TempDir() + "gguf_reader_pipe_" + std::to_string(getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(GgufFile::Open(pipe).status()));
  std::filesystem::remove(pipe);
  const std::string path = testing::TempDir() + "gguf_reader_" + std::to_string(getpid()) + ".gguf";
  const std::vector<uint8_t> bytes = Valid().bytes();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  GgufFile moved = *std::move(file);
  EXPECT_EQ(moved.GetUint("a.count").value(), 7u);
  EXPECT_TRUE(moved.GetTensor("w").ok());
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace withy::engine
