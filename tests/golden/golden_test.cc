// Compares the engine with hidden states and logits that transformers computed for small random
// models, in every weight type it can quantise to, on every kernel target of this CPU.
// make_goldens.py makes the files.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "engine/model/testing.h"
#include "engine/sampling/likeness.h"
#include "gtest/gtest.h"
#include "tests/golden/testing.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;

constexpr char kData[] = "tests/golden/data/";

// One comparison: a model's weights in `type` against the outputs named `golden`.
struct Case {
  std::string model;
  GgmlType type;
  std::string golden;
  double min_cosine;
};

// The smallest cosine over rows, so that one bad token is not hidden by good ones.
double WorstRowCosine(std::span<const float> a, std::span<const float> b, size_t width) {
  double worst = 1;
  for (size_t i = 0; i + width <= a.size(); i += width) {
    worst = std::min(worst, Cosine(a.subspan(i, width), b.subspan(i, width)));
  }
  return worst;
}

class GoldenTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("golden_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // The model with its matrices in `type`.
  std::string Convert(const GgufFile& base, GgmlType type) {
    GgufWriter writer;
    writer.CopyMetadata(base);
    std::vector<std::vector<uint8_t>> data(base.tensors().size());
    for (size_t i = 0; i < data.size(); ++i) {
      const TensorInfo& tensor = base.tensors()[i];
      const GgmlType to = tensor.dims.size() == 1 ? GgmlType::kF32 : type;
      const std::vector<float> values = Floats(base, tensor.name);
      data[i].resize(*RowBytes(to, tensor.elements()));
      EXPECT_TRUE(Quantize(to, values, data[i]).ok());
      writer.AddTensor(tensor.name, to, tensor.dims, data[i]);
    }
    std::string path = folder_ / "model.gguf";
    EXPECT_TRUE(writer.Write(path).ok());
    return path;
  }

  fs::path folder_;
};

TEST_P(GoldenTest, HiddenStatesAndLogitsMatchTheReference) {
  const Case& c = GetParam();
  auto golden = GgufFile::Open(kData + c.model + ".golden.gguf");
  ASSERT_TRUE(golden.ok()) << golden.status();
  std::string path = kData + c.model + ".q4_1.gguf";
  if (c.type != GgmlType::kQ4_1) {
    auto base = GgufFile::Open(kData + c.model + ".gguf");
    ASSERT_TRUE(base.ok()) << base.status();
    path = Convert(*base, c.type);
  }
  const TensorInfo* token_info = golden->FindTensor("tokens");
  ASSERT_NE(token_info, nullptr);
  std::vector<int32_t> tokens(static_cast<size_t>(token_info->elements()));
  std::memcpy(tokens.data(), golden->Data(*token_info).data(), tokens.size() * sizeof(int32_t));

  for (const std::string& target : TestTargets()) {
    std::map<int32_t, std::vector<float>> hidden;
    ModelOptions options;
    options.threads = 2;
    UseTarget(target, &options);
    options.cache_dir = folder_;
    options.hooks.layer_tap = [&](int32_t layer, std::span<const float> values) {
      hidden[layer].assign(values.begin(), values.end());
    };
    auto model = Model::Open(path, options);
    ASSERT_TRUE(model.ok()) << model.status();
    const ModelInfo& info = (*model)->info();
    const ScratchKv kv(info, static_cast<int32_t>(tokens.size()));
    std::vector<Row> rows;
    rows.reserve(tokens.size());
    for (int32_t i = 0; i < static_cast<int32_t>(tokens.size()); ++i) {
      rows.push_back(
          {.token = tokens[static_cast<size_t>(i)], .position = i, .slot = i, .want_logits = true});
    }
    const ContextView view = kv.View();
    std::vector<float> logits(rows.size() * static_cast<size_t>(info.vocab_size));
    const absl::Status status =
        (*model)->Forward({.rows = rows, .contexts = {&view, 1}}, logits.data());
    ASSERT_TRUE(status.ok()) << status;

    const auto compare = [&](const std::string& name, std::span<const float> ours, size_t width) {
      const std::vector<float> reference = Floats(*golden, c.golden + "." + name);
      ASSERT_EQ(ours.size(), reference.size()) << name;
      EXPECT_GT(Cosine(ours, reference), c.min_cosine) << name << " on " << target;
      // A single row shows the full error of the quantised KV and activations.
      EXPECT_GT(WorstRowCosine(ours, reference, width), 1 - 10 * (1 - c.min_cosine))
          << name << " on " << target;
    };
    for (const auto& [layer, values] : hidden) {
      compare("hidden." + std::to_string(layer), values, static_cast<size_t>(info.d_model));
    }
    EXPECT_EQ(hidden.size(), static_cast<size_t>(info.layers));
    compare("logits", logits, static_cast<size_t>(info.vocab_size));
  }
}

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const char* model : {"llama_gqa", "llama_mha_tied", "qwen2", "qwen3"}) {
    cases.push_back({model, GgmlType::kF32, "f", 0.9999});
    cases.push_back({model, GgmlType::kF16, "f", 0.9999});
    cases.push_back({model, GgmlType::kBF16, "f", 0.9999});
    cases.push_back({model, GgmlType::kQ8_0, "q8_0", 0.999});
    cases.push_back({model, GgmlType::kQ4_0, "q4_0", 0.999});
  }
  cases.push_back({"llama_gqa", GgmlType::kQ4_1, "q4_1", 0.999});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, testing::ValuesIn(AllCases()), [](const auto& tested) {
  return tested.param.model + "_" + std::string(TypeName(tested.param.type));
});

}  // namespace
}  // namespace withy::engine
