#include "engine/model/devices.h"

#include <algorithm>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "engine/cpu/executor.h"

namespace withy::engine {
namespace {

constexpr int32_t kMaxThreads = 256;

absl::StatusOr<const Kernels*> ChooseKernels(const std::string& name) {
  if (name.empty()) return &DefaultKernels();
  Target target;
  if (ParseTarget(name, &target)) return KernelsFor(target);
  const std::string names = absl::StrJoin(SupportedTargets(), ", ", [](std::string* out, Target t) {
    out->append(KernelsFor(t)->name);
  });
  return absl::InvalidArgumentError(
      absl::StrCat("kernel target \"", name, "\" cannot run here; these can: ", names));
}

}  // namespace

absl::StatusOr<int> CheckDevice(const ModelOptions& options) {
  WITHY_RETURN_IF_ERROR(ChooseKernels(options.target).status());
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, "; it must be 0 to ", kMaxThreads));
  }
  if (options.threads > 0) return options.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

absl::StatusOr<std::unique_ptr<Executor>> ChooseExecutor(
    const PackedFile& file, const ModelFacts& facts, const ModelOptions& options,
    const std::function<void(int32_t layer, std::span<const float> hidden)>& tap,
    WeightStream* stream) {
  WITHY_ASSIGN_OR_RETURN(const Kernels* kernels, ChooseKernels(options.target));
  WITHY_ASSIGN_OR_RETURN(const int threads, CheckDevice(options));
  return std::make_unique<CpuExecutor>(file, facts, *kernels, threads, tap, stream,
                                       options.kernel_observer);
}

}  // namespace withy::engine
