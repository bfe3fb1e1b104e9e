// The executor for GPUs, in the runner, against the executor for CPUs: all weight types, levels, KV
// formats, key biases, trees, streamed weights; and that no kernel does what a GPU must not.
#include "engine/cuda/executor.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/testing.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

constexpr double kLeastCosine = 0.999;

// Cosine between the logits of two rows, each less its mean.
double Cosine(std::span<const float> a, std::span<const float> b) {
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

// Least cosine over rows [.., vocab].
double LeastCosine(std::span<const float> a, std::span<const float> b, int32_t vocab) {
  double least = 1;
  const auto width = static_cast<size_t>(vocab);
  for (size_t at = 0; at < a.size(); at += width) {
    least = std::min(least, Cosine(a.subspan(at, width), b.subspan(at, width)));
  }
  return least;
}

class CudaExecutorTest : public testing::Test {
 protected:
  std::pair<std::unique_ptr<Model>, std::unique_ptr<Model>> OpenBoth(const std::string& path,
                                                                     ModelOptions options = {}) {
    std::unique_ptr<Model> cpu = OpenTiny(folder_, path, options);
    options.device = "cuda-on-cpu";
    return {std::move(cpu), OpenTiny(folder_, path, options)};
  }

  TestFolder folder_;
};

TEST_F(CudaExecutorTest, AgreesWithTheCpuForEveryWeightType) {
  const std::vector<int32_t> tokens = SomeTokens(24, TinyShape().vocab_size);
  for (const char* name : {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"}) {
    const auto type = FindSynthType(name);
    ASSERT_TRUE(type.ok()) << type.status();
    const auto [cpu, gpu] = OpenBoth(WriteTiny(folder_, TinyShape(), *type, std::string(name)));
    EXPECT_EQ(gpu->target(), "cuda-on-cpu");
    const std::vector<float> expected =
        RunRows(*cpu, ScratchKv(cpu->info(), 32), PlainRows(tokens));
    const std::vector<float> got = RunRows(*gpu, ScratchKv(gpu->info(), 32), PlainRows(tokens));
    EXPECT_GE(LeastCosine(expected, got, TinyShape().vocab_size), kLeastCosine) << name;
  }
}

}  // namespace
}  // namespace withy::engine
