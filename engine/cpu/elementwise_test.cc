// Tests element-wise kernels of every supported target against double precision, also with lengths
// that are not multiples of a vector.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>
#include <utility>
#include <vector>

#include "engine/cpu/kernels.h"
#include "engine/cpu/testing.h"

namespace withy::engine {
namespace {

class ElementwiseTest : public testing::TestWithParam<Target> {
 protected:
  const Kernels& kernels() const { return *KernelsFor(GetParam()); }
};

constexpr float kGuard = 1234.5f;  // follows every output and must not be overwritten

TEST_P(ElementwiseTest, RmsNorm) {
  std::mt19937 rng(1);
  for (int n = 1; n <= 80; ++n) {
    const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(n), 3.0f);
    const std::vector<float> w = RandomFloats(rng, static_cast<size_t>(n));
    std::vector<float> out(static_cast<size_t>(n) + 1, kGuard);
    kernels().rms_norm(x.data(), w.data(), 1e-5f, n, out.data());
    double squares = 0;
    for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
    const double scale = 1.0 / std::sqrt(squares / n + 1e-5);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = static_cast<double>(x[i]) * scale * static_cast<double>(w[i]);
      ASSERT_NEAR(static_cast<double>(out[i]), want, 1e-6 * std::fabs(want) + 1e-9);
    }
    ASSERT_EQ(out.back(), kGuard);
  }
}

TEST_P(ElementwiseTest, SwiGluAndAdd) {
  std::mt19937 rng(2);
  for (int n = 1; n <= 50; ++n) {
    std::vector<float> gate = RandomFloats(rng, static_cast<size_t>(n), 20.0f);
    gate[0] = n % 2 == 0 ? 200.0f : -200.0f;
    const std::vector<float> up = RandomFloats(rng, static_cast<size_t>(n));
    std::vector<float> out(static_cast<size_t>(n) + 1, kGuard);
    kernels().swiglu(gate.data(), up.data(), n, out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = static_cast<double>(gate[i]);
      const double want = g / (1.0 + std::exp(-g)) * static_cast<double>(up[i]);
      ASSERT_NEAR(static_cast<double>(out[i]), want, 1e-6 * std::fabs(want) + 1e-30);
    }
    ASSERT_EQ(out.back(), kGuard);
    std::vector<float> y = up;
    kernels().add(gate.data(), n, y.data());
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i], up[i] + gate[i]);
  }
}

TEST_P(ElementwiseTest, GeGluAndSoftCap) {
  std::mt19937 rng(2);
  for (int n = 1; n <= 50; ++n) {
    std::vector<float> gate = RandomFloats(rng, static_cast<size_t>(n), 6.0f);
    gate[0] = n % 2 == 0 ? 1e15f : -1e15f;
    const std::vector<float> up = RandomFloats(rng, static_cast<size_t>(n));
    std::vector<float> out(static_cast<size_t>(n) + 1, kGuard);
    kernels().geglu(gate.data(), up.data(), n, out.data());
    std::vector<float> capped = gate;
    capped.push_back(kGuard);
    kernels().soft_cap(capped.data(), n, 3.0f);
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = static_cast<double>(gate[i]);
      const double bent = std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g);
      const double want = g / (1 + std::exp(-2 * bent)) * static_cast<double>(up[i]);
      ASSERT_NEAR(static_cast<double>(out[i]), want, 3e-5 * std::fabs(want) + 1e-30);
      ASSERT_NEAR(static_cast<double>(capped[i]), 3 * std::tanh(g / 3), 3e-6);
    }
    ASSERT_EQ(out.back(), kGuard);
    ASSERT_EQ(capped.back(), kGuard);
  }
}

TEST_P(ElementwiseTest, AddScaledAndDot) {
  std::mt19937 rng(2);
  for (int n = 1; n <= 50; ++n) {
    const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(n), 3.0f);
    std::vector<float> y = RandomFloats(rng, static_cast<size_t>(n), 3.0f);
    double want = 0;
    double size = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double product = static_cast<double>(x[i]) * static_cast<double>(y[i]);
      want += product;
      size += std::fabs(product);
    }
    EXPECT_NEAR(static_cast<double>(kernels().dot(x.data(), y.data(), n)), want, 1e-6 * size);
    const std::vector<float> before = y;
    y.push_back(kGuard);
    kernels().add_scaled(x.data(), -0.7f, n, y.data());
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(y[i]),
                  static_cast<double>(before[i]) - 0.7 * static_cast<double>(x[i]), 2e-6);
    }
    ASSERT_EQ(y.back(), kGuard);
  }
}

TEST_P(ElementwiseTest, CutOff) {
  std::mt19937 rng(2);
  for (int n = 1; n <= 80; ++n) {
    std::vector<float> x = RandomFloats(rng, static_cast<size_t>(n), 4.0f);
    for (float& one : x) one += 2.0f;
    double mean = 0;
    for (const float one : x) mean += static_cast<double>(one) / n;
    double square = 0;
    for (const float one : x) {
      square += (static_cast<double>(one) - mean) * (static_cast<double>(one) - mean) / n;
    }
    const double least = mean + 0.6 * std::sqrt(square);
    std::vector<float> cut = x;
    cut.push_back(kGuard);
    kernels().cut_off(cut.data(), n, 0.6f);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(cut[i]), std::max(0.0, static_cast<double>(x[i]) - least),
                  1e-5);
    }
    ASSERT_EQ(cut.back(), kGuard);
  }
}

TEST_P(ElementwiseTest, ClampedSwiGlu) {
  std::mt19937 rng(2);
  for (int n = 1; n <= 50; ++n) {
    std::vector<float> gate = RandomFloats(rng, static_cast<size_t>(n), 12.0f);
    std::vector<float> up = RandomFloats(rng, static_cast<size_t>(n), 12.0f);
    gate[0] = n % 2 == 0 ? 1e15f : -200.0f;
    up.back() = n % 3 == 0 ? 1e15f : -1e15f;
    std::vector<float> out(static_cast<size_t>(n) + 1, kGuard);
    kernels().clamped_swiglu(gate.data(), up.data(), n, out.data());
    for (size_t i = 0; i < gate.size(); ++i) {
      const double g = std::min(static_cast<double>(gate[i]), 7.0);
      const double u = std::clamp(static_cast<double>(up[i]), -7.0, 7.0);
      const double want = g / (1.0 + std::exp(-1.702 * g)) * (u + 1.0);
      ASSERT_NEAR(static_cast<double>(out[i]), want, 3e-6 * std::fabs(want) + 1e-6);
    }
    ASSERT_EQ(out.back(), kGuard);
  }
}

TEST_P(ElementwiseTest, AddLowRankWhateverTheCuts) {
  constexpr int kOutputs = 96;
  constexpr int kRows = 5;
  constexpr ptrdiff_t kStride = kOutputs + 3;
  for (const int rank : {1, 8, 11}) {
    std::mt19937 rng(5);
    AlignedArray<std::byte> bytes;
    bytes.Resize(LowRankBytes(rank, kOutputs));
    const LowRankOutputs b = {rank, kOutputs, bytes.data()};
    for (std::byte& byte : std::span(bytes.data(), LowRankBytes(rank, kOutputs))) {
      byte = static_cast<std::byte>(rng() % 256);
    }
    const auto ranks = static_cast<size_t>(rank);
    for (int block = 0; block < b.blocks(); ++block) {
      const std::vector<float> scales = RandomFloats(rng, ranks);
      std::memcpy(const_cast<float*>(b.scales(block)), scales.data(), ranks * sizeof(float));
    }
    const auto stride = static_cast<ptrdiff_t>(rank) + 2;
    const std::vector<float> a = RandomFloats(rng, static_cast<size_t>(kRows * stride));
    const std::vector<float> before = RandomFloats(rng, static_cast<size_t>(kRows * kStride));

    std::vector<float> whole = before;
    kernels().add_low_rank(b, {kRows, a.data(), stride, whole.data(), kStride}, 0, kOutputs);
    for (int row = 0; row < kRows; ++row) {
      for (int o = 0; o < kStride; ++o) {
        const auto at = static_cast<size_t>(row * kStride + o);
        double want = static_cast<double>(before[at]);
        for (int r = 0; r < rank && o < kOutputs; ++r) {
          want += static_cast<double>(a[static_cast<size_t>(row * stride + r)]) *
                  static_cast<double>(b.scales(o / kQuantBlock)[r]) *
                  b.quants(o / kQuantBlock)[r * kQuantBlock + o % kQuantBlock];
        }
        ASSERT_NEAR(static_cast<double>(whole[at]), want, 1e-3) << row << " " << o;
      }
    }
    std::vector<float> cut = before;
    for (int row = 0; row < kRows; ++row) {
      const float* in = a.data() + row * stride;
      float* out = cut.data() + row * kStride;
      kernels().add_low_rank(b, {1, in, stride, out, kStride}, 0, 32);
      kernels().add_low_rank(b, {1, in, stride, out + 32, kStride}, 32, 83);
    }
    kernels().add_low_rank(b, {2, a.data(), stride, cut.data() + 64, kStride}, 64, 64);
    for (int row = 0; row < kRows; ++row) {
      const size_t at = static_cast<size_t>(row * kStride);
      ASSERT_TRUE(SameBits(cut.data() + at, whole.data() + at, 83)) << "rank " << rank;
      ASSERT_TRUE(SameBits(cut.data() + at + 83, before.data() + at + 83, kOutputs - 83));
    }
  }
}

TEST_P(ElementwiseTest, Softmax) {
  std::mt19937 rng(3);
  for (const int n : {1, 2, 15, 16, 17, 31, 33, 1000}) {
    const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(n), 10.0f);
    std::vector<float> out(static_cast<size_t>(n) + 1, kGuard);
    kernels().softmax(x.data(), n, 0.7f, out.data());
    const double max = 0.7 * static_cast<double>(*std::max_element(x.begin(), x.end()));
    double sum = 0;
    for (const float v : x) sum += std::exp(0.7 * static_cast<double>(v) - max);
    for (size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp(0.7 * static_cast<double>(x[i]) - max) / sum;
      ASSERT_NEAR(static_cast<double>(out[i]), want, 1e-5 * want + 1e-30);
    }
    ASSERT_EQ(out.back(), kGuard);
  }
}

TEST_P(ElementwiseTest, RopeRotatesPairsAndLeavesTheRest) {
  std::mt19937 rng(4);
  // Partial vectors, whole vectors, and both.
  for (const auto& [rope_dims, interleaved] :
       {std::pair(16, true), std::pair(16, false), std::pair(64, true), std::pair(64, false),
        std::pair(40, true), std::pair(40, false)}) {
    const int head_dim = rope_dims + 8;
    const std::vector<float> frequencies = RopeFrequencies(rope_dims, 10000.0, 1.0, nullptr);
    std::vector<float> angles(2 * static_cast<size_t>(rope_dims));
    RopeAngles(frequencies, 1.25f, 321, interleaved, angles.data());
    const std::vector<float> x = RandomFloats(rng, 2 * head_dim);
    std::vector<float> y = x;
    kernels().rope(y.data(), 2, head_dim, angles.data(), rope_dims, interleaved);
    for (int h = 0; h < 2; ++h) {
      for (int i = 0; i < rope_dims / 2; ++i) {
        const size_t a = static_cast<size_t>(h * head_dim + (interleaved ? 2 * i : i));
        const size_t b = a + static_cast<size_t>(interleaved ? 1 : rope_dims / 2);
        const double angle = 321.0 * std::pow(10000.0, -2.0 * i / rope_dims);
        EXPECT_NEAR(y[a], 1.25 * (x[a] * std::cos(angle) - x[b] * std::sin(angle)), 1e-4);
        EXPECT_NEAR(y[b], 1.25 * (x[a] * std::sin(angle) + x[b] * std::cos(angle)), 1e-4);
      }
      for (int d = rope_dims; d < head_dim; ++d) {
        EXPECT_EQ(y[static_cast<size_t>(h * head_dim + d)],
                  x[static_cast<size_t>(h * head_dim + d)]);
      }
    }
  }
}

TEST_P(ElementwiseTest, PreparedRowsKeepTheirValues) {
  std::mt19937 rng(5);
  for (const int n : {1, 31, 32, 33, 64, 100}) {
    std::vector<float> x = RandomFloats(rng, static_cast<size_t>(n));
    if (n > 64) std::fill(x.begin() + 32, x.begin() + 64, 0.0f);
    Activations out;
    out.Reset(1, n, kActQ8 | kActF32);
    kernels().prepare(x.data(), n, 0, 1, 0, n, &out);
    for (int b = 0; b < out.blocks(); ++b) {
      int sum = 0;
      for (int i = 32 * b; i < 32 * b + 32; ++i) {
        const int q{out.quants(0)[i]};
        const float want = i < n ? x[static_cast<size_t>(i)] : 0.0f;
        ASSERT_EQ(out.floats(0)[i], want);
        ASSERT_NEAR(out.scales(0)[b] * static_cast<float>(q), want, out.scales(0)[b] * 0.501f);
        ASSERT_LE(std::abs(q), 127);
        sum += q;
      }
      ASSERT_EQ(out.init8(0)[b] - out.init4(0)[b], -120 * sum);
      ASSERT_FLOAT_EQ(out.sums(0)[b], out.scales(0)[b] * static_cast<float>(sum));
    }
  }
}

TEST_P(ElementwiseTest, KvTokensReadBackAsQuantised) {
  std::mt19937 rng(6);
  const KvGeometry g{2, 3, 80};
  AlignedArray<std::byte> block(g.BlockBytes());
  for (int slot = 0; slot < 16; ++slot) {
    const std::vector<float> k = RandomFloats(rng, 240);
    const std::vector<float> v = RandomFloats(rng, 240);
    kernels().write_kv(g, k.data(), v.data(), KvFormat::kQ8, block.data(), slot);
    std::vector<float> k2(240);
    std::vector<float> v2(240);
    ReadToken(g, block.data(), slot, k2.data(), v2.data());
    for (size_t i = 0; i < 240; ++i) {
      ASSERT_NEAR(k2[i], k[i], 4.0 / 127);
      ASSERT_NEAR(v2[i], v[i], 4.0 / 127);
    }
  }
}

TEST_P(ElementwiseTest, KvTokensAreRotated) {
  std::mt19937 rng(6);
  for (const int head_dim : {16, 32, 48, 64, 80, 96, 128, 256}) {
    const KvGeometry g{1, 1, head_dim};
    AlignedArray<std::byte> block(g.BlockBytes(KvFormat::kF16));
    const std::vector<float> k = RandomFloats(rng, static_cast<size_t>(head_dim));
    const std::vector<float> v = RandomFloats(rng, static_cast<size_t>(head_dim));
    kernels().write_kv(g, k.data(), v.data(), KvFormat::kF16, block.data(), 3);
    std::vector<float> k2(k.size());
    std::vector<float> v2(v.size());
    ReadToken(g, block.data(), 3, k2.data(), v2.data(), KvFormat::kF16);
    for (size_t i = 0; i < k.size(); ++i) {
      ASSERT_NEAR(k2[i], k[i], 4e-3) << head_dim;
      ASSERT_NEAR(v2[i], v[i], 4e-3) << head_dim;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, ElementwiseTest, testing::ValuesIn(SupportedTargets()),
                         [](const auto& test_info) {
                           std::string name = KernelsFor(test_info.param)->name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(RopeFrequenciesTest, ScalingDividesThem) {
  const std::vector<float> plain = RopeFrequencies(8, 500000.0, 1.0, nullptr);
  const float factors[4] = {1.0f, 2.0f, 4.0f, 8.0f};
  const std::vector<float> scaled = RopeFrequencies(8, 500000.0, 2.0, factors);
  for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(scaled[i], plain[i] / 2.0f / factors[i]);
  EXPECT_FLOAT_EQ(plain[0], 1.0f);
}

TEST(TargetsTest, NamesParseBack) {
  for (const Target target : SupportedTargets()) {
    Target parsed{};
    EXPECT_TRUE(ParseTarget(KernelsFor(target)->name, &parsed));
    EXPECT_EQ(parsed, target);
  }
  Target unused{};
  EXPECT_FALSE(ParseTarget("mmx", &unused));
}

}  // namespace
}  // namespace withy::engine
