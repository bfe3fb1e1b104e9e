// Products of F16 matrices of the device for tests, in loops. Neighbours: gpu_on_cpu.h.
#pragma once

#include <string_view>

#include "engine/cuda/gpu/dense_math.h"

namespace withy::engine::on_cpu {

class DenseOnCpu final : public cuda::DenseMath {
 public:
  std::string_view description() const override { return "loops on the CPU"; }
  absl::Status Multiply(const cuda::DenseProduct& product) override;

  int products() const { return products_; }  // computed so far

 private:
  int products_ = 0;
};

}  // namespace withy::engine::on_cpu
