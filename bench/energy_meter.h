// Energy that the board has used, where the kernel tells: the packages' counters of powercap (Intel
// RAPL and what speaks like it). Neighbour: speculation_figures.cc reports joules a token.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace withy::bench {

// Not thread-safe.
class EnergyMeter {
 public:
  // `root`: where powercap's zones are; another one in tests.
  explicit EnergyMeter(const std::string& root = "/sys/class/powercap");

  // "" if there is no zone that can be read.
  const std::string& name() const { return name_; }
  // Joules since the last call, or since construction; nullopt without a zone, or if one failed.
  std::optional<double> Joules();

 private:
  struct Zone {
    std::string path;
    uint64_t range_uj = 0;  // the counter begins again behind it
    uint64_t last_uj = 0;
  };
  std::vector<Zone> zones_;
  std::string name_;
};

}  // namespace withy::bench
