#include "engine/encoder/encoder.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <random>

#include "engine/encoder/attention.h"
#include "engine/encoder/elementwise.h"
#include "engine/encoder/testing.h"
#include "engine/gguf/reader.h"
#include "gmock/gmock.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

std::vector<float> RandomFloats(std::mt19937& random, size_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// A simple softmax(q k' / sqrt(head_dim)) v. q, k, v: [rows, heads * head_dim].
std::vector<double> ReferenceAttention(const std::vector<float>& q, const std::vector<float>& k,
                                       const std::vector<float>& v, int rows, int heads,
                                       int head_dim) {
  const auto width = static_cast<size_t>(heads * head_dim);
  std::vector<double> out(q.size());
  for (size_t head = 0; head < width; head += static_cast<size_t>(head_dim)) {
    for (size_t i = 0; i < static_cast<size_t>(rows); ++i) {
      std::vector<double> p(static_cast<size_t>(rows));
      double sum = 0;
      for (size_t j = 0; j < p.size(); ++j) {
        double dot = 0;
        for (size_t d = head; d < head + static_cast<size_t>(head_dim); ++d) {
          dot += double{q[i * width + d]} * k[j * width + d];
        }
        p[j] = std::exp(dot / std::sqrt(head_dim));
        sum += p[j];
      }
      for (size_t j = 0; j < p.size(); ++j) {
        for (size_t d = head; d < head + static_cast<size_t>(head_dim); ++d) {
          out[i * width + d] += p[j] / sum * v[j * width + d];
        }
      }
    }
  }
  return out;
}

TEST(EncoderAttentionTest, MatchesThePlainFormulaForAnyShape) {
  std::mt19937 random(1);
  for (const Target target : SupportedTargets()) {
    AttentionMemory memory;  // reused, so that remains of one shape affect the next
    AttentionScratch scratch;
    for (const int head_dim : {8, 12, 16, 32, 40}) {
      for (const int rows : {1, 2, 15, 16, 17, 31, 33, 64, 71}) {
        constexpr int kHeads = 2;
        const int width = kHeads * head_dim;
        const auto n = static_cast<size_t>(rows * width);
        const std::vector<float> q = RandomFloats(random, n);
        const std::vector<float> k = RandomFloats(random, n);
        const std::vector<float> v = RandomFloats(random, n);
        const int window_rows[2] = {5, rows};
        memory.Reset(window_rows, 2, kHeads, head_dim);
        for (int first = 0; first < rows; first += 32) {
          memory.Pack(1, first, std::min(32, rows - first), &k[static_cast<size_t>(first * width)],
                      &v[static_cast<size_t>(first * width)], width);
        }
        std::vector<float> out(n, NAN);
        AttendWindow(*KernelsFor(target), memory, 1, rows, q.data(), width, &scratch, out.data(),
                     width);
        const std::vector<double> wanted = ReferenceAttention(q, k, v, rows, kHeads, head_dim);
        for (size_t i = 0; i < n; ++i) {
          ASSERT_NEAR(out[i], wanted[i], 2e-5)
              << KernelsFor(target)->name << " rows " << rows << " head_dim " << head_dim;
        }
      }
    }
  }
}

TEST(ElementwiseTest, NormsFollowTheirDefinition) {
  std::mt19937 random(2);
  for (const int n : {1, 3, 16, 33, 128}) {
    const auto size = static_cast<size_t>(n);
    const std::vector<float> x = RandomFloats(random, size);
    const std::vector<float> bias = RandomFloats(random, size);
    const std::vector<float> residual = RandomFloats(random, size);
    const std::vector<float> weight = RandomFloats(random, size);
    const std::vector<float> shift = RandomFloats(random, size);
    for (const EncoderNorm kind : {EncoderNorm::kNoNorm, EncoderNorm::kLayerNorm}) {
      std::vector<double> in(size);
      double mean = 0;
      double var = 0;
      for (size_t i = 0; i < size; ++i) in[i] = double{x[i]} + bias[i] + residual[i];
      for (const double value : in) mean += value / n;
      for (const double value : in) var += (value - mean) * (value - mean) / n;
      std::vector<float> y = x;
      AddAndNorm(bias.data(), residual.data(), {kind, 1e-5f, weight.data(), shift.data()}, n,
                 y.data());
      for (size_t i = 0; i < size; ++i) {
        const double normal =
            kind == EncoderNorm::kNoNorm ? in[i] : (in[i] - mean) / std::sqrt(var + 1e-5);
        EXPECT_NEAR(y[i], normal * weight[i] + shift[i], 1e-4) << n;
      }
    }
  }
}

class EncoderTest : public testing::Test {
 protected:
  std::unique_ptr<TlmWeights> Weights(const TlmCheckpoint& tlm, GgmlType type) {
    const TempFolder temp("encoder");
    const absl::Status written = WriteTlm(tlm, type, temp / "tlm.gguf");
    EXPECT_TRUE(written.ok()) << written;
    auto file = GgufFile::Open(temp / "tlm.gguf");
    EXPECT_TRUE(file.ok());
    auto weights = LoadTlmWeights(*file);
    EXPECT_TRUE(weights.ok()) << weights.status();
    return *std::move(weights);
  }

  static std::vector<int32_t> Window(unsigned seed, size_t tokens) {
    std::mt19937 random(seed);
    std::vector<int32_t> ids(tokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 30);
    return ids;
  }

  static EncoderOutput Run(const TlmWeights& weights, int threads, const Kernels& kernels,
                           const std::vector<std::vector<int32_t>>& windows) {
    ThreadPool pool(threads);
    Encoder encoder(weights, &pool, kernels);
    EncoderOutput out;
    const absl::Status status = encoder.Run(windows, &out);
    EXPECT_TRUE(status.ok()) << status;
    return out;
  }
};

TEST_F(EncoderTest, NeitherBatchNorThreadsChangeABit) {
  const std::vector<std::vector<int32_t>> windows = {Window(1, 5), Window(2, 64), Window(3, 33),
                                                     Window(4, 1), Window(5, 48)};
  for (const GgmlType type : {GgmlType::kF32, GgmlType::kQ8_0}) {
    const auto weights = Weights(SmallTlm(), type);
    for (const Target target : SupportedTargets()) {
      const Kernels& kernels = *KernelsFor(target);
      const EncoderOutput all = Run(*weights, 1, kernels, windows);
      const EncoderOutput three = Run(*weights, 3, kernels, windows);
      EXPECT_TRUE(SameBits(all.keep, three.keep));
      EXPECT_TRUE(SameBits(all.prompt, three.prompt));
      size_t row = 0;
      for (size_t w = 0; w < windows.size(); ++w) {
        const EncoderOutput alone = Run(*weights, 1, kernels, {windows[w]});
        EXPECT_TRUE(SameBits(alone.keep, std::span(all.keep).subspan(row, windows[w].size())));
        EXPECT_TRUE(SameBits(alone.prompt, std::span(all.prompt).subspan(w * 2, 2)));
        EXPECT_TRUE(SameBits(alone.model, std::span(all.model).subspan(w * 3, 3)));
        row += windows[w].size();
      }
    }
  }
}

TEST_F(EncoderTest, RowsThatNobodyReadsMayBeLeftOut) {
  const auto weights = Weights(SmallTlm(), GgmlType::kQ8_0);
  const std::vector<std::vector<int32_t>> windows = {Window(1, 50), Window(2, 20)};
  const EncoderOutput lean = Run(*weights, 1, DefaultKernels(), windows);
  ThreadPool pool(1);
  Encoder encoder(*weights, &pool, DefaultKernels());
  encoder.SetTap([](EncoderTower, int32_t, std::span<const float>) {});
  EncoderOutput full;
  ASSERT_TRUE(encoder.Run(windows, &full).ok());
  EXPECT_TRUE(SameBits(lean.keep, full.keep));
  EXPECT_TRUE(SameBits(lean.prompt, full.prompt));
  EXPECT_TRUE(SameBits(lean.model, full.model));
}

TEST_F(EncoderTest, EveryTokenSeesBothDirections) {
  const auto weights = Weights(SmallTlm(), GgmlType::kF32);
  std::vector<int32_t> window = Window(1, 40);
  const EncoderOutput before = Run(*weights, 1, DefaultKernels(), {window});
  window[20] = window[20] == 4 ? 5 : 4;
  const EncoderOutput after = Run(*weights, 1, DefaultKernels(), {window});
  EXPECT_NE(before.keep.front(), after.keep.front());
  EXPECT_NE(before.keep.back(), after.keep.back());
  EXPECT_NE(before.prompt, after.prompt);
  EXPECT_NE(before.model, after.model);
}

TEST_F(EncoderTest, HeadsMayStandOnTheSharedLayersAlone) {
  TlmShape shape = SmallShape();
  shape.score_layers = shape.decision_layers = 0;
  const auto bare = Weights(SmallTlm(3, shape), GgmlType::kF32);
  const EncoderOutput out = Run(*bare, 1, DefaultKernels(), {Window(1, 20)});
  EXPECT_EQ(out.keep.size(), 20u);
  shape.shared_layers = 0;
  shape.score_layers = shape.decision_layers = 2;
  const auto apart = Weights(SmallTlm(3, shape), GgmlType::kF32);
  EXPECT_EQ(Run(*apart, 1, DefaultKernels(), {Window(1, 20)}).model.size(), 3u);
}

TEST_F(EncoderTest, BadWindowsAndDamagedWeightsAreErrors) {
  auto weights = Weights(SmallTlm(), GgmlType::kF32);
  ThreadPool pool(1);
  Encoder encoder(*weights, &pool, DefaultKernels());
  EncoderOutput out;
  const auto message = [&](const std::vector<std::vector<int32_t>>& windows) {
    return std::string(encoder.Run(windows, &out).message());
  };
  EXPECT_THAT(message({Window(1, 65)}), HasSubstr("window 0 has 65 tokens, limits 1 to 64"));
  EXPECT_THAT(message({{4}, {}}), HasSubstr("window 1 has 0 tokens"));
  EXPECT_THAT(message({{4, 38}}), HasSubstr("token 38, but the TLM's vocabulary has 38"));
  EXPECT_THAT(message({{-1}}), HasSubstr("token -1"));
  const_cast<float*>(weights->keep.bias)[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(encoder.Run({{{4, 5}}}, &out).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace withy::engine
