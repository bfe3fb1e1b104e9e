#include "engine/model/devices.h"

#include <algorithm>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/strings.h"
#include "engine/cpu/executor.h"
#include "engine/cuda/executor.h"
#include "engine/cuda/gpu/memory_ways.h"
#include "engine/cuda/gpu/open_gpu.h"
#include "engine/cuda/gpu/self_check.h"
#include "engine/model/gpu_check.h"

namespace withy::engine {
namespace {

constexpr int32_t kMaxThreads = 256;
constexpr int32_t kMaxGpus = 64;

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

struct Device {
  enum class Kind : uint8_t { kCpu, kAuto, kCuda, kCudaOnCpu };
  Kind kind = Kind::kCpu;
  int32_t index = 0;  // of the GPU
};

absl::StatusOr<Device> ParseDevice(const std::string& name) {
  if (name.empty() || name == "cpu") return Device{};
  if (name == "auto") return Device{Device::Kind::kAuto};
  if (name == "cuda") return Device{Device::Kind::kCuda};
  if (name == "cuda-on-cpu") return Device{Device::Kind::kCudaOnCpu};
  Device device{Device::Kind::kCuda};
  absl::string_view index = name;
  if (absl::ConsumePrefix(&index, "cuda:") && absl::SimpleAtoi(index, &device.index) &&
      device.index >= 0 && device.index < kMaxGpus) {
    return device;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("device \"", name,
                   "\" is not known; it must be auto, cpu, cuda, or cuda:N with N "
                   "from 0 to ",
                   kMaxGpus - 1));
}

absl::StatusOr<std::unique_ptr<cuda::Gpu>> OpenGpu(const Device& device,
                                                   const ModelOptions& options) {
  if (device.kind == Device::Kind::kCudaOnCpu) return cuda::OpenGpuOnCpu();
  return options.open_gpu ? options.open_gpu(device.index) : cuda::OpenCudaGpu(device.index);
}

// Rows of long prompts go to cuBLAS where that is found and wins. Says what was decided.
std::string DecideDense(const ModelOptions& options, cuda::CudaExecutor* executor) {
  cuda::Gpu& gpu = executor->gpu();
  if (options.exact_prefill) return "prompts are computed exactly";
  if (options.dense_rows == 0 && !gpu.has_times()) return "prompts are computed exactly";
  const auto use = [&]() -> absl::StatusOr<std::string> {
    WITHY_ASSIGN_OR_RETURN(
        const cuda::DenseChoice choice,
        cuda::ChooseDense(gpu, options.dense_rows, [] { return Clock::Real().SteadyNanos(); }));
    const int32_t piece_rows = std::max(gpu.dense_piece_rows(), options.max_piece_rows);
    WITHY_RETURN_IF_ERROR(executor->UseDense(*choice.math, choice.least_rows, piece_rows));
    return absl::StrCat("prompts of ", choice.least_rows, " rows and more by ",
                        ToAbsl(choice.math->description()));
  };
  const absl::StatusOr<std::string> used = use();
  if (used.ok()) return *used;
  return absl::StrCat("prompts without cuBLAS: ", used.status().message());
}

absl::StatusOr<OpenedDevice> OpenChecked(const Device& device, const ModelOptions& options) {
  OpenedDevice opened;
  WITHY_ASSIGN_OR_RETURN(opened.gpu, OpenGpu(device, options));
  cuda::Gpu& gpu = *opened.gpu;
  if (gpu.has_times()) {
    WITHY_RETURN_IF_ERROR(CheckGpu(gpu).status());
    WITHY_ASSIGN_OR_RETURN(const std::vector<cuda::WayResult> memory,
                           cuda::MeasureMemory(gpu, /*all=*/false));
    WITHY_RETURN_IF_ERROR(cuda::CheckMemory(memory));
    opened.of_gpu.weights = cuda::WayForWeights(memory);
  }
  if (options.matrix_unit_rows > 0) {
    opened.of_gpu.mma_rows = options.matrix_unit_rows;
  } else if (gpu.has_times()) {
    WITHY_ASSIGN_OR_RETURN(opened.of_gpu.mma_rows,
                           cuda::MeasureMmaRows(gpu, [] { return Clock::Real().SteadyNanos(); }));
  }
  return opened;
}

void Tell(const ModelOptions& options, const std::string& line) {
  if (options.on_device) options.on_device(line);
}

}  // namespace

absl::StatusOr<int> CheckDevice(const ModelOptions& options) {
  WITHY_RETURN_IF_ERROR(ChooseKernels(options.target).status());
  WITHY_RETURN_IF_ERROR(ParseDevice(options.device).status());
  if (options.threads < 0 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads is ", options.threads, "; it must be 0 to ", kMaxThreads));
  }
  if (options.threads > 0) return options.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

absl::StatusOr<OpenedDevice> OpenDevice(const ModelOptions& options) {
  WITHY_ASSIGN_OR_RETURN(const Device device, ParseDevice(options.device));
  if (device.kind == Device::Kind::kCpu) return OpenedDevice{};
  absl::StatusOr<OpenedDevice> opened = OpenChecked(device, options);
  if (opened.ok()) return opened;
  if (device.kind != Device::Kind::kAuto) {
    return Annotate(opened.status(), absl::StrCat("device \"", options.device, "\""));
  }
  Tell(options, absl::StrCat("the model is computed on the CPU: ", opened.status().message()));
  return OpenedDevice{};
}

absl::StatusOr<std::unique_ptr<Executor>> ChooseExecutor(
    OpenedDevice device, const PackedFile& file, const ModelFacts& facts,
    const ModelOptions& options,
    const std::function<void(int32_t layer, std::span<const float> hidden)>& tap,
    WeightStream* stream, bool* on_gpu) {
  WITHY_ASSIGN_OR_RETURN(const Kernels* kernels, ChooseKernels(options.target));
  WITHY_ASSIGN_OR_RETURN(const int threads, CheckDevice(options));
  *on_gpu = device.gpu != nullptr;
  if (*on_gpu) {
    const std::string name(device.gpu->description());
    auto executor = cuda::CudaExecutor::Create(std::move(device.gpu), file, facts, tap, stream,
                                               options.kernel_observer, device.of_gpu);
    if (executor.ok()) {
      Tell(options, absl::StrCat("the model is computed on ", name, "; ",
                                 DecideDense(options, executor->get())));
      return executor;
    }
    if (options.device != "auto") {
      return Annotate(executor.status(), absl::StrCat("device \"", options.device, "\""));
    }
    *on_gpu = false;
    Tell(options, absl::StrCat("the model is computed on the CPU: ", executor.status().message()));
  }
  return std::make_unique<CpuExecutor>(file, facts, *kernels, threads, tap, stream,
                                       options.kernel_observer);
}

}  // namespace withy::engine
