// Compares the engine with hidden states and logits that a reference computed for small random
// models of every architecture, on every kernel target of this CPU, and those that GPUs compute in
// every weight type, too. The reference is transformers (make_goldens.py).
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "engine/cuda/gpu/open_gpu.h"
#include "engine/gguf/quants.h"
#include "engine/gguf/reader.h"
#include "engine/gguf/writer.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "engine/model/testing.h"
#include "engine/sampling/likeness.h"
#include "gtest/gtest.h"
#include "serving/embedding/text_embedder.h"
#include "tests/golden/testing.h"

namespace withy::engine {
namespace {

namespace fs = std::filesystem;

constexpr char kData[] = "tests/golden/data/";
// Models that only the CPU computes.
constexpr std::array<const char*, 13> kOfCpu = {
    "smollm3", "granite",  "olmo2", "mistral",    "phi3", "gemma2", "gemma3",
    "gemma3n", "qwen3moe", "olmoe", "granitemoe", "gpt2", "gpt-oss"};

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

std::string TestName(std::string model) {
  std::replace(model.begin(), model.end(), '-', '_');
  return model;
}

// Of the distributions that two rows of logits give.
double KlDivergence(std::span<const float> want, std::span<const float> got) {
  const auto log_sum = [](std::span<const float> row) {
    double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<double>(logit));
    return std::log(sum);
  };
  const double of_want = log_sum(want);
  const double of_got = log_sum(got);
  double divergence = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double p = static_cast<double>(want[i]) - of_want;
    divergence += std::exp(p) * (p - static_cast<double>(got[i]) + of_got);
  }
  return divergence;
}

std::vector<int32_t> Tokens(const GgufFile& golden) {
  const TensorInfo* info = golden.FindTensor("tokens");
  EXPECT_NE(info, nullptr);
  std::vector<int32_t> tokens(static_cast<size_t>(info->elements()));
  std::memcpy(tokens.data(), golden.Data(*info).data(), tokens.size() * sizeof(int32_t));
  return tokens;
}

// Writes the model with its matrices in `type`.
void Convert(const GgufFile& base, GgmlType type, const std::string& path) {
  GgufWriter writer;
  writer.CopyMetadata(base);
  std::vector<std::vector<uint8_t>> data(base.tensors().size());
  for (size_t i = 0; i < data.size(); ++i) {
    const TensorInfo& tensor = base.tensors()[i];
    const bool vector = tensor.dims.size() == 1 || tensor.name.ends_with(".bias");
    const GgmlType to = vector ? GgmlType::kF32 : type;
    const std::vector<float> values = Floats(base, tensor.name);
    data[i].resize(*RowBytes(to, tensor.elements()));
    EXPECT_TRUE(Quantize(to, values, data[i]).ok());
    writer.AddTensor(tensor.name, to, tensor.dims, data[i]);
  }
  EXPECT_TRUE(writer.Write(path).ok());
}

class GoldenTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / ("golden_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // The file of the case.
  std::string ModelPath(const Case& c) {
    if (c.type == GgmlType::kQ4_1) return kData + c.model + ".q4_1.gguf";
    if (c.type == GgmlType::kMXFP4) return kData + c.model + ".gguf";
    auto base = GgufFile::Open(kData + c.model + ".gguf");
    EXPECT_TRUE(base.ok()) << base.status();
    if (!base.ok()) return "";
    std::string path = folder_ / "model.gguf";
    Convert(*base, c.type, path);
    return path;
  }

  fs::path folder_;
};

TEST_P(GoldenTest, HiddenStatesAndLogitsMatchTheReference) {
  const Case& c = GetParam();
  auto golden = GgufFile::Open(kData + c.model + ".golden.gguf");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const std::string path = ModelPath(c);
  const std::vector<int32_t> tokens = Tokens(*golden);
  const bool of_cpu = std::find(kOfCpu.begin(), kOfCpu.end(), c.model) != kOfCpu.end();
  for (const std::string& target : TestTargets()) {
    if (of_cpu && target == "cuda-on-cpu") continue;
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
    const std::vector<float> logits = RunRows(**model, kv, PlainRows(tokens));

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

// The vector that the reference's last hidden states give behind the final norm, which is exact; a
// norm with a bias is LayerNorm.
std::vector<float> ReferenceVector(const GgufFile& model, std::span<const float> hidden) {
  const std::vector<float> norm = Floats(model, "output_norm.weight");
  const bool layer_norm = model.FindTensor("output_norm.bias") != nullptr;
  const size_t width = norm.size();
  const std::vector<float> bias =
      layer_norm ? Floats(model, "output_norm.bias") : std::vector<float>(width);
  std::vector<float> sum(width);
  for (size_t row = 0; row + width <= hidden.size(); row += width) {
    const std::span<const float> state = hidden.subspan(row, width);
    const double total = std::accumulate(state.begin(), state.end(), 0.0);
    const double mean = layer_norm ? total / static_cast<double>(width) : 0;
    double squares = 0;
    for (const float x : state) squares += (x - mean) * (x - mean);
    const double rms = std::sqrt(squares / static_cast<double>(width) + 1e-5);  // make_goldens.py's
    for (size_t i = 0; i < width; ++i)
      sum[i] += static_cast<float>((state[i] - mean) / rms) * norm[i] + bias[i];
  }
  return sum;
}

TEST_P(GoldenTest, VectorsOfTextsMatchTheReference) {
  const Case& c = GetParam();
  auto golden = GgufFile::Open(kData + c.model + ".golden.gguf");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const std::string path = ModelPath(c);
  auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<int32_t> tokens = Tokens(*golden);
  const bool of_cpu = std::find(kOfCpu.begin(), kOfCpu.end(), c.model) != kOfCpu.end();
  for (const std::string& target : TestTargets()) {
    if (of_cpu && target == "cuda-on-cpu") continue;
    ModelOptions options;
    options.threads = 2;
    UseTarget(target, &options);
    options.cache_dir = folder_;
    auto model = Model::Open(path, options);
    ASSERT_TRUE(model.ok()) << model.status();
    auto embedder = serving::TextEmbedder::Create(**model, {tokens, {tokens.front()}}, 1 << 20);
    ASSERT_TRUE(embedder.ok()) << embedder.status();
    while (!(*embedder)->finished()) ASSERT_TRUE((*embedder)->Run(nullptr).ok());
    const std::vector<serving::TextVector> vectors = (*embedder)->TakeVectors();
    ASSERT_EQ(vectors.size(), 2u);
    const std::string last = c.golden + ".hidden." + std::to_string((*model)->info().layers - 1);
    const std::vector<float> hidden = Floats(*golden, last);
    EXPECT_GT(Cosine(vectors[0].values, ReferenceVector(*file, hidden)), c.min_cosine) << target;
    const auto first = std::span(hidden).first(vectors[1].values.size());
    EXPECT_GT(Cosine(vectors[1].values, ReferenceVector(*file, first)), 1 - 10 * (1 - c.min_cosine))
        << target;
  }
}

// How far the logits of some rows are from those of a reference.
struct Distance {
  int other_tokens = 0;   // rows whose most likely token is another
  double divergence = 0;  // the largest
};

Distance DistanceOf(std::span<const float> want, std::span<const float> got, size_t vocabulary) {
  Distance distance;
  for (size_t at = 0; at + vocabulary <= want.size(); at += vocabulary) {
    const auto row = want.subspan(at, vocabulary);
    const auto ours = got.subspan(at, vocabulary);
    distance.other_tokens += std::max_element(row.begin(), row.end()) - row.begin() !=
                             std::max_element(ours.begin(), ours.end()) - ours.begin();
    distance.divergence = std::max(distance.divergence, KlDivergence(row, ours));
  }
  return distance;
}

class ArchitectureTest : public testing::TestWithParam<const char*> {};

// With KV at 16 bits, what remains is rounding.
TEST_P(ArchitectureTest, LogitsAreTheReferences) {
  const std::string name = GetParam();
  auto golden = GgufFile::Open(kData + name + ".golden.gguf");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const std::vector<int32_t> tokens = Tokens(*golden);
  const std::vector<float> want = Floats(*golden, "f.logits");
  const float largest = *std::max_element(want.begin(), want.end());
  const TestFolder folder;
  const std::string path = folder / "f16.gguf";  // experts of gpt-oss have fewer bits
  Convert(*GgufFile::Open(kData + name + ".gguf"), GgmlType::kF16, path);
  for (const Target target : SupportedTargets()) {
    ModelOptions options;
    options.target = KernelsFor(target)->name;
    const auto model = OpenTiny(folder, path, options);
    ASSERT_NE(model, nullptr);
    const ScratchKv kv(model->info(), static_cast<int32_t>(tokens.size()), KvFormat::kF16);
    const std::vector<float> got = RunRows(*model, kv, PlainRows(tokens));
    ASSERT_EQ(got.size(), want.size());
    const Distance distance = DistanceOf(want, got, static_cast<size_t>(model->info().vocab_size));
    EXPECT_EQ(distance.other_tokens, 0) << "on " << options.target;
    EXPECT_LT(distance.divergence, 1e-5) << options.target;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-3f * largest) << "on " << options.target << ", logit " << i;
    }
  }
}

// As published: experts in MXFP4, whose inputs are rounded to 8 bits.
TEST(GptOssTest, LogitsOfExpertsInFourBitsAreTheReferences) {
  auto golden = GgufFile::Open(std::string(kData) + "gpt-oss.golden.gguf");
  ASSERT_TRUE(golden.ok()) << golden.status();
  const std::vector<int32_t> tokens = Tokens(*golden);
  const std::vector<float> want = Floats(*golden, "f.logits");
  const TestFolder folder;
  for (const Target target : SupportedTargets()) {
    ModelOptions options;
    options.target = KernelsFor(target)->name;
    const auto model = OpenTiny(folder, std::string(kData) + "gpt-oss.gguf", options);
    ASSERT_NE(model, nullptr);
    const ScratchKv kv(model->info(), static_cast<int32_t>(tokens.size()));
    const std::vector<float> got = RunRows(*model, kv, PlainRows(tokens));
    ASSERT_EQ(got.size(), want.size());
    const Distance distance = DistanceOf(want, got, static_cast<size_t>(model->info().vocab_size));
    EXPECT_EQ(distance.other_tokens, 0) << "on " << options.target;
    EXPECT_LT(distance.divergence, 1e-3) << options.target;
  }
}

TEST_P(ArchitectureTest, RowsAreIndependent) {
  const std::string name = GetParam();
  const TestFolder folder;
  const auto model = OpenTiny(folder, kData + name + ".gguf");
  ASSERT_NE(model, nullptr);
  const auto vocabulary = static_cast<size_t>(model->info().vocab_size);
  const std::vector<int32_t> tokens = SomeTokens(100, model->info().vocab_size);
  const ScratchKv whole(model->info(), 100);
  const std::vector<float> want = RunRows(*model, whole, PlainRows(tokens));
  const ScratchKv cut(model->info(), 100);
  for (size_t first = 0; first < tokens.size();) {
    const size_t count = std::min(first % 23 + 1, tokens.size() - first);
    const std::vector<float> got =
        RunRows(*model, cut,
                PlainRows(std::span(tokens).subspan(first, count), static_cast<int32_t>(first)));
    ASSERT_EQ(0,
              std::memcmp(got.data(), want.data() + first * vocabulary, got.size() * sizeof(float)))
        << "from " << first;
    first += count;
  }
}

#ifdef WITHY_CUDA_ON_CPU
TEST_P(ArchitectureTest, AGpuRefusesItByName) {
  const TestFolder folder;
  ModelOptions options;
  options.cache_dir = folder.path();
  options.threads = 2;
  UseTarget("cuda-on-cpu", &options);
  const auto model = Model::Open(kData + std::string(GetParam()) + ".gguf", options);
  EXPECT_EQ(model.status().code(), absl::StatusCode::kUnimplemented);
  const std::string message(model.status().message());
  EXPECT_NE(message.find("is not computed on GPUs: set device to cpu or auto"), std::string::npos)
      << message;
}

TEST_P(ArchitectureTest, AnyDeviceIsTheCpu) {
  const TestFolder folder;
  std::string said;
  ModelOptions options;
  options.cache_dir = folder.path();
  options.threads = 2;
  options.device = "auto";
  options.open_gpu = [](int32_t) { return cuda::OpenGpuOnCpu(); };
  options.on_device = [&said](std::string_view line) { said = line; };
  const auto model = Model::Open(kData + std::string(GetParam()) + ".gguf", options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->target(), DefaultKernels().name);
  EXPECT_NE(said.find("the model is computed on the CPU: "), std::string::npos) << said;
}
#endif

INSTANTIATE_TEST_SUITE_P(Models, ArchitectureTest, testing::ValuesIn(kOfCpu),
                         [](const auto& tested) { return TestName(tested.param); });

std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (const char* model : {"llama_gqa", "llama_mha_tied", "qwen2", "qwen3"}) {
    cases.push_back({model, GgmlType::kF32, "f", 0.9999});
    cases.push_back({model, GgmlType::kF16, "f", 0.9999});
    cases.push_back({model, GgmlType::kBF16, "f", 0.9999});
    cases.push_back({model, GgmlType::kQ8_0, "q8_0", 0.999});
    cases.push_back({model, GgmlType::kQ4_0, "q4_0", 0.999});
  }
  for (const char* model : kOfCpu) {
    cases.push_back({model, GgmlType::kF32, "f", 0.9999});
    cases.push_back({model, GgmlType::kF16, "f", 0.9999});
  }
  cases.push_back({"qwen3moe", GgmlType::kQ8_0, "q8_0", 0.999});
  cases.push_back({"qwen3moe", GgmlType::kQ4_0, "q4_0", 0.999});
  cases.push_back({"llama_gqa", GgmlType::kQ4_1, "q4_1", 0.999});
  cases.push_back({"gpt-oss", GgmlType::kMXFP4, "f", 0.999});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, testing::ValuesIn(AllCases()), [](const auto& tested) {
  return TestName(tested.param.model) + "_" + std::string(TypeName(tested.param.type));
});

}  // namespace
}  // namespace withy::engine
