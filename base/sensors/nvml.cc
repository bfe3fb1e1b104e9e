#include "base/sensors/nvml.h"

#include <dlfcn.h>

namespace withy {
namespace {

// As in nvml.h of the driver; its values and layouts do not change.
constexpr int kNvmlSuccess = 0;
constexpr unsigned kNvmlTemperatureGpu = 0;
constexpr unsigned kNvmlThresholdSlowdown = 1;
constexpr unsigned kNvmlClockSm = 1;
struct NvmlUtilization {
  unsigned gpu;  // per cent
  unsigned memory;
};
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

}  // namespace

struct Nvml::Functions {
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*count)(unsigned*) = nullptr;
  int (*handle)(unsigned, void**) = nullptr;
  // Null where the library lacks it.
  int (*temperature)(void*, unsigned, unsigned*) = nullptr;
  int (*threshold)(void*, unsigned, unsigned*) = nullptr;
  int (*power)(void*, unsigned*) = nullptr;             // milliwatts
  int (*energy)(void*, unsigned long long*) = nullptr;  // millijoules
  int (*clock)(void*, unsigned, unsigned*) = nullptr;   // MHz
  int (*utilization)(void*, NvmlUtilization*) = nullptr;
  int (*memory)(void*, NvmlMemory*) = nullptr;

  template <typename Function>
  static bool Find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    return *function != nullptr;
  }
};

Nvml::Nvml() : functions_(std::make_unique<Functions>()) {}

Nvml::~Nvml() {
  if (initialised_) functions_->shutdown();
  if (library_ != nullptr) dlclose(library_);
}

std::shared_ptr<Nvml> Nvml::Open(const std::string& root) {
  std::shared_ptr<Nvml> nvml(new Nvml);  // the meter and the gauges share it
  if (!nvml->Load(root)) return nullptr;
  return nvml;
}

bool Nvml::Load(const std::string& root) {
  const std::string name = root.empty() ? "libnvidia-ml.so.1" : root + "/libnvidia-ml.so.1";
  library_ = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library_ == nullptr) return false;
  Functions& f = *functions_;
  if (!Functions::Find(library_, "nvmlInit_v2", &f.init) ||
      !Functions::Find(library_, "nvmlShutdown", &f.shutdown) ||
      !Functions::Find(library_, "nvmlDeviceGetCount_v2", &f.count) ||
      !Functions::Find(library_, "nvmlDeviceGetHandleByIndex_v2", &f.handle)) {
    return false;
  }
  Functions::Find(library_, "nvmlDeviceGetTemperature", &f.temperature);
  Functions::Find(library_, "nvmlDeviceGetTemperatureThreshold", &f.threshold);
  Functions::Find(library_, "nvmlDeviceGetPowerUsage", &f.power);
  Functions::Find(library_, "nvmlDeviceGetTotalEnergyConsumption", &f.energy);
  Functions::Find(library_, "nvmlDeviceGetClockInfo", &f.clock);
  Functions::Find(library_, "nvmlDeviceGetUtilizationRates", &f.utilization);
  Functions::Find(library_, "nvmlDeviceGetMemoryInfo", &f.memory);
  initialised_ = f.init() == kNvmlSuccess;
  unsigned count = 0;
  if (!initialised_ || f.count(&count) != kNvmlSuccess) return false;
  count_ = count;
  return count > 0;
}

// Null: it is gone, or not for this process.
void* Nvml::Device(uint32_t gpu) const {
  void* device = nullptr;
  return functions_->handle(gpu, &device) == kNvmlSuccess ? device : nullptr;
}

std::optional<double> Nvml::Celsius(uint32_t gpu) const {
  unsigned celsius = 0;
  void* const device = Device(gpu);
  if (device == nullptr || functions_->temperature == nullptr) return std::nullopt;
  if (functions_->temperature(device, kNvmlTemperatureGpu, &celsius) != kNvmlSuccess) {
    return std::nullopt;
  }
  return celsius;
}

std::optional<double> Nvml::ThrottlesAt(uint32_t gpu) const {
  unsigned celsius = 0;
  void* const device = Device(gpu);
  if (device == nullptr || functions_->threshold == nullptr) return std::nullopt;
  if (functions_->threshold(device, kNvmlThresholdSlowdown, &celsius) != kNvmlSuccess ||
      celsius == 0) {
    return std::nullopt;
  }
  return celsius;
}

std::optional<double> Nvml::Watts(uint32_t gpu) const {
  unsigned milliwatts = 0;
  void* const device = Device(gpu);
  if (device == nullptr || functions_->power == nullptr) return std::nullopt;
  if (functions_->power(device, &milliwatts) != kNvmlSuccess) return std::nullopt;
  return milliwatts / 1e3;
}

std::optional<double> Nvml::Joules(uint32_t gpu) const {
  unsigned long long millijoules = 0;
  void* const device = Device(gpu);
  if (device == nullptr || functions_->energy == nullptr) return std::nullopt;
  if (functions_->energy(device, &millijoules) != kNvmlSuccess) return std::nullopt;
  return static_cast<double>(millijoules) / 1e3;
}

std::optional<double> Nvml::ClockHz(uint32_t gpu) const {
  unsigned megahertz = 0;
  void* const device = Device(gpu);
  if (device == nullptr || functions_->clock == nullptr) return std::nullopt;
  if (functions_->clock(device, kNvmlClockSm, &megahertz) != kNvmlSuccess) return std::nullopt;
  return megahertz * 1e6;
}

std::optional<double> Nvml::Busy(uint32_t gpu) const {
  NvmlUtilization utilization = {};
  void* const device = Device(gpu);
  if (device == nullptr || functions_->utilization == nullptr) return std::nullopt;
  if (functions_->utilization(device, &utilization) != kNvmlSuccess) return std::nullopt;
  return utilization.gpu / 100.0;
}

std::optional<double> Nvml::MemoryUsedBytes(uint32_t gpu) const {
  NvmlMemory memory = {};
  void* const device = Device(gpu);
  if (device == nullptr || functions_->memory == nullptr) return std::nullopt;
  if (functions_->memory(device, &memory) != kNvmlSuccess) return std::nullopt;
  return static_cast<double>(memory.used);
}

}  // namespace withy
