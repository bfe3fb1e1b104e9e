// Lays what a KernelObserver was told of passes on the GPU beside what CUPTI recorded of the same
// kernels. Pure. Neighbours: pass_stamps.h writes the stamps, gpu/cupti.h records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/cuda/gpu/cupti.h"
#include "engine/model/kernel_observer.h"
#include "engine/model/program.h"

namespace withy::engine::cuda {

// Of all operations of a kind.
struct StampedOp {
  OpKind kind = OpKind::kEmbed;
  size_t count = 0;
  double stamped_us = 0;   // from stamp to stamp: kernels, and the gaps between them
  double recorded_us = 0;  // the kernels alone, by CUPTI
};

// `runs`: of one pass that was not interrupted, or of several, `ops` operations each, in order, in
// nanoseconds. `kernels`: all that ran meanwhile, by start, stamps included. Ordered by kind.
// Errors: FAILED_PRECONDITION if the kernels are not those of the passes, because the clocks were
// compared meanwhile or CUPTI has lost records: measure again.
absl::StatusOr<std::vector<StampedOp>> CompareStamps(std::span<const KernelRun> runs, size_t ops,
                                                     std::span<const KernelTime> kernels);

}  // namespace withy::engine::cuda
