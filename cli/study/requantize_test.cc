#include "cli/study/requantize.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/model/synth.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using engine::GgmlType;
using ::testing::AllOf;
using ::testing::HasSubstr;

class RequantizeTest : public ::testing::Test {
 protected:
  RequantizeTest() { std::filesystem::create_directories(directory_); }
  ~RequantizeTest() override { std::filesystem::remove_all(directory_); }
  std::string Path(const std::string& name) const { return directory_ + "/" + name; }

  const std::string directory_ =
      ::testing::TempDir() + "/withy_requantize_" + std::to_string(getpid());
};

std::vector<float> Values(const engine::GgufFile& file, const engine::TensorInfo& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  EXPECT_TRUE(engine::Dequantize(tensor.type, file.Data(tensor), values).ok());
  return values;
}

TEST_F(RequantizeTest, MatricesGetTheTypeAndKeepTheirValues) {
  engine::SynthShape shape = *engine::FindSynthShape("tiny");
  shape.levels = {50};
  ASSERT_TRUE(engine::WriteSynthModel(shape, GgmlType::kF32, 1, Path("a.gguf")).ok());
  ASSERT_TRUE(Requantize(Path("a.gguf"), GgmlType::kQ8_0, Path("b.gguf")).ok());
  const auto from = engine::GgufFile::Open(Path("a.gguf"));
  const auto to = engine::GgufFile::Open(Path("b.gguf"));
  ASSERT_TRUE(from.ok() && to.ok());
  EXPECT_EQ(*to->GetString("general.architecture"), *from->GetString("general.architecture"));
  size_t matrices = 0;
  for (const engine::TensorInfo& tensor : from->tensors()) {
    const engine::TensorInfo* written = to->FindTensor(tensor.name);
    if (tensor.name.starts_with("withy.")) {
      EXPECT_EQ(written, nullptr) << "no levels: " << tensor.name;
      continue;
    }
    ASSERT_NE(written, nullptr) << tensor.name;
    EXPECT_EQ(written->dims, tensor.dims);
    if (tensor.dims.size() < 2) {
      EXPECT_EQ(written->type, tensor.type) << tensor.name;
      continue;
    }
    ++matrices;
    ASSERT_EQ(written->type, GgmlType::kQ8_0) << tensor.name;
    const std::vector<float> a = Values(*from, tensor), b = Values(*to, *written);
    float largest = 0;
    for (const float value : a) largest = std::max(largest, std::abs(value));
    // Half a step of 127, and the rounding of the scale to half precision.
    const float error = largest * (0.5f / 127 + 1.0f / 2048);
    for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], error) << tensor.name;
  }
  EXPECT_GT(matrices, 10u);
}

TEST_F(RequantizeTest, WhatCannotBeWrittenIsNamed) {
  EXPECT_EQ(*FindWritableType("q4_1"), GgmlType::kQ4_1);
  const auto none = FindWritableType("q4_k");
  EXPECT_THAT(std::string(none.status().message()),
              AllOf(HasSubstr("q4_k"), HasSubstr("f16"), HasSubstr("q4_0")));
  EXPECT_EQ(Requantize(Path("none.gguf"), GgmlType::kF16, Path("b.gguf")).code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace withy::cli
