// Checks that a GPU computes what this program expects, and measures where its matrix units win.
// Neighbours: cuda_gpu.cc runs the check when a GPU is opened, model/devices.cc measures.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/cuda/gpu/gpu.h"

namespace withy::engine::cuda {

// Multiplies small matrices of every weight type by dp4a and by mma and compares with the CPU: all
// sums within rounding, both paths equal bit for bit. Some milliseconds. Errors:
// FAILED_PRECONDITION naming the weight type and both results; as Gpu.
absl::Status SelfCheck(Gpu& gpu);

// Multiplies small matrices of every weight type by `math` as long prompts are, and compares with
// the CPU. Errors: as SelfCheck.
absl::Status CheckDense(Gpu& gpu, DenseMath& math);

// How long prompts are computed.
struct DenseChoice {
  DenseMath* math = nullptr;
  int32_t least_rows = 0;  // of a prompt in a pass, from which `math` is used
};
// Opens and checks the GPU's DenseMath. `least_rows`: 0: what MeasureDenseRows finds. Errors: as
// Gpu::OpenDense and CheckDense; FAILED_PRECONDITION where it is never faster.
absl::StatusOr<DenseChoice> ChooseDense(Gpu& gpu, int32_t least_rows,
                                        const std::function<int64_t()>& now_ns);

// Rows of a prompt from which `math` is faster than the exact kernels for a matrix of 2048 x 2048
// in 8 bits: at least 128, more than any prompt has if it never is. `now_ns`: a clock. Errors: as
// Gpu.
absl::StatusOr<int32_t> MeasureDenseRows(Gpu& gpu, DenseMath& math,
                                         const std::function<int64_t()>& now_ns);

// Rows from which mma is faster than dp4a for a matrix of 2048 x 2048 in 8 bits, 2 .. 9. `now_ns`:
// a clock. Errors: as Gpu.
absl::StatusOr<int32_t> MeasureMmaRows(Gpu& gpu, const std::function<int64_t()>& now_ns);

// Operations in a second (two a multiply-add) of the products of 2048 rows with such a matrix by
// mma; 0 where times say nothing. Errors: as Gpu.
absl::StatusOr<double> MeasureMmaRate(Gpu& gpu);

// The same of a product of F16 matrices of 4096 x 4096. Errors: as Gpu and DenseMath.
absl::StatusOr<double> MeasureF16Rate(Gpu& gpu, DenseMath& math);

}  // namespace withy::engine::cuda
