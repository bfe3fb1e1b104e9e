// The board's energy, as Linux reports it. Neighbours: policy/board/energy_ledger.h divides it
// among calls, orchestrator/board/board_watch.h samples it, thermal_zones.h has the board's
// temperatures, gpu_sensors.h those of GPUs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/sensors/nvml.h"

namespace withy {

// Sums what a meter says. One thread at a time.
//
//   meter                          what it measures             where
//   powercap (RAPL)                counts the energy of psys,   class/powercap/intel-rapl:N
//                                  else of all packages
//   INA3221                        power of the board's input   class/hwmon/hwmonN, and JetPack 4's
//                                  (VDD_IN), else of all rails  bus/i2c/drivers/ina3221x
//   battery, while it discharges   power of the whole device    class/power_supply
//   NVML                           counts the energy of NVIDIA  libnvidia-ml.so.1
//                                  GPUs, or their power
class EnergyMeter {
 public:
  virtual ~EnergyMeter() = default;

  // The first of the table that the board has and that can be read; null: none. `root` is prepended
  // to /sys; "" reads this board.
  // `nvml`: null: there is none.
  static std::unique_ptr<EnergyMeter> Find(const std::string& root = "",
                                           std::shared_ptr<const Nvml> nvml = nullptr);

  // Joules since Find. Meters of power are integrated between calls by the trapezoid rule, so that
  // the caller's interval is the resolution. A value that cannot be read adds nothing.
  // `now_ns`: steady time.
  virtual double Joules(int64_t now_ns) = 0;
  // "powercap", "ina3221", "battery" or "NVML".
  virtual const char* name() const = 0;
};

}  // namespace withy
