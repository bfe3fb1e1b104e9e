#include "engine/cuda/gpu/self_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/cuda/dense.h"
#include "engine/cuda/workspace.h"

namespace withy::engine::cuda {
namespace {

constexpr double kTolerance = 1e-4;
constexpr int32_t kLeastDenseRows =
    128;  // more than a decode step or a token tree has of a context
constexpr int32_t kMostDenseRows = 1024;
constexpr double kDenseTolerance = 1e-3;  // weights and inputs are rounded to F16

// A matrix with random weights, on the host and on the GPU.
class Sample {
 public:
  Sample(Gpu& gpu, WeightType type, int n_out, int n_in)
      : gpu_(gpu), packed_memory_(gpu), memory_(gpu) {
    packed_ = {.type = type, .n_out = n_out, .n_in = n_in, .panel_inputs = 64};
    Fill();
    matrix_ = {.type = DeviceType(type), .n_out = n_out, .n_in = n_in};
    matrix_.tiles = packed_.tiles();
    matrix_.blocks = packed_.padded_inputs() / kQuantBlock;
    matrix_.groups = (matrix_.blocks + kGroupBlocks - 1) / kGroupBlocks;
  }

  absl::Status Send() {
    const auto tiles = static_cast<size_t>(matrix_.tiles);
    const size_t quants = tiles * static_cast<size_t>(matrix_.blocks + 1) * 2048;  // of any type
    const size_t scales = tiles * static_cast<size_t>(matrix_.groups) * 128;
    WITHY_RETURN_IF_ERROR(memory_.Reserve(quants + 2 * scales));
    matrix_.quants = memory_.as<uint8_t>();
    matrix_.scales = reinterpret_cast<uint16_t*>(matrix_.quants + quants);
    matrix_.mins = reinterpret_cast<uint16_t*>(matrix_.quants + quants + scales);
    WITHY_RETURN_IF_ERROR(packed_memory_.Reserve(bytes_.size()));
    WITHY_RETURN_IF_ERROR(
        gpu_.Upload(packed_memory_.as<std::byte>(), bytes_.data(), bytes_.size()));
    gpu_.kernels().repack(gpu_.queue(), {.data = packed_memory_.as<uint8_t>(),
                                         .from = packed_.type,
                                         .to = matrix_,
                                         .panel_inputs = packed_.panel_inputs,
                                         .panels = packed_.panels(),
                                         .tiles = packed_.tiles(),
                                         .blocks = matrix_.blocks});
    return absl::OkStatus();
  }
  const Matrix& matrix() const { return matrix_; }
  const PackedMatrix& packed() const { return packed_; }

 private:
  void Fill() {
    bytes_.Resize(PackedBytes(packed_));
    ZeroPacked(packed_, bytes_.data());
    std::mt19937 random(7);
    const auto n = static_cast<size_t>(packed_.n_in);
    std::vector<float> f32(n);
    std::vector<uint16_t> half(n);
    std::vector<int8_t> q8(n);
    std::vector<uint8_t> q4(n);
    std::vector<uint16_t> scales(n / kQuantBlock);
    std::vector<uint16_t> mins(n / kQuantBlock);
    for (int row = 0; row < packed_.n_out; ++row) {
      // Floats and scales that differ by much from row to row, as no model's should.
      const float size = row % 5 == 3 ? 1e-9f : row % 5 == 4 ? 6e5f : 1.0f;
      const float scale_size = row % 5 == 3 ? 1e-2f : row % 5 == 4 ? 3e7f : 1.0f;
      for (size_t i = 0; i < n; ++i) {
        f32[i] = size * static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 1e-4f;
        half[i] = packed_.type == WeightType::kBf16 ? F32ToBf16(f32[i]) : F32ToF16(f32[i]);
        q8[i] = static_cast<int8_t>(static_cast<int>(random() % 256) - 128);
        q4[i] = static_cast<uint8_t>(random() % 16);
      }
      for (size_t i = 0; i < scales.size(); ++i) {
        scales[i] = F32ToF16(scale_size * (1e-3f + 1e-5f * static_cast<float>(random() % 100)));
        mins[i] = F32ToF16(std::min(scale_size, 1e6f) *
                           (-1e-2f + 1e-4f * static_cast<float>(random() % 100)));
      }
      const WeightRow weights = {f32.data(), half.data(),   q8.data(),
                                 q4.data(),  scales.data(), mins.data()};
      PackRow(packed_, row, weights, bytes_.data());
    }
    packed_.data = bytes_.data();
  }

  Gpu& gpu_;
  PackedMatrix packed_;
  AlignedArray<std::byte> bytes_;
  Buffer packed_memory_;
  Buffer memory_;
  Matrix matrix_;
};

// Rows whose blocks of 32 hold whole numbers up to 127, times a power of two: rounding them to 8
// bits loses nothing.
std::vector<float> WholeNumbers(int rows, int width) {
  std::mt19937 random(11);
  std::vector<float> x(static_cast<size_t>(rows) * static_cast<size_t>(width));
  for (size_t i = 0; i < x.size(); ++i) {
    const int row = static_cast<int>(i / static_cast<size_t>(width));
    x[i] = i % 32 == 0 ? 127.0f : static_cast<float>(static_cast<int>(random() % 255) - 127);
    x[i] = std::ldexp(x[i], (row % 3 - 1) * 30);
  }
  return x;
}

// Products of a sample with rows, on the GPU.
class Bench {
 public:
  explicit Bench(Gpu& gpu) : gpu_(gpu), x_(gpu), ones_(gpu), y_(gpu), product_(gpu), inputs_(gpu) {}

  absl::Status Prepare(const Matrix& w, const std::vector<float>& x, int rows) {
    rows_ = rows;
    n_out_ = w.n_out;
    n_in_ = w.n_in;
    const std::vector<float> ones(static_cast<size_t>(w.n_in), 1.0f);
    WITHY_RETURN_IF_ERROR(x_.Reserve(x.size() * sizeof(float)));
    WITHY_RETURN_IF_ERROR(ones_.Reserve(ones.size() * sizeof(float)));
    WITHY_RETURN_IF_ERROR(
        y_.Reserve(static_cast<size_t>(rows) * static_cast<size_t>(n_out_) * sizeof(float)));
    WITHY_RETURN_IF_ERROR(inputs_.Reserve(static_cast<size_t>(rows), w.n_in, kActQ8 | kActF32));
    WITHY_RETURN_IF_ERROR(gpu_.Upload(x_.as<float>(), x.data(), x.size() * sizeof(float)));
    WITHY_RETURN_IF_ERROR(gpu_.Upload(ones_.as<float>(), ones.data(), ones.size() * sizeof(float)));
    gpu_.kernels().norm(gpu_.queue(),
                        {.x = x_.as<float>(),
                         .width = w.n_in,
                         .weight = ones_.as<float>(),
                         .to = inputs_.get(),
                         .quantise = true,
                         .keep_floats = true},
                        rows);
    Product product;
    product.w = w;
    product.x = inputs_.get();
    product.rows = rows;
    product.y = y_.as<float>();
    product.y_stride = n_out_;
    WITHY_RETURN_IF_ERROR(product_.Reserve(sizeof product));
    return gpu_.Upload(product_.as<Product>(), &product, sizeof product);
  }
  void Multiply(ProductPath path) {
    gpu_.kernels().products(gpu_.queue(),
                            {.products = product_.as<Product>(),
                             .count = 1,
                             .strips = (n_out_ + kStripOutputs - 1) / kStripOutputs,
                             .rows = rows_},
                            path, false);
  }
  absl::Status Multiply(DensePath& path) {
    return path.Launch({.products = product_.as<Product>(),
                        .count = 1,
                        .strips = (n_out_ + kStripOutputs - 1) / kStripOutputs,
                        .rows = rows_,
                        .blocks = n_in_ / kQuantBlock});
  }
  absl::StatusOr<std::vector<float>> Result() {
    std::vector<float> y(static_cast<size_t>(rows_) * static_cast<size_t>(n_out_));
    WITHY_RETURN_IF_ERROR(gpu_.Download(y.data(), y_.as<float>(), y.size() * sizeof(float)));
    return y;
  }

 private:
  Gpu& gpu_;
  Buffer x_;
  Buffer ones_;
  Buffer y_;
  Buffer product_;
  InputBuffer inputs_;
  int rows_ = 0;
  int n_out_ = 0;
  int n_in_ = 0;
};

absl::Status CheckSums(const PackedMatrix& w, const std::vector<float>& x,
                       const std::vector<float>& y, double tolerance) {
  const auto width = static_cast<size_t>(w.n_in);
  std::vector<float> weights(width);
  for (int o = 0; o < w.n_out; ++o) {
    UnpackRow(w, o, weights.data());
    for (size_t row = 0; row * width < x.size(); ++row) {
      double sum = 0;
      double size = 0;
      for (size_t k = 0; k < width; ++k) {
        const double product = static_cast<double>(weights[k]) * x[row * width + k];
        sum += product;
        size += std::fabs(product);
      }
      const float got = y[row * static_cast<size_t>(w.n_out) + static_cast<size_t>(o)];
      if (!(std::fabs(got - sum) <= tolerance * size)) {
        return absl::FailedPreconditionError(
            absl::StrCat("self-check failed: a product of weights of type ", WeightTypeName(w.type),
                         " gives ", got, " where the CPU computes ", sum,
                         "; check the card and its driver, or set model.device to cpu"));
      }
    }
  }
  return absl::OkStatus();
}

constexpr int kWidth = 2048;
constexpr int kRows = 9;
constexpr int kOutputs = 80;
constexpr int kInputs = 320;
constexpr WeightType kTypes[] = {WeightType::kF32, WeightType::kF16, WeightType::kBf16,
                                 WeightType::kQ8,  WeightType::kQ4,  WeightType::kQ4M,
                                 WeightType::kFp4, WeightType::kNl4};

// Least time of some tries.
absl::StatusOr<int64_t> LeastTime(Gpu& gpu, const std::function<int64_t()>& now_ns,
                                  const std::function<absl::Status()>& compute) {
  constexpr int kRounds = 5;
  int64_t least = std::numeric_limits<int64_t>::max();
  for (int round = 0; round < kRounds; ++round) {
    WITHY_RETURN_IF_ERROR(gpu.Wait());
    const int64_t begun = now_ns();
    WITHY_RETURN_IF_ERROR(compute());
    WITHY_RETURN_IF_ERROR(gpu.Wait());
    least = std::min(least, now_ns() - begun);
  }
  return least;
}

// `operations` of `run`, in a second, at the best of some rounds.
absl::StatusOr<double> RateOf(Gpu& gpu, double operations, absl::FunctionRef<absl::Status()> run) {
  constexpr int kRateRounds = 5;
  Buffer stamps(gpu, MemoryWay::kHost);
  WITHY_RETURN_IF_ERROR(stamps.Reserve(2 * sizeof(uint64_t)));
  auto* const at = stamps.as<uint64_t>();
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (int round = 0; round < kRateRounds; ++round) {
    gpu.kernels().stamp(gpu.queue(), {.to = at});
    WITHY_RETURN_IF_ERROR(run());
    gpu.kernels().stamp(gpu.queue(), {.to = at + 1});
    WITHY_RETURN_IF_ERROR(gpu.Wait());
    least = std::min(least, std::max<uint64_t>(1, at[1] - at[0]));
  }
  return 1e9 * operations / static_cast<double>(least);
}

}  // namespace

absl::Status SelfCheck(Gpu& gpu) {
  const std::vector<float> x = WholeNumbers(kRows, kInputs);
  for (const WeightType type : kTypes) {
    Sample sample(gpu, type, kOutputs, kInputs);
    WITHY_RETURN_IF_ERROR(sample.Send());
    std::vector<std::vector<float>> results;
    for (const ProductPath path : {ProductPath::kDp4a, ProductPath::kMma}) {
      Bench bench(gpu);
      WITHY_RETURN_IF_ERROR(bench.Prepare(sample.matrix(), x, kRows));
      bench.Multiply(path);
      WITHY_ASSIGN_OR_RETURN(std::vector<float> y, bench.Result());
      WITHY_RETURN_IF_ERROR(CheckSums(sample.packed(), x, y, kTolerance));
      results.push_back(std::move(y));
    }
    if (results[0] != results[1]) {
      return absl::FailedPreconditionError(
          absl::StrCat("self-check failed: dp4a and mma differ for weights of type ",
                       WeightTypeName(type), "; check the card, or set model.device to cpu"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> MeasureMmaRows(Gpu& gpu, const std::function<int64_t()>& now_ns) {
  constexpr int32_t kMostRows = 8;
  Sample sample(gpu, WeightType::kQ8, kWidth, kWidth);
  WITHY_RETURN_IF_ERROR(sample.Send());
  for (int32_t rows = 2; rows <= kMostRows; ++rows) {
    Bench bench(gpu);
    WITHY_RETURN_IF_ERROR(bench.Prepare(sample.matrix(), WholeNumbers(rows, kWidth), rows));
    const auto multiply = [&](ProductPath path) {
      return [&bench, path] {
        bench.Multiply(path);
        return absl::OkStatus();
      };
    };
    WITHY_ASSIGN_OR_RETURN(const int64_t dp4a,
                           LeastTime(gpu, now_ns, multiply(ProductPath::kDp4a)));
    WITHY_ASSIGN_OR_RETURN(const int64_t mma, LeastTime(gpu, now_ns, multiply(ProductPath::kMma)));
    if (mma < dp4a) return rows;
  }
  return kMostRows + 1;
}

absl::StatusOr<double> MeasureMmaRate(Gpu& gpu) {
  constexpr int kRateRows = kWidth;
  if (!gpu.has_times()) return 0.0;
  Sample sample(gpu, WeightType::kQ8, kWidth, kWidth);
  WITHY_RETURN_IF_ERROR(sample.Send());
  Bench bench(gpu);
  WITHY_RETURN_IF_ERROR(bench.Prepare(sample.matrix(), WholeNumbers(kRateRows, kWidth), kRateRows));
  return RateOf(gpu, 2.0 * kRateRows * kWidth * kWidth, [&bench] {
    bench.Multiply(ProductPath::kMma);
    return absl::OkStatus();
  });
}

absl::StatusOr<double> MeasureF16Rate(Gpu& gpu, DenseMath& math) {
  constexpr int kSide = 4096;
  constexpr size_t kNumbers = size_t{kSide} * kSide;
  if (!gpu.has_times()) return 0.0;
  Buffer matrices(gpu);
  Buffer sums(gpu);
  WITHY_RETURN_IF_ERROR(matrices.Reserve(2 * kNumbers * sizeof(uint16_t)));
  WITHY_RETURN_IF_ERROR(sums.Reserve(kNumbers * sizeof(float)));
  // Bits that change as those of weights do: zeros would take less power.
  gpu.kernels().fill_memory(gpu.queue(), {.memory = matrices.as<uint8_t>(),
                                          .count = static_cast<int64_t>(kNumbers / 4),
                                          .seed = 1,
                                          .blocks = 1024});
  const DenseProduct product{.a = matrices.as<uint16_t>(),
                             .b = matrices.as<uint16_t>() + kNumbers,
                             .c = sums.as<float>(),
                             .outputs = kSide,
                             .rows = kSide,
                             .inputs = kSide};
  return RateOf(gpu, 2.0 * kSide * kSide * kSide, [&] { return math.Multiply(product); });
}

absl::Status CheckDense(Gpu& gpu, DenseMath& math) {
  const std::vector<float> x = WholeNumbers(kRows, kInputs);
  DensePath path(gpu, math);
  WITHY_RETURN_IF_ERROR(path.Reserve(kRows, kInputs / kQuantBlock, kOutputs));
  for (const WeightType type : kTypes) {
    Sample sample(gpu, type, kOutputs, kInputs);
    WITHY_RETURN_IF_ERROR(sample.Send());
    Bench bench(gpu);
    WITHY_RETURN_IF_ERROR(bench.Prepare(sample.matrix(), x, kRows));
    WITHY_RETURN_IF_ERROR(bench.Multiply(path));
    WITHY_ASSIGN_OR_RETURN(const std::vector<float> y, bench.Result());
    WITHY_RETURN_IF_ERROR(CheckSums(sample.packed(), x, y, kDenseTolerance));
  }
  return absl::OkStatus();
}

absl::StatusOr<int32_t> MeasureDenseRows(Gpu& gpu, DenseMath& math,
                                         const std::function<int64_t()>& now_ns) {
  Sample sample(gpu, WeightType::kQ8, kWidth, kWidth);
  WITHY_RETURN_IF_ERROR(sample.Send());
  DensePath path(gpu, math);
  for (int32_t rows = kLeastDenseRows; rows <= kMostDenseRows; rows *= 2) {
    WITHY_RETURN_IF_ERROR(path.Reserve(rows, kWidth / kQuantBlock, kWidth));
    Bench bench(gpu);
    WITHY_RETURN_IF_ERROR(bench.Prepare(sample.matrix(), WholeNumbers(rows, kWidth), rows));
    WITHY_ASSIGN_OR_RETURN(const int64_t exact, LeastTime(gpu, now_ns, [&bench] {
                             bench.Multiply(ProductPath::kMma);
                             return absl::OkStatus();
                           }));
    WITHY_ASSIGN_OR_RETURN(const int64_t dense, LeastTime(gpu, now_ns, [&bench, &path] {
                             return bench.Multiply(path);
                           }));
    if (dense < exact) return rows;
  }
  return std::numeric_limits<int32_t>::max();
}

absl::StatusOr<DenseChoice> ChooseDense(Gpu& gpu, int32_t least_rows,
                                        const std::function<int64_t()>& now_ns) {
  WITHY_ASSIGN_OR_RETURN(DenseMath* const math, gpu.OpenDense());
  WITHY_RETURN_IF_ERROR(CheckDense(gpu, *math));
  if (least_rows == 0) {
    WITHY_ASSIGN_OR_RETURN(least_rows, MeasureDenseRows(gpu, *math, now_ns));
  }
  if (least_rows > gpu.dense_piece_rows()) {
    return absl::FailedPreconditionError(
        absl::StrCat(ToAbsl(math->description()), " is not faster here"));
  }
  return DenseChoice{math, least_rows};
}

}  // namespace withy::engine::cuda
