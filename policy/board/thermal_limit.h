// How many levels a hot board stays below the whole model, so that it is cooler before the system
// halves its clock. Pure; fed with temperatures (base/sensors/thermal_zones.h). A level fewer at a
// time, and back when it has cooled down.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace withy::policy {

class ThermalLimit {
 public:
  // `room`: degrees Celsius that the hottest zone is away from the trip point at which the system
  // slows down; infinity: it has none. `now_ns`: steady time.
  void Observe(double room, int64_t now_ns);

  // Levels to stay below the whole model.
  uint32_t steps() const { return steps_; }
  // The highest of `levels` (per cent, ascending, not empty) that may be chosen now.
  uint32_t MostLevel(const std::vector<uint32_t>& levels) const;

 private:
  uint32_t steps_ = 0;
  int64_t changed_ns_ = 0;  // 0: never
};

}  // namespace withy::policy
