// What the golden tests share.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"

namespace withy::engine {

// A tensor's numbers; empty, and a failure, if the file has no such tensor.
inline std::vector<float> Floats(const GgufFile& file, const std::string& tensor) {
  const TensorInfo* info = file.FindTensor(tensor);
  EXPECT_NE(info, nullptr) << tensor;
  if (info == nullptr) return {};
  std::vector<float> values(static_cast<size_t>(info->elements()));
  EXPECT_TRUE(Dequantize(info->type, file.Data(*info), values).ok());
  return values;
}

}  // namespace withy::engine
