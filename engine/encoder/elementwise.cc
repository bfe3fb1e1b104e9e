#include "engine/encoder/elementwise.h"

#include <cmath>

namespace withy::engine {
namespace {

constexpr int kLanes = 16;

// Sums in sixteen interleaved parts: a fixed order that compilers can vectorise.
template <typename Term>
float SumOf(int n, Term term) {
  float part[kLanes] = {};
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) part[lane] += term(i + lane);
  }
  for (int lane = 0; i + lane < n; ++lane) part[lane] += term(i + lane);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) part[lane] += part[lane + width];
  }
  return part[0];
}

void Normalise(const NormWeights& norm, int n, float* __restrict y) {
  const float* __restrict weight = norm.weight;
  const float* __restrict bias = norm.bias;
  if (norm.kind == EncoderNorm::kNoNorm) {
    for (int i = 0; i < n; ++i) y[i] = y[i] * weight[i] + bias[i];
    return;
  }
  const float mean = SumOf(n, [y](int i) { return y[i]; }) / static_cast<float>(n);
  const float squares = SumOf(n, [y, mean](int i) { return (y[i] - mean) * (y[i] - mean); });
  const float scale = 1.0f / std::sqrt(squares / static_cast<float>(n) + norm.epsilon);
  for (int i = 0; i < n; ++i) y[i] = (y[i] - mean) * scale * weight[i] + bias[i];
}

}  // namespace

void AddBias(const float* __restrict bias, int n, float* __restrict y) {
  for (int i = 0; i < n; ++i) y[i] += bias[i];
}

void AddBiasRelu(const float* __restrict bias, int n, float* __restrict y) {
  for (int i = 0; i < n; ++i) {
    const float sum = y[i] + bias[i];
    y[i] = sum > 0.0f ? sum : 0.0f;
  }
}

void AddBiasTanh(const float* bias, int n, float* y) {
  for (int i = 0; i < n; ++i) y[i] = std::tanh(y[i] + bias[i]);
}

void AddAndNorm(const float* __restrict bias, const float* __restrict residual,
                const NormWeights& norm, int n, float* __restrict y) {
  if (residual == nullptr) {
    AddBias(bias, n, y);
  } else {
    for (int i = 0; i < n; ++i) y[i] = (y[i] + bias[i]) + residual[i];
  }
  Normalise(norm, n, y);
}

}  // namespace withy::engine
