#include "engine/gguf/foreign_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "engine/gguf/reader.h"

namespace withy::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string Refusal(const std::string& content) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(content.data());
  const absl::Status status = GgufFile::FromBytes({bytes, content.size()}, "x.gguf").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

TEST(ForeignFileTest, EachFormatIsNamedWithARemedy) {
  const std::string header = R"({"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}})";
  std::string safetensors(8, '\0');
  safetensors[0] = static_cast<char>(header.size());
  safetensors += header + "xx";
  std::string tar(512, '\0');
  tar.replace(0, 7, "a.gguf\0", 7);
  tar.replace(257, 5, "ustar");
  const std::vector<std::pair<std::string, std::vector<std::string>>> files = {
      {safetensors, {"safetensors", "convert_hf_to_gguf.py"}},
      {std::string("PK\x03\x04\x00\x00", 6), {"PyTorch", "convert_hf_to_gguf.py"}},
      {std::string("\x80\x02\x8a\x0a", 4), {"pickle", "convert_hf_to_gguf.py"}},
      {std::string("tjgg\x03\x00\x00\x00", 8), {"GGJT", "take a GGUF file"}},
      {std::string("lmgg\x00\x7d\x00\x00", 8), {"GGML", "take a GGUF file"}},
      {std::string("algg\x01\x00\x00\x00", 8), {"adapter", "merge"}},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
       {"Git LFS pointer", "git lfs pull"}},
      {"\r\n<!DOCTYPE HTML><title>401</title>", {"web page", "/resolve/main/"}},
      {"<HTML><body>", {"web page", "download"}},
      {R"({"error":"Repository not found"})", {"JSON", "download"}},
      {"Entry not found", {"a text", "download"}},
      {std::string(64, '\0'), {"zeros", "do it again"}},
      {std::string("\x1f\x8b\x08\x00", 4), {"gzip", "unpack"}},
      {tar, {"tar archive", "unpack"}},
      {"WITHYPK\n", {"packed file of withy"}},
      {std::string("\x01\x02\x03\x04", 4), {"does not begin with \"GGUF\""}},
      {"GG", {"a text"}},
  };
  for (const auto& [content, expected] : files) {
    const std::string message = Refusal(content);
    EXPECT_THAT(message, HasSubstr("x.gguf: is not a GGUF file"));
    for (const std::string& part : expected) EXPECT_THAT(message, HasSubstr(part));
  }
}

TEST(ForeignFileTest, AnyBytesAreDescribedInPlainText) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    std::vector<uint8_t> bytes(random() % 600);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random() % (1u << (random() % 9)));
    const std::string text = DescribeForeignFile(bytes);
    EXPECT_THAT(text, AllOf(HasSubstr("it "), HasSubstr(": ")));
    EXPECT_EQ(ValidUtf8(text), text);
  }
}

}  // namespace
}  // namespace withy::engine
