// Helpers of the model's tests: a temporary folder, tiny models, rows.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/cpu/kernels.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "engine/model/synth.h"
#include "gtest/gtest.h"

namespace withy::engine {

// A temporary folder, removed with the object.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = testing::TempDir() + "withy_model_XXXXXX";
    path_ = mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ / name; }
  std::string path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// The tiny shape: 3 layers, 8 query heads on 2 KV heads.
inline SynthShape TinyShape() { return *FindSynthShape("tiny"); }

inline std::string WriteTiny(const TestFolder& folder, const SynthShape& shape, GgmlType type,
                             const std::string& name = "model.gguf") {
  const absl::Status status = WriteSynthModel(shape, type, 7, folder / name);
  EXPECT_TRUE(status.ok()) << status;
  return folder / name;
}

// Where nothing else is said, the device that WITHY_TEST_DEVICE names computes: so a test also runs
// with CUDA's kernels.
inline std::unique_ptr<Model> OpenTiny(const TestFolder& folder, const std::string& path,
                                       ModelOptions options = {}) {
  options.cache_dir = folder.path();
  const char* const device = std::getenv("WITHY_TEST_DEVICE");
  if (device != nullptr && options.device.empty() && options.target.empty()) {
    options.device = device;
  }
  if (options.threads == 0) options.threads = 2;
  auto model = Model::Open(path, options);
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *std::move(model) : nullptr;
}

// The device of tests of GPUs: the runner, or the card that $WITHY_TEST_GPU names.
inline std::string TestGpu() {
  const char* const gpu = std::getenv("WITHY_TEST_GPU");
  return gpu == nullptr ? "cuda-on-cpu" : gpu;
}

// Names of what can compute here: the kernel targets of this CPU, and "cuda-on-cpu" where the test
// links it.
inline std::vector<std::string> TestTargets() {
  std::vector<std::string> names;
  for (const Target target : SupportedTargets()) names.emplace_back(KernelsFor(target)->name);
#ifdef WITHY_CUDA_ON_CPU
  names.emplace_back("cuda-on-cpu");
#endif
  return names;
}

// Lets one of TestTargets() compute.
inline void UseTarget(const std::string& name, ModelOptions* options) {
  if (name == "cuda-on-cpu") {
    options->device = TestGpu();
  } else {
    options->target = name;
  }
}

inline std::vector<int32_t> SomeTokens(int32_t count, int32_t vocab, uint32_t seed = 1) {
  std::vector<int32_t> tokens;
  for (uint32_t i = 0; i < static_cast<uint32_t>(count); ++i) {
    seed = seed * 1664525u + 1013904223u;
    tokens.push_back(static_cast<int32_t>(seed >> 8) % vocab);
  }
  return tokens;
}

// Plain rows that all want logits.
inline std::vector<Row> PlainRows(std::span<const int32_t> tokens, int32_t first = 0,
                                  int32_t context = 0) {
  std::vector<Row> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int32_t position = first + static_cast<int32_t>(i);
    rows.push_back({.token = tokens[i],
                    .position = position,
                    .slot = position,
                    .context = context,
                    .want_logits = true});
  }
  return rows;
}

// Logits of `rows` over one context's KV; [rows that want them, vocab].
inline std::vector<float> RunRows(Model& model, const ScratchKv& kv, std::span<const Row> rows) {
  size_t wanted = 0;
  for (const Row& row : rows) wanted += row.want_logits ? 1 : 0;
  std::vector<float> logits(wanted * static_cast<size_t>(model.info().vocab_size));
  const ContextView view = kv.View();
  const absl::Status status = model.Forward({.rows = rows, .contexts = {&view, 1}}, logits.data());
  EXPECT_TRUE(status.ok()) << status;
  return logits;
}

// Cosine between the logits of two rows, each less its mean.
inline double RowLikeness(std::span<const float> a, std::span<const float> b) {
  double mean_a = 0;
  double mean_b = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    mean_a += a[i];
    mean_b += b[i];
  }
  mean_a /= static_cast<double>(a.size());
  mean_b /= static_cast<double>(b.size());
  double ab = 0;
  double aa = 0;
  double bb = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += (a[i] - mean_a) * (b[i] - mean_b);
    aa += (a[i] - mean_a) * (a[i] - mean_a);
    bb += (b[i] - mean_b) * (b[i] - mean_b);
  }
  return ab / std::sqrt(aa * bb);
}

}  // namespace withy::engine
