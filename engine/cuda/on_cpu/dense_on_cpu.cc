#include "engine/cuda/on_cpu/dense_on_cpu.h"

#include <cstddef>
#include <vector>

#include "engine/cpu/types.h"

namespace withy::engine::on_cpu {

absl::Status DenseOnCpu::Multiply(const cuda::DenseProduct& p) {
  ++products_;
  const auto outputs = static_cast<size_t>(p.outputs);
  const auto inputs = static_cast<size_t>(p.inputs);
  const auto rows = static_cast<size_t>(p.rows);
  std::vector<float> x(rows * inputs);
  for (size_t i = 0; i < x.size(); ++i) x[i] = F16ToF32(p.b[i]);
  std::vector<float> w(inputs);
  for (size_t o = 0; o < outputs; ++o) {
    for (size_t k = 0; k < inputs; ++k) w[k] = F16ToF32(p.a[o * inputs + k]);
    for (size_t row = 0; row < rows; ++row) {
      float sum = 0;
      for (size_t k = 0; k < inputs; ++k) sum += w[k] * x[row * inputs + k];
      p.c[row * outputs + o] = sum;
    }
  }
  return absl::OkStatus();
}

}  // namespace withy::engine::on_cpu
