// The executor for GPUs, in the runner, against the executor for CPUs: all weight types, levels, KV
// formats, key biases, trees, streamed weights; and that no kernel does what a GPU must not.
#include "engine/cuda/executor.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/cuda/gpu/self_check.h"
#include "engine/cuda/on_cpu/gpu_on_cpu.h"
#include "engine/model/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using on_cpu::GpuOnCpu;
using testing::HasSubstr;

constexpr double kLeastCosine = 0.999;

// Least cosine over rows [.., vocab].
double LeastCosine(std::span<const float> a, std::span<const float> b, int32_t vocab) {
  double least = 1;
  const auto width = static_cast<size_t>(vocab);
  for (size_t at = 0; at < a.size(); at += width) {
    least = std::min(least, RowLikeness(a.subspan(at, width), b.subspan(at, width)));
  }
  return least;
}

class CudaExecutorTest : public testing::Test {
 protected:
  std::pair<std::unique_ptr<Model>, std::unique_ptr<Model>> OpenBoth(const std::string& path,
                                                                     ModelOptions options = {}) {
    std::unique_ptr<Model> cpu = OpenTiny(folder_, path, options);
    options.device = TestGpu();
    return {std::move(cpu), OpenTiny(folder_, path, options)};
  }

  TestFolder folder_;
};

TEST_F(CudaExecutorTest, AgreesWithTheCpuForEveryWeightType) {
  const std::vector<int32_t> tokens = SomeTokens(24, TinyShape().vocab_size);
  for (const char* name : {"f32", "f16", "bf16", "q8_0", "q4_0"}) {
    const auto type = FindSynthType(name);
    ASSERT_TRUE(type.ok()) << type.status();
    const auto [cpu, gpu] = OpenBoth(WriteTiny(folder_, TinyShape(), *type, std::string(name)));
    EXPECT_TRUE(gpu->target().starts_with("cuda")) << gpu->target();
    const std::vector<float> expected =
        RunRows(*cpu, ScratchKv(cpu->info(), 32), PlainRows(tokens));
    const std::vector<float> got = RunRows(*gpu, ScratchKv(gpu->info(), 32), PlainRows(tokens));
    EXPECT_GE(LeastCosine(expected, got, TinyShape().vocab_size), kLeastCosine) << name;
  }
}

// Rows of every level and LoRA, also such that a layer leaves attention or its MLP out.
TEST_F(CudaExecutorTest, AgreesWithTheCpuAtEveryLevel) {
  SynthShape shape = TinyShape();
  shape.levels = {15, 40, 70};
  const auto [cpu, gpu] = OpenBoth(WriteTiny(folder_, shape, GgmlType::kQ8_0));
  ASSERT_EQ(gpu->info().levels.size(), 4u);
  const std::vector<int32_t> tokens = SomeTokens(20, shape.vocab_size);
  for (int32_t level = 0; level < 4; ++level) {
    std::vector<Row> rows = PlainRows(tokens);
    for (Row& row : rows) row.level = level;
    const std::vector<float> expected = RunRows(*cpu, ScratchKv(cpu->info(), 32), rows);
    const std::vector<float> got = RunRows(*gpu, ScratchKv(gpu->info(), 32), rows);
    EXPECT_GE(LeastCosine(expected, got, shape.vocab_size), kLeastCosine) << "level " << level;
  }
}

// Both read the same KV, in every format and mixture, with more than one run of keys.
TEST_F(CudaExecutorTest, ReadsEveryKvFormat) {
  using enum KvFormat;
  constexpr int32_t kPrefix = 288;
  const auto [cpu, gpu] = OpenBoth(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0));
  const int32_t vocab = cpu->info().vocab_size;
  const std::vector<int32_t> tokens = SomeTokens(kPrefix + 4, vocab);
  const std::vector<Row> rest = PlainRows(std::span(tokens).subspan(kPrefix), kPrefix);
  for (const std::vector<KvFormat>& formats :
       {std::vector{kQ8}, {kQ4}, {kQ2}, {kQ4Q2}, {kQ8, kQ4, kQ2, kQ4Q2}}) {
    ScratchKv kv(cpu->info(), kPrefix + 16);
    ASSERT_TRUE(Prefill(*cpu, kv, std::span(tokens).first(kPrefix), 0, nullptr).ok());
    for (int32_t chunk = 0; chunk < kPrefix / 16; ++chunk) {
      const KvFormat format = formats[static_cast<size_t>(chunk) % formats.size()];
      if (format != kQ8) kv.Encode(chunk, format);
    }
    const std::vector<float> expected = RunRows(*cpu, kv, rest);
    const std::vector<float> got = RunRows(*gpu, kv, rest);
    EXPECT_GE(LeastCosine(expected, got, vocab), kLeastCosine)
        << formats.size() << " formats from " << KvFormatName(formats[0]);
  }
  // 16 bits are written, too.
  const ScratchKv halves(cpu->info(), kPrefix + 16, kF16);
  const ScratchKv of_gpu(cpu->info(), kPrefix + 16, kF16);
  ASSERT_TRUE(Prefill(*cpu, halves, std::span(tokens).first(kPrefix), 0, nullptr).ok());
  ASSERT_TRUE(Prefill(*gpu, of_gpu, std::span(tokens).first(kPrefix), 0, nullptr).ok());
  const std::vector<float> expected = RunRows(*cpu, halves, rest);
  EXPECT_GE(LeastCosine(expected, RunRows(*gpu, of_gpu, rest), vocab), kLeastCosine);
}

// Large key biases (qwen2), which attention adds; norms of heads (qwen3); heads that are no power
// of two.
TEST_F(CudaExecutorTest, AgreesWithTheCpuForOtherShapes) {
  SynthShape biased = TinyShape();
  biased.architecture = "qwen2";
  biased.key_bias = 60.0f;
  biased.key_bias_dims = 6;
  SynthShape narrow = TinyShape();
  narrow.kv_heads = narrow.heads;
  SynthShape odd = TinyShape();
  odd.heads = odd.kv_heads = 3;
  odd.head_dim = 96;
  SynthShape normed = TinyShape();
  normed.architecture = "qwen3";
  const std::vector<int32_t> tokens = SomeTokens(40, biased.vocab_size);
  int number = 0;
  for (const SynthShape& shape : {biased, narrow, odd, normed}) {
    const std::string name = "shape" + std::to_string(number++);
    const auto [cpu, gpu] = OpenBoth(WriteTiny(folder_, shape, GgmlType::kQ8_0, name));
    ASSERT_NE(gpu, nullptr);
    const std::vector<float> expected =
        RunRows(*cpu, ScratchKv(cpu->info(), 48), PlainRows(tokens));
    const std::vector<float> got = RunRows(*gpu, ScratchKv(gpu->info(), 48), PlainRows(tokens));
    EXPECT_GE(LeastCosine(expected, got, shape.vocab_size), kLeastCosine) << name;
  }
}

// dp4a and the matrix units give the same bits.
TEST_F(CudaExecutorTest, ProductPathsAreEqual) {
  const std::vector<int32_t> tokens = SomeTokens(13, TinyShape().vocab_size);
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0}) {
    const std::string path =
        WriteTiny(folder_, TinyShape(), type, "paths" + std::to_string(static_cast<int>(type)));
    std::vector<std::vector<float>> logits;
    for (const int32_t rows : {1, 1000}) {
      ModelOptions options;
      options.device = TestGpu();
      options.matrix_unit_rows = rows;
      const auto model = OpenTiny(folder_, path, options);
      logits.push_back(RunRows(*model, ScratchKv(model->info(), 16), PlainRows(tokens)));
    }
    EXPECT_EQ(logits[0], logits[1]);
  }
}

// Prefill, decoding and a tree, of rows of two levels with LoRA, over KV of several formats.
std::vector<float> RunEverything(Model& model) {
  const int32_t vocab = model.info().vocab_size;
  const std::vector<int32_t> tokens = SomeTokens(40, vocab);
  ScratchKv kv(model.info(), 64);
  std::vector<float> all;
  const auto run = [&](std::span<const Row> rows) {
    const std::vector<float> logits = RunRows(model, kv, rows);
    all.insert(all.end(), logits.begin(), logits.end());
  };
  std::vector<Row> rows = PlainRows(std::span(tokens).first(34));
  for (size_t i = 0; i < rows.size(); ++i) rows[i].want_logits = i % 7 == 0;
  run(rows);
  kv.Encode(0, KvFormat::kQ4Q2);
  kv.Encode(1, KvFormat::kQ4);
  rows = PlainRows(std::span(tokens).subspan(34, 2), 34);
  rows[1].level = 0;
  run(std::span(rows).first(1));
  run(std::span(rows).last(1));
  const std::vector<int32_t> ancestors = {40};
  run(std::vector<Row>{{.token = tokens[37], .position = 36, .slot = 40, .want_logits = true},
                       {.token = tokens[38],
                        .position = 37,
                        .slot = 51,
                        .want_logits = true,
                        .ancestor_slots = ancestors},
                       {.token = tokens[39],
                        .position = 37,
                        .slot = 44,
                        .want_logits = true,
                        .ancestor_slots = ancestors}});
  return all;
}

// Decode steps are played as graphs, of any number of rows and over the borders of what the sizes
// of their lists are rounded to; they give the bits of a prefill.
TEST_F(CudaExecutorTest, StepsArePlayedAsGraphs) {
  SynthShape shape = TinyShape();
  shape.layers = 2;
  const std::string path = WriteTiny(folder_, shape, GgmlType::kQ8_0);
  GpuOnCpu* gpu = nullptr;
  ModelOptions options;
  options.device = "cuda";
  options.max_piece_rows = 100;  // the prefill is no graph
  options.open_gpu = [&](int32_t) {
    auto made = std::make_unique<GpuOnCpu>();
    gpu = made.get();
    return made;
  };
  const auto model = OpenTiny(folder_, path, options);
  constexpr int32_t kCount = 270;  // more than a run of attention
  const std::vector<int32_t> tokens = SomeTokens(kCount, shape.vocab_size);
  const std::vector<float> expected =
      RunRows(*model, ScratchKv(model->info(), kCount), PlainRows(tokens));
  const ScratchKv kv(model->info(), kCount);
  std::vector<float> got;
  int32_t steps = 0;
  for (int32_t at = 0; at < kCount; ++steps) {
    const int32_t rows = std::min(kCount - at, 1 + steps / 8 % 3);
    const auto some = std::span(tokens).subspan(static_cast<size_t>(at), static_cast<size_t>(rows));
    const std::vector<float> logits = RunRows(*model, kv, PlainRows(some, at));
    got.insert(got.end(), logits.begin(), logits.end());
    at += rows;
  }
  EXPECT_EQ(got, expected);
  EXPECT_GE(gpu->queue().played(), static_cast<uint64_t>(steps) * 3 / 4) << steps << " steps";
}

// No kernel races, diverges or leaves its memory, and the order of blocks and threads changes
// nothing.
TEST_F(CudaExecutorTest, KernelsAreRightInEveryOrder) {
  SynthShape shape = TinyShape();
  shape.layers = 2;
  shape.d_model = shape.d_ff = 128;
  shape.heads = 4;
  shape.kv_heads = 1;
  shape.vocab_size = 320;
  shape.levels = {60};
  const std::string path = WriteTiny(folder_, shape, GgmlType::kQ4_0);
  std::vector<float> expected;
  for (const on_cpu::Order order :
       {on_cpu::Order::kForward, on_cpu::Order::kReverse, on_cpu::Order::kRandom}) {
    GpuOnCpu* gpu = nullptr;
    ModelOptions options;
    options.device = "cuda";
    options.open_gpu = [&](int32_t) {
      auto made = std::make_unique<GpuOnCpu>(
          on_cpu::RunnerOptions{.order = order, .seed = 9, .checks = true});
      gpu = made.get();
      return made;
    };
    const auto model = OpenTiny(folder_, path, options);
    ASSERT_NE(gpu, nullptr);
    const std::vector<float> logits = RunEverything(*model);
    EXPECT_TRUE(gpu->runner().watch().findings().empty())
        << on_cpu::Describe(gpu->runner().watch().findings().front());
    if (expected.empty()) expected = logits;
    EXPECT_EQ(logits, expected) << "order " << static_cast<int>(order);
  }
}

TEST_F(CudaExecutorTest, SelfCheckPassesAndFindsWrongKernels) {
  GpuOnCpu gpu;
  const absl::Status right = cuda::SelfCheck(gpu);
  EXPECT_TRUE(right.ok()) << right;
  // A card whose products lose their scales.
  class Broken final : public GpuOnCpu {
   public:
    Broken() : kernels_(GpuOnCpu::kernels()) {
      kernels_.repack = [](cuda::LaunchSink& stream, const cuda::PackedArgs& args) {
        cuda::PackedArgs wrong = args;
        wrong.blocks = 1;
        GpuOnCpu().kernels().repack(stream, wrong);
      };
    }
    const cuda::Kernels& kernels() const override { return kernels_; }

   private:
    cuda::Kernels kernels_;
  };
  Broken broken;
  const absl::Status wrong = cuda::SelfCheck(broken);
  EXPECT_EQ(wrong.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(wrong.ToString(), HasSubstr("model.device"));
}

// Without a GPU "auto" computes on the CPU and says why; "cuda" is an error that says the same.
TEST_F(CudaExecutorTest, AutoGoesOnWithoutGpu) {
  const std::string path = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  std::string told;
  ModelOptions options;
  options.cache_dir = folder_.path();
  options.threads = 1;
  options.on_device = [&told](std::string_view line) { told = line; };
  options.open_gpu = [](int32_t index) -> absl::StatusOr<std::unique_ptr<cuda::Gpu>> {
    return absl::NotFoundError("there is no GPU number " + std::to_string(index));
  };
  options.device = "auto";
  const auto model = Model::Open(path, options);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_NE((*model)->target(), "cuda");
  EXPECT_EQ(told, "the model is computed on the CPU: there is no GPU number 0");
  options.device = "cuda:3";
  const auto refused = Model::Open(path, options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(refused.status().ToString(),
              HasSubstr("device \"cuda:3\": there is no GPU number 3"));
  for (const char* name : {"gpu", "cuda:", "cuda:-1", "cuda:64", "cuda:1x", "CPU"}) {
    options.device = name;
    const auto unknown = Model::Open(path, options);
    EXPECT_EQ(unknown.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(unknown.status().ToString(), HasSubstr("auto, cpu, cuda"));
  }
}

// Memory that is unmapped after a pass is not touched by the next one.
TEST_F(CudaExecutorTest, ForgetsMemoryOfAPassThatIsOver) {
  const std::string path = WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0);
  GpuOnCpu* gpu = nullptr;
  ModelOptions options;
  options.device = "cuda";
  options.open_gpu = [&](int32_t) {
    auto made = std::make_unique<GpuOnCpu>();
    gpu = made.get();
    return made;
  };
  const auto model = OpenTiny(folder_, path, options);
  const ScratchKv kv(model->info(), 16);
  const size_t before = gpu->mapped();
  RunRows(*model, kv, PlainRows(SomeTokens(4, TinyShape().vocab_size)));
  EXPECT_EQ(gpu->mapped(), before);
  {  // given up half-way
    const std::vector<Row> rows = PlainRows(SomeTokens(4, TinyShape().vocab_size));
    const ContextView view = kv.View();
    std::vector<float> logits(4 * static_cast<size_t>(model->info().vocab_size));
    const auto pass = model->Begin({.rows = rows, .contexts = {&view, 1}}, logits.data());
    ASSERT_TRUE(pass.ok());
    EXPECT_FALSE((*pass)->Run(nullptr, 0.3));
    EXPECT_EQ(gpu->mapped(), before + 1);
  }
  EXPECT_EQ(gpu->mapped(), before);
}

// Copies of KV in memory of the GPU give the bits of KV in place: while a context grows, after its
// chunks were encoded and tokens copied by the host, with trees, and beside more contexts than
// there was room for at first.
TEST_F(CudaExecutorTest, CopiesOfKvGiveTheBitsOfKvInPlace) {
  SynthShape shape = TinyShape();
  shape.layers = 2;
  ModelOptions options;
  options.device = TestGpu();
  const auto model =
      OpenTiny(folder_, WriteTiny(folder_, shape, GgmlType::kQ8_0), std::move(options));
  const std::vector<int32_t> tokens = SomeTokens(80, shape.vocab_size);
  const auto run = [&](bool copied) {
    std::vector<float> all;
    ScratchKv kv(model->info(), 96);
    const auto add = [&](std::span<const Row> rows) {
      size_t wanted = 0;
      for (const Row& row : rows) wanted += row.want_logits ? 1 : 0;
      std::vector<float> logits(wanted * static_cast<size_t>(shape.vocab_size));
      ContextView view = kv.View();
      if (!copied) view.chunk_versions = {};
      EXPECT_TRUE(model->Forward({.rows = rows, .contexts = {&view, 1}}, logits.data()).ok());
      all.insert(all.end(), logits.begin(), logits.end());
    };
    add(PlainRows(std::span(tokens).first(33)));
    for (int32_t i = 33; i < 50; ++i)
      add(PlainRows(std::span(tokens).subspan(static_cast<size_t>(i), 1), i));
    kv.Encode(0, KvFormat::kQ4);
    kv.Encode(2, KvFormat::kQ4Q2);
    add(PlainRows(std::span(tokens).subspan(50, 1), 50));
    const std::vector<int32_t> ancestors = {60};
    add(std::vector<Row>{{.token = tokens[51], .position = 51, .slot = 60, .want_logits = true},
                         {.token = tokens[52],
                          .position = 52,
                          .slot = 75,
                          .want_logits = true,
                          .ancestor_slots = ancestors}});
    kv.Copy(60, 51);
    kv.Copy(75, 52);
    add(PlainRows(std::span(tokens).subspan(53, 2), 53));
    return all;
  };
  const std::vector<float> in_place = run(false);
  EXPECT_EQ(run(true), in_place);
  std::vector<ScratchKv> others;  // of more chunks than there is room for at first
  constexpr int32_t kTokens = 512;
  for (int i = 0; i < 10; ++i) {
    const ScratchKv& kv = others.emplace_back(model->info(), kTokens);
    RunRows(*model, kv, PlainRows(SomeTokens(1, shape.vocab_size), kTokens - 1));
  }
  EXPECT_EQ(run(true), in_place);
  EXPECT_EQ(run(false), in_place);
}

// Attention of chunks as the CPU's.
TEST_F(CudaExecutorTest, DensitiesAreThoseOfTheCpu) {
  const auto [cpu, gpu] = OpenBoth(WriteTiny(folder_, TinyShape(), GgmlType::kQ8_0));
  const std::vector<int32_t> tokens = SomeTokens(300, TinyShape().vocab_size);
  std::vector<std::vector<float>> densities;
  for (Model* model : {cpu.get(), gpu.get()}) {
    const ScratchKv kv(model->info(), 304);
    std::vector<float>& density = densities.emplace_back(19, 0.0f);
    std::vector<Row> rows = PlainRows(tokens);
    for (Row& row : rows) row.want_logits = false;
    rows.back().want_logits = true;
    std::vector<float> logits(static_cast<size_t>(model->info().vocab_size));
    ContextView view = kv.View();
    view.density = density;
    ASSERT_TRUE(model->Forward({.rows = rows, .contexts = {&view, 1}}, logits.data()).ok());
  }
  for (size_t chunk = 0; chunk < densities[0].size(); ++chunk) {
    EXPECT_NEAR(densities[1][chunk], densities[0][chunk], 0.01f * densities[0][chunk] + 0.05f)
        << "chunk " << chunk;
  }
}

}  // namespace
}  // namespace withy::engine
