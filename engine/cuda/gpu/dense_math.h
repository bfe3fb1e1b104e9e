// Multiplies large F16 matrices on a GPU. Neighbours: cublas.h is the one of NVIDIA's library,
// on_cpu/dense_on_cpu.h the one for tests, dense.h makes the matrices.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"

namespace withy::engine::cuda {

// c[row, output] = sum over k of a[output, k] * b[row, k], summed in F32 in an order that may
// depend on all sizes. Device addresses, aligned to 16 bytes; rows lie one behind the other.
struct DenseProduct {
  const uint16_t* a = nullptr;  // F16 [outputs, inputs]
  const uint16_t* b = nullptr;  // F16 [rows, inputs]
  float* c = nullptr;           // F32 [rows, outputs]
  int outputs = 0;
  int rows = 0;
  int inputs = 0;  // a multiple of 32
};

// For one thread at a time. Owned by its Gpu.
class DenseMath {
 public:
  virtual ~DenseMath() = default;
  // For people: "cuBLAS 13.1".
  virtual std::string_view description() const = 0;
  // Queues the product on the GPU's stream. Errors: INTERNAL naming the library's status.
  virtual absl::Status Multiply(const DenseProduct& product) = 0;
};

}  // namespace withy::engine::cuda
