#include "policy/draft/speculation_outlook.h"

#include <algorithm>

#include "policy/constants.h"

namespace withy::policy {

double SpeculationOutlook::Expected() const {
  const size_t known = std::min(seen_, kCalls);
  if (known < kOutlookCalls) return 1;
  std::array<float, kCalls> sorted = last_;
  const auto end = sorted.begin() + static_cast<std::ptrdiff_t>(known);
  std::sort(sorted.begin(), end);
  const auto place = static_cast<size_t>(kOutlookQuantile * static_cast<double>(known));
  return std::clamp(static_cast<double>(sorted[place]), 1.0, kMostSpeedup);
}

void SpeculationOutlook::Observe(double speedup) {
  if (!(speedup > 0)) return;
  last_[seen_ % kCalls] = static_cast<float>(speedup);
  ++seen_;
}

}  // namespace withy::policy
