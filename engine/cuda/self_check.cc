#include "engine/cuda/self_check.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "engine/cpu/aligned.h"
#include "engine/cpu/packed_matrix.h"
#include "engine/cuda/workspace.h"

namespace withy::engine::cuda {
namespace {

constexpr double kTolerance = 1e-4;

// A matrix with random weights, on the host and on the GPU.
class Sample {
 public:
  Sample(Gpu& gpu, WeightType type, int n_out, int n_in)
      : gpu_(gpu), packed_memory_(gpu), memory_(gpu) {
    packed_ = {.type = type, .n_out = n_out, .n_in = n_in, .panel_inputs = 64};
    Fill();
    matrix_ = {.type = type, .n_out = n_out, .n_in = n_in};
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
      for (size_t i = 0; i < n; ++i) {
        f32[i] = static_cast<float>(static_cast<int>(random() % 2001) - 1000) * 1e-4f;
        half[i] = packed_.type == WeightType::kBf16 ? F32ToBf16(f32[i]) : F32ToF16(f32[i]);
        q8[i] = static_cast<int8_t>(static_cast<int>(random() % 256) - 128);
        q4[i] = static_cast<uint8_t>(random() % 16);
      }
      for (size_t i = 0; i < scales.size(); ++i) {
        scales[i] = F32ToF16(1e-3f + 1e-5f * static_cast<float>(random() % 100));
        mins[i] = F32ToF16(-1e-2f + 1e-4f * static_cast<float>(random() % 100));
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

// Rows whose blocks of 32 hold whole numbers up to 127: rounding them to 8 bits loses nothing.
std::vector<float> WholeNumbers(int rows, int width) {
  std::mt19937 random(11);
  std::vector<float> x(static_cast<size_t>(rows) * static_cast<size_t>(width));
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = i % 32 == 0 ? 127.0f : static_cast<float>(static_cast<int>(random() % 255) - 127);
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
};

absl::Status CheckSums(const PackedMatrix& w, const std::vector<float>& x,
                       const std::vector<float>& y) {
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
      if (!(std::fabs(got - sum) <= kTolerance * size)) {
        return absl::FailedPreconditionError(
            absl::StrCat("self-check failed: a product of weights of type ", WeightTypeName(w.type),
                         " gives ", got, " where the CPU computes ", sum,
                         "; check the card and its driver, or set model.device to cpu"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SelfCheck(Gpu& gpu) {
  constexpr int kRows = 9;
  constexpr int kOutputs = 80;
  constexpr int kInputs = 320;
  const std::vector<float> x = WholeNumbers(kRows, kInputs);
  for (const WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBf16,
                                WeightType::kQ8, WeightType::kQ4, WeightType::kQ4M}) {
    Sample sample(gpu, type, kOutputs, kInputs);
    WITHY_RETURN_IF_ERROR(sample.Send());
    std::vector<std::vector<float>> results;
    for (const ProductPath path : {ProductPath::kDp4a, ProductPath::kMma}) {
      Bench bench(gpu);
      WITHY_RETURN_IF_ERROR(bench.Prepare(sample.matrix(), x, kRows));
      bench.Multiply(path);
      WITHY_ASSIGN_OR_RETURN(std::vector<float> y, bench.Result());
      WITHY_RETURN_IF_ERROR(CheckSums(sample.packed(), x, y));
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
  constexpr int kWidth = 2048;
  constexpr int kRounds = 5;
  constexpr int32_t kMostRows = 8;
  Sample sample(gpu, WeightType::kQ8, kWidth, kWidth);
  WITHY_RETURN_IF_ERROR(sample.Send());
  for (int32_t rows = 2; rows <= kMostRows; ++rows) {
    Bench bench(gpu);
    WITHY_RETURN_IF_ERROR(bench.Prepare(sample.matrix(), WholeNumbers(rows, kWidth), rows));
    int64_t least[2] = {std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::max()};
    for (int round = 0; round < kRounds; ++round) {
      for (const ProductPath path : {ProductPath::kDp4a, ProductPath::kMma}) {
        WITHY_RETURN_IF_ERROR(gpu.Wait());
        const int64_t begun = now_ns();
        bench.Multiply(path);
        WITHY_RETURN_IF_ERROR(gpu.Wait());
        int64_t& best = least[path == ProductPath::kMma ? 1 : 0];
        best = std::min(best, now_ns() - begun);
      }
    }
    if (least[1] < least[0]) return rows;
  }
  return kMostRows + 1;
}

absl::StatusOr<double> MeasureMmaRate(Gpu& gpu) {
  constexpr int kWidth = 2048;
  constexpr int kRounds = 5;
  if (!gpu.has_times()) return 0.0;
  Sample sample(gpu, WeightType::kQ8, kWidth, kWidth);
  WITHY_RETURN_IF_ERROR(sample.Send());
  Bench bench(gpu);
  WITHY_RETURN_IF_ERROR(bench.Prepare(sample.matrix(), WholeNumbers(kWidth, kWidth), kWidth));
  Buffer stamps(gpu, MemoryWay::kHost);
  WITHY_RETURN_IF_ERROR(stamps.Reserve(2 * sizeof(uint64_t)));
  auto* const at = stamps.as<uint64_t>();
  uint64_t least = std::numeric_limits<uint64_t>::max();
  for (int round = 0; round < kRounds; ++round) {
    gpu.kernels().stamp(gpu.queue(), {.to = at});
    bench.Multiply(ProductPath::kMma);
    gpu.kernels().stamp(gpu.queue(), {.to = at + 1});
    WITHY_RETURN_IF_ERROR(gpu.Wait());
    least = std::min(least, std::max<uint64_t>(1, at[1] - at[0]));
  }
  return 1e9 * 2.0 * kWidth * kWidth * kWidth / static_cast<double>(least);
}

}  // namespace withy::engine::cuda
