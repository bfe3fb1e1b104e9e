#include "engine/cuda/dense.h"

#include <algorithm>

#include "base/status.h"

namespace withy::engine::cuda {
namespace {

int BlocksOf(int inputs) { return (inputs + 31) / 32; }

}  // namespace

DensePath::DensePath(Gpu& gpu, DenseMath& math)
    : gpu_(gpu), math_(math), weights_(gpu), inputs_(gpu), sums_(gpu), factors_(gpu) {}

absl::Status DensePath::Reserve(int rows, int blocks, int outputs) {
  // Whole strips, of gate and up two each.
  const int strips = std::min(kDenseColumns, 2 * (outputs + kStripOutputs)) / kStripOutputs;
  const auto columns = static_cast<size_t>(strips) * kStripOutputs;
  const auto inputs = static_cast<size_t>(blocks) * 32;
  const auto count = static_cast<size_t>(rows);
  WITHY_RETURN_IF_ERROR(weights_.Reserve(columns * inputs * sizeof(uint16_t)));
  WITHY_RETURN_IF_ERROR(inputs_.Reserve(count * inputs * sizeof(uint16_t)));
  WITHY_RETURN_IF_ERROR(sums_.Reserve(count * columns * sizeof(float)));
  WITHY_RETURN_IF_ERROR(factors_.Reserve((kDenseColumns + count) * sizeof(float)));
  rows_ = rows;
  return absl::OkStatus();
}

size_t DensePath::bytes() const {
  return weights_.bytes() + inputs_.bytes() + sums_.bytes() + factors_.bytes();
}

absl::Status DensePath::Launch(const DenseGroup& group) {
  const Kernels& kernels = gpu_.kernels();
  const int strip_columns = (group.fused ? 2 : 1) * kStripOutputs;
  DenseArgs args{.products = group.products,
                 .count = group.count,
                 .rows = group.rows,
                 .blocks = group.blocks,
                 .fused = group.fused,
                 .from_floats = group.from_floats,
                 .weights = weights_.as<uint16_t>(),
                 .inputs = inputs_.as<uint16_t>(),
                 .weight_factors = factors_.as<float>(),
                 .input_factors = factors_.as<float>() + kDenseColumns,
                 .sums = sums_.as<float>()};
  const int at_once = kDenseColumns / strip_columns;
  kernels.dense_inputs(gpu_.queue(), args);
  for (int strip = 0; strip < group.strips; strip += at_once) {
    args.first_strip = strip;
    args.strips = std::min(at_once, group.strips - strip);
    kernels.dense_weights(gpu_.queue(), args);
    WITHY_RETURN_IF_ERROR(math_.Multiply({.a = args.weights,
                                          .b = args.inputs,
                                          .c = sums_.as<float>(),
                                          .outputs = args.strips * strip_columns,
                                          .rows = args.rows,
                                          .inputs = args.blocks * 32}));
    kernels.dense_finish(gpu_.queue(), args);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<DensePath>> NewDensePath(Gpu& gpu, DenseMath& math,
                                                        const ModelShape& shape, int rows) {
  auto path = std::make_unique<DensePath>(gpu, math);
  const int blocks =
      std::max({BlocksOf(shape.d_model), BlocksOf(shape.q_rows()), BlocksOf(shape.d_ff)});
  const int outputs =
      std::max({shape.d_model, shape.q_rows() + 2 * shape.kv_rows(), shape.d_ff, shape.vocab_size});
  WITHY_RETURN_IF_ERROR(path->Reserve(rows, blocks, outputs));
  return path;
}

}  // namespace withy::engine::cuda
