#include "policy/call/reliability.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace withy::policy {

Deviation::Deviation(double mean, double standard_deviation) {
  const auto up_to = [&](double off) {
    return 0.5 * std::erfc((mean - off) / standard_deviation / std::numbers::sqrt2);
  };
  double below = 0;
  for (size_t i = 0; i < shares_.size(); ++i) {
    const bool last = i + 1 == shares_.size();
    const double share = last ? 1 : up_to(kLowest + static_cast<double>(i + 1) * kWidth);
    shares_[i] = share - below;
    below = share;
  }
}

// Spread over the neighbours, so that a chance does not jump from one limit to the next.
void Deviation::Observe(double off, double weight) {
  const double place = std::clamp((off - kLowest) / kWidth, 0.5, shares_.size() - 0.5) - 0.5;
  const auto at = static_cast<size_t>(place);
  const double next = place - static_cast<double>(at);
  for (double& share : shares_) share *= 1 - weight;
  shares_[at] += weight * (1 - next);
  if (next > 0) shares_[at + 1] += weight * next;
}

double Deviation::ShareUpTo(double off) const {
  const double place =
      std::clamp((off - kLowest) / kWidth, 0.0, static_cast<double>(shares_.size()));
  const auto whole = static_cast<size_t>(place);
  double share = 0;
  for (size_t i = 0; i < whole; ++i) share += shares_[i];
  if (whole < shares_.size()) share += (place - static_cast<double>(whole)) * shares_[whole];
  return share;
}

double ChanceWithin(const Deviation& deviation, double predicted_ms, double limit_ms) {
  if (std::isinf(limit_ms) || predicted_ms <= 0) return 1;
  return limit_ms > 0 ? deviation.ShareUpTo(std::log(limit_ms / predicted_ms)) : 0;
}

}  // namespace withy::policy
