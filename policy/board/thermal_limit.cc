#include "policy/board/thermal_limit.h"

#include <algorithm>

#include "policy/constants.h"

namespace withy::policy {

void ThermalLimit::Observe(double room, int64_t now_ns) {
  constexpr uint32_t kMostSteps = 16;
  const bool may_change = changed_ns_ == 0 || now_ns - changed_ns_ >= kThermalStepNs;
  if (!may_change) return;
  if (room < kThermalMarginCelsius && steps_ < kMostSteps) {
    ++steps_;
  } else if (room > kThermalMarginCelsius + kThermalHysteresisCelsius && steps_ > 0) {
    --steps_;
  } else {
    return;
  }
  changed_ns_ = now_ns;
}

uint32_t ThermalLimit::MostLevel(const std::vector<uint32_t>& levels) const {
  const size_t below = std::min<size_t>(steps_, levels.size() - 1);
  return levels[levels.size() - 1 - below];
}

}  // namespace withy::policy
