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
  for (auto& [call, sum] : calls_) sum += grown / static_cast<double>(calls_.size());
  if (seconds <= 0) return;
  watts_ = grown / seconds;
  double& mean = calls_.empty() ? idle_watts_ : busy_watts_;
  const double share = mean == 0 ? 1 : 1 - std::exp(-seconds / kPowerMemoryS);
  mean += share * (watts_ - mean);
}

void EnergyLedger::Begin(uint64_t call, double joules, int64_t now_ns) {
  Read(joules, now_ns);
  calls_.try_emplace(call, 0);
}

double EnergyLedger::End(uint64_t call, double joules, int64_t now_ns) {
  Read(joules, now_ns);
  const auto ended = calls_.extract(call);
  return ended.empty() ? 0 : ended.mapped();
}

}  // namespace withy::policy
