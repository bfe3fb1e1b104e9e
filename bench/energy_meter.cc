#include "bench/energy_meter.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace withy::bench {
namespace {

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream in(path);
  uint64_t value = 0;
  if (!(in >> value)) return std::nullopt;
  return value;
}

}  // namespace

EnergyMeter::EnergyMeter(const std::string& root) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root, error)) {
    // Zones within a package (core, uncore) are part of it: "intel-rapl:0:1".
    const std::string zone = entry.path().filename();
    if (std::count(zone.begin(), zone.end(), ':') != 1) continue;
    const std::string path = entry.path().string();
    const auto now = ReadNumber(path + "/energy_uj");
    const auto range = ReadNumber(path + "/max_energy_range_uj");
    if (!now.has_value()) continue;
    zones_.push_back({.path = path + "/energy_uj", .range_uj = range.value_or(0), .last_uj = *now});
    name_ += (name_.empty() ? "" : "+") + zone;
  }
}

std::optional<double> EnergyMeter::Joules() {
  if (zones_.empty()) return std::nullopt;
  uint64_t sum_uj = 0;
  bool complete = true;
  for (Zone& zone : zones_) {
    const auto now = ReadNumber(zone.path);
    complete = complete && now.has_value();
    if (!now.has_value()) continue;
    sum_uj += *now >= zone.last_uj ? *now - zone.last_uj : *now + zone.range_uj - zone.last_uj;
    zone.last_uj = *now;
  }
  if (!complete) return std::nullopt;
  return static_cast<double>(sum_uj) / 1e6;
}

}  // namespace withy::bench
