// The board's temperatures and those at which it slows down, as Linux reports them. Neighbours:
// policy/board/thermal_limit.h steps the model down before that, energy_meter.h has the board's
// energy.
#pragma once

#include <filesystem>
#include <limits>
#include <string>
#include <vector>

namespace withy {

struct ThermalReading {
  std::string zone;  // its type, as "x86_pkg_temp" or "cpu-thermal"
  double celsius = 0;
  // Lowest trip point of kind passive, hot or critical: the system slows down or stops there.
  // Infinity: none is reported.
  double throttles_at = std::numeric_limits<double>::infinity();
};

// Thread-safe.
class ThermalZones {
 public:
  // `root` is prepended to /sys/class/thermal; "" reads this board.
  static ThermalZones Find(const std::string& root = "");

  bool empty() const { return zones_.empty(); }
  // Of the zones that can be read now.
  std::vector<ThermalReading> Read() const;

 private:
  struct Zone {
    std::filesystem::path temperature;
    std::string type;
    double throttles_at;
  };
  std::vector<Zone> zones_;
};

}  // namespace withy
