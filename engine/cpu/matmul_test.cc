// Tests the matrix product of every supported target against a slow reference, and that a row's
// bits depend on that row alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/testing.h"

namespace withy::engine {
namespace {

constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kF16, WeightType::kBf16,
                                 WeightType::kQ8,  WeightType::kQ4,  WeightType::kQ4M,
                                 WeightType::kFp4, WeightType::kNl4};

class MatMulTest : public testing::TestWithParam<Target> {
 protected:
  const Kernels& kernels() const { return *KernelsFor(GetParam()); }

  void Prepare(const std::vector<float>& x, int rows, int n_in, Activations* out) const {
    out->Reset(rows, n_in, kActQ8 | kActF32);
    kernels().prepare(x.data(), n_in, 0, rows, 0, n_in, out);
  }

  // A product of rows with these extents gives every row what a pass over its own prefix gives.
  void ExpectPrefixes(const std::vector<int>& out_extent, const std::vector<int>& in_extent) {
    const int n_out = 200;
    const int n_in = 512;
    const int panel = 128;
    const int rows = static_cast<int>(out_extent.size());
    std::mt19937 rng(11);
    const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(rows * n_in));
    Activations all;
    Prepare(x, rows, n_in, &all);
    for (const WeightType type : kTypes) {
      const OwnedMatrix w = RandomMatrix(5, type, n_out, n_in, panel);
      std::vector<float> y(static_cast<size_t>(rows * n_out), 99.0f);
      MatMulArgs args{w.m, &all, 0, rows, y.data(), n_out};
      args.n_out_extent = out_extent.data();
      args.n_in_extent = in_extent.data();
      kernels().matmul(args, 0, 5);
      kernels().matmul(args, 5, w.m.tiles());
      for (int r = 0; r < rows; ++r) {
        const auto row = static_cast<size_t>(r);
        Activations one;
        std::vector<float> cut(x.begin() + r * n_in, x.begin() + (r + 1) * n_in);
        std::fill(cut.begin() + in_extent[row], cut.end(), 0.0f);
        Prepare(cut, 1, n_in, &one);
        std::vector<float> full(static_cast<size_t>(n_out));
        kernels().matmul({w.m, &one, 0, 1, full.data(), n_out}, 0, w.m.tiles());
        for (int o = 0; o < n_out; ++o) {
          const float want = o < out_extent[row] ? full[static_cast<size_t>(o)] : 99.0f;
          ASSERT_EQ(y[row * static_cast<size_t>(n_out) + static_cast<size_t>(o)], want)
              << WeightTypeName(type) << " row " << r << " output " << o;
        }
      }
    }
  }
};

// The reference result, and how far the product may differ from it: rounding of about one unit per
// block and one more per product, relative to the norm of the terms.
struct Reference {
  std::vector<double> y;
  std::vector<double> norm;
};

Reference SlowMatMul(const PackedMatrix& w, const Activations& x, int rows, int n_in) {
  Reference ref;
  ref.y.resize(static_cast<size_t>(rows) * static_cast<size_t>(w.n_out));
  ref.norm.resize(ref.y.size());
  std::vector<float> weights(static_cast<size_t>(w.n_in));
  for (int o = 0; o < w.n_out; ++o) {
    UnpackRow(w, o, weights.data());
    for (int r = 0; r < rows; ++r) {
      double sum = 0;
      double norm = 0;
      for (int i = 0; i < n_in; ++i) {
        const double a = IsQuantized(w.type)
                             ? static_cast<double>(x.scales(r)[i / kQuantBlock]) * x.quants(r)[i]
                             : static_cast<double>(x.floats(r)[i]);
        sum += a * static_cast<double>(weights[static_cast<size_t>(i)]);
        norm += std::fabs(a * static_cast<double>(weights[static_cast<size_t>(i)]));
      }
      ref.y[static_cast<size_t>(r * w.n_out + o)] = sum;
      ref.norm[static_cast<size_t>(r * w.n_out + o)] = norm;
    }
  }
  return ref;
}

TEST_P(MatMulTest, MatchesTheReferenceOverShapes) {
  const struct {
    int n_out, n_in, panel;
  } shapes[] = {{16, 32, 32},  {1, 32, 64},    {17, 64, 64},    {48, 96, 32},
                {33, 256, 64}, {80, 320, 128}, {40, 2048, 2048}};
  unsigned seed = 1;
  for (const WeightType type : kTypes) {
    for (const auto& shape : shapes) {
      const OwnedMatrix w = RandomMatrix(++seed, type, shape.n_out, shape.n_in, shape.panel);
      for (const int rows : {1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 19}) {
        std::mt19937 rng(seed + static_cast<unsigned>(rows));
        const std::vector<float> x =
            RandomFloats(rng, static_cast<size_t>(rows) * static_cast<size_t>(shape.n_in));
        Activations prepared;
        Prepare(x, rows, shape.n_in, &prepared);
        const Reference ref = SlowMatMul(w.m, prepared, rows, shape.n_in);
        std::vector<float> y(ref.y.size(), -1.0f);
        kernels().matmul({w.m, &prepared, 0, rows, y.data(), shape.n_out}, 0, w.m.tiles());
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_NEAR(static_cast<double>(y[i]), ref.y[i], 2e-6 * ref.norm[i] + 1e-12)
              << WeightTypeName(type) << " " << shape.n_out << "x" << shape.n_in << " rows " << rows
              << " at " << i;
        }
      }
    }
  }
}

TEST_P(MatMulTest, RowsDoNotDependOnOtherRowsPanelsOrSplit) {
  const int n_out = 112;
  const int n_in = 1024;
  const int rows = 29;
  std::mt19937 rng(7);
  const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(rows * n_in));
  Activations all;
  Prepare(x, rows, n_in, &all);
  for (const WeightType type : kTypes) {
    const OwnedMatrix w = RandomMatrix(3, type, n_out, n_in, n_in);
    std::vector<float> whole(static_cast<size_t>(rows * n_out));
    kernels().matmul({w.m, &all, 0, rows, whole.data(), n_out}, 0, w.m.tiles());
    for (const int panel : {64, 256, 1024}) {
      const OwnedMatrix cut = RandomMatrix(3, type, n_out, n_in, panel);
      for (const int first : {0, 5, 28}) {
        for (const int count : {1, 2, 3, 4, 5, 8, 12, 17, 24}) {
          if (first + count > rows) continue;
          std::vector<float> y(static_cast<size_t>(count * n_out));
          const MatMulArgs args{cut.m, &all, first, count, y.data(), n_out};
          kernels().matmul(args, 0, 3);
          kernels().matmul(args, 3, 4);
          kernels().matmul(args, 4, cut.m.tiles());
          ASSERT_TRUE(SameBits(y.data(), whole.data() + first * n_out, y.size()))
              << WeightTypeName(type) << " panel " << panel << " rows " << first << "+" << count;
        }
      }
    }
  }
}

TEST_P(MatMulTest, ExtentsAreThePrefixOfAFullPass) {
  ExpectPrefixes({200, 200, 200, 160, 150, 96, 90, 16, 3},
                 {512, 512, 384, 384, 384, 256, 128, 128, 128});
}

TEST_P(MatMulTest, ManyRowsOfOneExtent) {
  for (const int out : {16, 160, 170}) {
    ExpectPrefixes(std::vector<int>(20, out), std::vector<int>(20, 256));
  }
}

TEST_P(MatMulTest, AccumulateAddsToTheResidual) {
  const OwnedMatrix w = RandomMatrix(9, WeightType::kQ8, 40, 128, 64);
  std::mt19937 rng(2);
  const std::vector<float> x = RandomFloats(rng, 3 * 128);
  const std::vector<float> residual = RandomFloats(rng, 3 * 40);
  Activations prepared;
  Prepare(x, 3, 128, &prepared);
  const Reference ref = SlowMatMul(w.m, prepared, 3, 128);
  std::vector<float> y = residual;
  MatMulArgs args{w.m, &prepared, 0, 3, y.data(), 40};
  args.accumulate = true;
  kernels().matmul(args, 0, w.m.tiles());
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(y[i]), ref.y[i] + static_cast<double>(residual[i]), 1e-5);
  }
}

// Indices of a table give the bits of the values that they stand for, as quants of 8 bits.
TEST_P(MatMulTest, ATableMultipliesAsItsValuesDo) {
  const int n_out = 72;
  const int n_in = 1088;
  const auto n = static_cast<size_t>(n_in);
  for (const WeightType type : {WeightType::kFp4, WeightType::kNl4}) {
    std::mt19937 rng(31);
    OwnedMatrix indices{.m = {type, n_out, n_in, 512, nullptr}, .bytes = {}};
    OwnedMatrix values{.m = {WeightType::kQ8, n_out, n_in, 512, nullptr}, .bytes = {}};
    for (OwnedMatrix* w : {&indices, &values}) {
      w->bytes.Resize(PackedBytes(w->m));
      ZeroPacked(w->m, w->bytes.data());
      w->m.data = w->bytes.data();
    }
    std::vector<uint8_t> q4(n);
    std::vector<int8_t> q8(n);
    std::vector<uint16_t> scales(n / kQuantBlock);
    for (int row = 0; row < n_out; ++row) {
      for (size_t i = 0; i < n; ++i) {
        q4[i] = static_cast<uint8_t>(rng() % 16);
        q8[i] = TableOf(type)[q4[i]];
      }
      for (uint16_t& scale : scales) scale = F32ToF16(1e-5f * static_cast<float>(1 + rng() % 100));
      const WeightRow weights{.f32 = nullptr,
                              .half = nullptr,
                              .q8 = q8.data(),
                              .q4 = q4.data(),
                              .scales = scales.data(),
                              .mins = nullptr};
      PackRow(indices.m, row, weights, indices.bytes.data());
      PackRow(values.m, row, weights, values.bytes.data());
    }
    EXPECT_LT(PackedBytes(indices.m), PackedBytes(values.m) * 54 / 100);
    for (const int rows : {1, 2, 3, 6, 7, 11, 12, 19}) {
      const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(rows) * n);
      Activations prepared;
      Prepare(x, rows, n_in, &prepared);
      std::vector<float> got(static_cast<size_t>(rows * n_out));
      std::vector<float> want(got.size());
      kernels().matmul({indices.m, &prepared, 0, rows, got.data(), n_out}, 0, indices.m.tiles());
      kernels().matmul({values.m, &prepared, 0, rows, want.data(), n_out}, 0, values.m.tiles());
      ASSERT_TRUE(SameBits(got.data(), want.data(), got.size()))
          << WeightTypeName(type) << " rows " << rows;
    }
  }
}

TEST_P(MatMulTest, PoolAndFusedGateUpGiveTheBitsOfSeparateCalls) {
  const int rows = 7;
  const int n_in = 256;
  const int n_ff = 328;
  std::mt19937 rng(21);
  const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(rows * n_in));
  const int extent[rows] = {328, 328, 328, 320, 100, 96, 32};
  const OwnedMatrix gate = RandomMatrix(1, WeightType::kQ4, n_ff, n_in, n_in);
  const OwnedMatrix up = RandomMatrix(2, WeightType::kQ4, n_ff, n_in, n_in);
  ThreadPool one(1);
  ThreadPool three(3);
  Activations first;
  for (ThreadPool* pool : {&one, &three}) {
    Activations in;
    PrepareRows(*pool, kernels(), x.data(), n_in, rows, n_in, kActQ8, &in);
    std::vector<float> g(static_cast<size_t>(rows * n_ff));
    std::vector<float> u(g.size());
    MatMulArgs gate_args{gate.m, &in, 0, rows, g.data(), n_ff};
    MatMulArgs up_args{up.m, &in, 0, rows, u.data(), n_ff};
    gate_args.n_out_extent = up_args.n_out_extent = extent;
    Activations h;
    GateUp(*pool, kernels(), gate_args, up_args, kActQ8 | kActF32, &h);
    std::vector<float> want(g.size());
    std::vector<float> want_up(g.size());
    kernels().matmul({gate.m, &in, 0, rows, want.data(), n_ff}, 0, gate.m.tiles());
    kernels().matmul({up.m, &in, 0, rows, want_up.data(), n_ff}, 0, up.m.tiles());
    for (int r = 0; r < rows; ++r) {
      float* row = want.data() + r * n_ff;
      kernels().swiglu(row, want_up.data() + r * n_ff, n_ff, row);
      ASSERT_TRUE(SameBits(row, h.floats(r), static_cast<size_t>(extent[r]))) << r;
      const int padded = (extent[r] + 31) / 32 * 32;
      for (int i = extent[r]; i < padded; ++i) ASSERT_EQ(h.quants(r)[i], 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, MatMulTest, testing::ValuesIn(SupportedTargets()),
                         [](const auto& test_info) {
                           std::string name = KernelsFor(test_info.param)->name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// The portable target is left out: it fuses no multiply-adds.
TEST(MatMulTargetsTest, GiveTheSameBits) {
  const std::vector<Target> targets = SupportedTargets();
  if (targets.size() < 3) GTEST_SKIP() << "one target with fused multiply-adds";
  const int n_out = 80;
  const int n_in = 1088;
  const int rows = 7;
  std::mt19937 rng(17);
  const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(rows * n_in));
  for (const WeightType type : kTypes) {
    const OwnedMatrix w = RandomMatrix(13, type, n_out, n_in, 512);
    const auto product = [&](Target target) {
      Activations prepared;
      prepared.Reset(rows, n_in, kActQ8 | kActF32);
      KernelsFor(target)->prepare(x.data(), n_in, 0, rows, 0, n_in, &prepared);
      std::vector<float> y(static_cast<size_t>(rows * n_out));
      KernelsFor(target)->matmul({w.m, &prepared, 0, rows, y.data(), n_out}, 0, w.m.tiles());
      return y;
    };
    const std::vector<float> want = product(targets[1]);
    for (const Target target : std::span(targets).subspan(2)) {
      EXPECT_TRUE(SameBits(product(target).data(), want.data(), want.size()))
          << WeightTypeName(type) << " " << KernelsFor(target)->name;
    }
  }
}

TEST(PackedMatrixTest, UnpackGivesBackWhatWasPacked) {
  std::mt19937 rng(4);
  const int n_in = 160;
  for (const WeightType type : {WeightType::kF32, WeightType::kQ8}) {
    PackedMatrix m{type, 20, n_in, 64, nullptr};
    AlignedArray<std::byte> bytes(PackedBytes(m));
    ZeroPacked(m, bytes.data());
    m.data = bytes.data();
    for (int row = 0; row < 20; ++row) {
      const std::vector<float> x = RandomFloats(rng, static_cast<size_t>(n_in));
      int8_t q[n_in];
      uint16_t scales[n_in / 32];
      QuantizeQ8(x.data(), n_in, q, scales);
      WeightRow weights;
      weights.f32 = x.data();
      weights.q8 = q;
      weights.scales = scales;
      PackRow(m, row, weights, bytes.data());
      float back[n_in];
      UnpackRow(m, row, back);
      for (int i = 0; i < n_in; ++i) {
        const float want = type == WeightType::kF32
                               ? x[static_cast<size_t>(i)]
                               : F16ToF32(scales[i / 32]) * static_cast<float>(q[i]);
        ASSERT_EQ(back[i], want);
      }
    }
  }
}

TEST(PackedMatrixTest, ALevelIsAPrefixOfTheBytes) {
  const PackedMatrix rows{WeightType::kQ4, 160, 128, 128, nullptr};
  EXPECT_EQ(PrefixBytes(rows, 160, 128), PackedBytes(rows));
  EXPECT_EQ(PrefixBytes(rows, 80, 128) * 2, PackedBytes(rows));
  const PackedMatrix panels{WeightType::kQ4, 160, 512, 128, nullptr};
  EXPECT_EQ(PrefixBytes(panels, 160, 512), PackedBytes(panels));
  EXPECT_EQ(PrefixBytes(panels, 160, 256) * 2, PackedBytes(panels));
}

TEST(HalfTest, RoundTripsEveryFiniteHalf) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    if ((h & 0x7c00u) == 0x7c00u) continue;
    ASSERT_EQ(F32ToF16(F16ToF32(static_cast<uint16_t>(h))), h);
  }
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(65519.0f), 0x7bff);
  EXPECT_EQ(F32ToF16(1.0f + 0x1p-11f), 0x3c00);  // tie goes to even
}

}  // namespace
}  // namespace withy::engine
