#include "policy/board/energy_ledger.h"

#include <algorithm>
#include <cmath>

#include "policy/constants.h"

namespace withy::policy {

void EnergyLedger::Read(double joules, int64_t now_ns) {
  const double grown = std::max(0.0, joules - joules_);
  const double seconds = static_cast<double>(now_ns - read_ns_) / 1e9;
  const bool first = read_ns_ == 0;
  if (!first && seconds <= 0 && grown == 0) return;
  joules_ = std::max(joules_, joules);
  read_ns_ = std::max(read_ns_, now_ns);
  if (first) return;
  const auto yielding = static_cast<size_t>(std::count_if(
      calls_.begin(), calls_.end(), [](const auto& call) { return call.second.yields; }));
  const bool only_yielding = yielding == calls_.size();
  const size_t sharing = only_yielding ? yielding : calls_.size() - yielding;
  for (auto& [call, charge] : calls_) {
    if (charge.yields == only_yielding) charge.joules += grown / static_cast<double>(sharing);
  }
  if (seconds <= 0) return;
  watts_ = grown / seconds;
  double& mean = calls_.empty() ? idle_watts_ : busy_watts_;
  const double share = mean == 0 ? 1 : 1 - std::exp(-seconds / kPowerMemoryS);
  mean += share * (watts_ - mean);
}

void EnergyLedger::Begin(uint64_t call, double joules, int64_t now_ns, bool yields) {
  Read(joules, now_ns);
  calls_.try_emplace(call, Charge{.yields = yields});
}

double EnergyLedger::End(uint64_t call, double joules, int64_t now_ns) {
  Read(joules, now_ns);
  const auto ended = calls_.extract(call);
  return ended.empty() ? 0 : ended.mapped().joules;
}

}  // namespace withy::policy
