#include "base/sensors/thermal_zones.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <system_error>

namespace withy {
namespace {

namespace fs = std::filesystem;

// Celsius; files have thousandths. Drivers of sensors that are off report nonsense.
std::optional<double> ReadCelsius(const fs::path& path) {
  constexpr double kColdest = -40, kHottest = 200;
  double milli = 0;
  if (!(std::ifstream(path) >> milli)) return std::nullopt;
  const double celsius = milli / 1000;
  return celsius > kColdest && celsius < kHottest ? std::optional(celsius) : std::nullopt;
}

std::string ReadLine(const fs::path& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

double LowestTrip(const fs::path& zone) {
  double lowest = std::numeric_limits<double>::infinity();
  for (int i = 0;; ++i) {
    const std::string point = "trip_point_" + std::to_string(i);
    const std::string type = ReadLine(zone / (point + "_type"));
    if (type.empty()) return lowest;
    if (type != "passive" && type != "hot" && type != "critical") continue;
    const std::optional<double> celsius = ReadCelsius(zone / (point + "_temp"));
    if (celsius.value_or(0) > 0) lowest = std::min(lowest, *celsius);  // 0: not set
  }
}

}  // namespace

ThermalZones ThermalZones::Find(const std::string& root) {
  ThermalZones found;
  std::vector<fs::path> zones;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(root + "/sys/class/thermal", ignored)) {
    if (entry.path().filename().string().starts_with("thermal_zone")) {
      zones.push_back(entry.path());
    }
  }
  std::sort(zones.begin(), zones.end());
  for (const fs::path& zone : zones) {
    if (!ReadCelsius(zone / "temp").has_value()) continue;
    found.zones_.push_back({zone / "temp", ReadLine(zone / "type"), LowestTrip(zone)});
  }
  return found;
}

std::vector<ThermalReading> ThermalZones::Read() const {
  std::vector<ThermalReading> readings;
  for (const Zone& zone : zones_) {
    const std::optional<double> celsius = ReadCelsius(zone.temperature);
    if (celsius.has_value()) readings.push_back({zone.type, *celsius, zone.throttles_at});
  }
  return readings;
}

}  // namespace withy
