// Temperature, power, clock and load of the board's GPUs. Neighbours: nvml.h is where NVIDIA's
// library is, /sys has a Jetson's; thermal_zones.h and energy_meter.h have those of the whole
// board; orchestrator/board/board_watch.h makes gauges of it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/sensors/nvml.h"
#include "base/sensors/thermal_zones.h"

namespace withy {

// A value that nobody tells is none.
struct GpuReading {
  std::string gpu;  // its number: "0"
  std::optional<double> celsius;
  std::optional<double> throttles_at;  // celsius from which on it slows itself down
  std::optional<double> watts;
  std::optional<double> clock_hz;
  std::optional<double> busy;  // share of time in which it computes, 0 .. 1
  std::optional<double> memory_used_bytes;
};

// One thread at a time.
//
//   where         temperature            power  clock               load          memory
//   NVML          yes                    yes    of the SMs          yes           yes
//   /sys (Tegra)  thermal zone with      -      class/devfreq       device/load   -
//                 "gpu" in its name
class GpuSensors {
 public:
  // `root` is prepended to /sys and to the library's name; "" reads this board. `nvml`: null: there
  // is none.
  static GpuSensors Find(const std::string& root, std::shared_ptr<const Nvml> nvml);
  GpuSensors() = default;  // of no GPU

  // "NVML", "devfreq", or "" where no GPU is known.
  const char* name() const;
  // Of each GPU, always in this order.
  std::vector<GpuReading> Read() const;

 private:
  std::shared_ptr<const Nvml> nvml_;  // the meter of energy has it, too
  std::filesystem::path devfreq_;     // empty: no GPU of a Tegra
  ThermalZones zones_;
};

}  // namespace withy
