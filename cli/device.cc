// withyctl device: what can compute models here, without a service.
#include <cstdint>
#include <iostream>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/strings.h"
#include "cli/command.h"
#include "cli/device_report.h"
#include "cli/output.h"
#include "cli/terminal_text.h"
#include "engine/cpu/kernels.h"
#include "engine/cuda/gpu/open_gpu.h"
#include "engine/cuda/gpu/self_check.h"

namespace withy::cli {
namespace {

constexpr int32_t kMaxGpus = 64;

// How the GPU computes long prompts.
std::string Prompts(engine::cuda::Gpu& gpu) {
  const auto now = [] { return Clock::Real().SteadyNanos(); };
  const auto choice = engine::cuda::ChooseDense(gpu, 0, now);
  if (!choice.ok()) return absl::StrCat("without cuBLAS: ", choice.status().message());
  return absl::StrCat("of ", choice->least_rows, " rows and more by ",
                      ToAbsl(choice->math->description()));
}

int RunDevice(const Args&) {
  std::vector<std::vector<std::string>> rows = {{"DEVICE", "WHAT", "STATE"}};
  rows.push_back({"cpu", absl::StrCat(engine::DefaultKernels().name, " kernels"),
                  absl::StrCat(std::thread::hardware_concurrency(), " cores")});
  for (int32_t index = 0; index < kMaxGpus; ++index) {
    const auto gpu = engine::cuda::OpenCudaGpu(index);
    if (gpu.ok()) {
      for (const GpuFact& fact : ReportGpu(**gpu)) {
        rows.push_back({absl::StrCat("cuda:", index), fact.what, fact.state});
      }
      rows.push_back({absl::StrCat("cuda:", index), "prompts", Printable(Prompts(**gpu))});
      continue;
    }
    if (index == 0 || !absl::IsNotFound(gpu.status())) {
      rows.push_back({absl::StrCat("cuda:", index), "", Printable(ToStd(gpu.status().message()))});
    }
    if (index == 0 || absl::IsNotFound(gpu.status())) break;  // there are no more
  }
  std::cout << Table(rows);
  return kExitOk;
}

}  // namespace

std::vector<Command> DeviceCommands() {
  return {{"device",
           "",
           "what can compute models on this machine: CPU and GPUs, checked and measured",
           {},
           RunDevice}};
}

}  // namespace withy::cli
