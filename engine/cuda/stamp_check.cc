#include "engine/cuda/stamp_check.h"

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace withy::engine::cuda {

absl::StatusOr<std::vector<StampedOp>> CompareStamps(std::span<const KernelRun> runs, size_t ops,
                                                     std::span<const KernelTime> kernels) {
  // Microseconds of kernels before each stamp, and behind the last one.
  std::vector<double> between(1);
  for (const KernelTime& kernel : kernels) {
    if (absl::StrContains(kernel.name, "StampKernel")) {
      between.push_back(0);
    } else {
      between.back() += static_cast<double>(kernel.ended_ns - kernel.started_ns) / 1e3;
    }
  }
  const size_t passes = ops == 0 ? 0 : runs.size() / ops;
  const size_t stamps = passes * (ops + 1);
  if (passes == 0 || runs.size() != passes * ops || between.size() != stamps + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("CUPTI recorded ", between.size() - 1, " stamps where passes of ", ops,
                     " operations told of ", runs.size(), " operations"));
  }
  std::map<OpKind, StampedOp> kinds;
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto kind = static_cast<OpKind>(runs[i].op);
    StampedOp& op = kinds[kind];
    op.kind = kind;
    ++op.count;
    op.stamped_us += static_cast<double>(runs[i].ended - runs[i].started) / 1e3;
    // A pass begins with a stamp; behind its stamp j is its operation j.
    op.recorded_us += between[i / ops * (ops + 1) + i % ops + 1];
  }
  std::vector<StampedOp> result;
  for (const auto& [kind, op] : kinds) result.push_back(op);
  return result;
}

}  // namespace withy::engine::cuda
