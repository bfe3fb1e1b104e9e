// For tests: writes a model in parts, as gguf-split of llama.cpp does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "gtest/gtest.h"

namespace withy::engine {

// The keys of one part.
struct SplitKeys {
  uint16_t index = 0;
  uint16_t count = 0;
  int32_t tensors = 0;  // of all parts
};

// Writes the tensors [begin, end) of `file` as a part; the first one gets the model's metadata.
inline void WritePart(const GgufFile& file, const SplitKeys& keys, size_t begin, size_t end,
                      const std::string& path) {
  GgufWriter writer;
  if (keys.index == 0) writer.CopyMetadata(file);
  writer.Set<uint16_t>(kGgufSplitIndex, keys.index);
  writer.Set<uint16_t>(kGgufSplitCount, keys.count);
  writer.Set<int32_t>(kGgufSplitTensors, keys.tensors);
  for (size_t i = begin; i < end; ++i) {
    const TensorInfo& tensor = file.tensors()[i];
    writer.AddTensor(tensor.name, tensor.type, tensor.dims, file.Data(tensor));
  }
  const absl::Status written = writer.Write(path);
  EXPECT_TRUE(written.ok()) << written;
}

// Writes STEM-00001-of-0000N.gguf and on; returns their paths.
inline std::vector<std::string> WriteSplit(const GgufFile& file, const std::string& stem,
                                           uint16_t parts) {
  const size_t tensors = file.tensors().size();
  std::vector<std::string> paths;
  for (uint16_t i = 0; i < parts; ++i) {
    paths.push_back(absl::StrFormat("%s-%05d-of-%05d.gguf", stem, i + 1, parts));
    WritePart(file, {i, parts, static_cast<int32_t>(tensors)}, tensors * i / parts,
              tensors * (i + 1u) / parts, paths.back());
  }
  return paths;
}

}  // namespace withy::engine
