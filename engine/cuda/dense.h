// Products of many rows as F16 matrices: what kernels and DenseMath do together, and their scratch
// memory. Neighbours: dense-inl.cuh has the kernels, dense_rows.h says which rows are computed so,
// run.cc queues the products.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/cuda/gpu/dense_math.h"
#include "engine/cuda/gpu/gpu.h"
#include "engine/model/facts.h"

namespace withy::engine::cuda {

// Products with the same inputs and rows, in device memory.
struct DenseGroup {
  const Product* products = nullptr;
  int count = 0;
  int strips = 0;  // of all products
  int rows = 0;
  int blocks = 0;  // of inputs that the row with most has
  bool fused = false;
  bool from_floats = false;
};

// For one thread at a time. `gpu` and `math` must outlive it.
class DensePath {
 public:
  DensePath(Gpu& gpu, DenseMath& math);

  // Makes room for groups of at most so many rows, blocks of inputs, and outputs. Errors: as
  // Gpu::Allocate.
  absl::Status Reserve(int rows, int blocks, int outputs);
  // Queues a group. Its numbers must be within what was reserved. Errors: as DenseMath::Multiply.
  absl::Status Launch(const DenseGroup& group);

  size_t bytes() const;
  const DenseMath& math() const { return math_; }

 private:
  Gpu& gpu_;
  DenseMath& math_;
  Buffer weights_;
  Buffer inputs_;
  Buffer sums_;
  Buffer factors_;
  int rows_ = 0;
};

// One with room for the matrices of a model.
absl::StatusOr<std::unique_ptr<DensePath>> NewDensePath(Gpu& gpu, DenseMath& math,
                                                        const ModelShape& shape, int rows);

}  // namespace withy::engine::cuda
