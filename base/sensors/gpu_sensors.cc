#include "base/sensors/gpu_sensors.h"

#include <algorithm>
#include <cctype>
#include <string_view>
#include <utility>

#include "base/sensors/sysfs.h"

namespace withy {
namespace {

// Names of the GPUs of Tegras among the devices that change their frequency: "17000000.gpu",
// "17000000.ga10b", "gpu-gpc-0".
bool IsTegraGpu(const std::string& name) {
  for (const std::string_view part : {"gpu", "gm20b", "gp10b", "gv11b", "ga10b", "gb10b"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return false;
}

std::string LowerCase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

GpuSensors GpuSensors::Find(const std::string& root, std::shared_ptr<const Nvml> nvml) {
  GpuSensors sensors;
  sensors.nvml_ = std::move(nvml);
  if (sensors.nvml_ != nullptr) return sensors;
  for (const auto& device : sysfs::Entries(root + "/sys/class/devfreq")) {
    if (!IsTegraGpu(device.filename()) || !sysfs::ReadNumber(device / "cur_freq").has_value()) {
      continue;
    }
    sensors.devfreq_ = device;
    sensors.zones_ = ThermalZones::Find(root);
    break;
  }
  return sensors;
}

const char* GpuSensors::name() const {
  if (nvml_ != nullptr) return "NVML";
  return devfreq_.empty() ? "" : "devfreq";
}

std::vector<GpuReading> GpuSensors::Read() const {
  std::vector<GpuReading> readings;
  if (nvml_ != nullptr) {
    for (uint32_t gpu = 0; gpu < nvml_->count(); ++gpu) {
      readings.push_back({.gpu = std::to_string(gpu),
                          .celsius = nvml_->Celsius(gpu),
                          .throttles_at = nvml_->ThrottlesAt(gpu),
                          .watts = nvml_->Watts(gpu),
                          .clock_hz = nvml_->ClockHz(gpu),
                          .busy = nvml_->Busy(gpu),
                          .memory_used_bytes = nvml_->MemoryUsedBytes(gpu)});
    }
  } else if (!devfreq_.empty()) {
    GpuReading& reading = readings.emplace_back();
    reading.gpu = "0";
    reading.clock_hz = sysfs::ReadNumber(devfreq_ / "cur_freq");
    reading.busy = sysfs::ReadNumber(devfreq_ / "device/load");
    if (reading.busy.has_value()) *reading.busy /= 1000;  // per mille
    for (const ThermalReading& zone : zones_.Read()) {
      if (LowerCase(zone.zone).find("gpu") == std::string::npos) continue;
      reading.celsius = std::max(reading.celsius.value_or(zone.celsius), zone.celsius);
    }
  }
  return readings;
}

}  // namespace withy
