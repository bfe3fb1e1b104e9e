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
  std::array<double, 34>& shares = all_.shares;
  for (size_t i = 0; i < shares.size(); ++i) {
    const bool last = i + 1 == shares.size();
    const double share = last ? 1 : up_to(kLowest + static_cast<double>(i + 1) * kWidth);
    shares[i] = share - below;
    below = share;
  }
  recent_ = all_;
}

// Spread over the neighbours, so that a chance does not jump from one limit to the next.
void Deviation::Histogram::Add(double off, double weight) {
  const double place = std::clamp((off - kLowest) / kWidth, 0.5, shares.size() - 0.5) - 0.5;
  const auto at = static_cast<size_t>(place);
  const double next = place - static_cast<double>(at);
  for (double& share : shares) share *= 1 - weight;
  shares[at] += weight * (1 - next);
  if (next > 0) shares[at + 1] += weight * next;
}

double Deviation::Histogram::ShareUpTo(double off) const {
  const double place =
      std::clamp((off - kLowest) / kWidth, 0.0, static_cast<double>(shares.size()));
  const auto whole = static_cast<size_t>(place);
  double share = 0;
  for (size_t i = 0; i < whole; ++i) share += shares[i];
  if (whole < shares.size()) share += (place - static_cast<double>(whole)) * shares[whole];
  return share;
}

double Deviation::Histogram::MeanLateness(double share) const {
  double lateness = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double off = kLowest + (static_cast<double>(i) + 0.5) * kWidth;
    lateness += shares[i] * std::clamp(share * std::exp(off) - 1, 0.0, kMostLateness);
  }
  return lateness;
}

double Deviation::Histogram::ShareNear(double off) const {
  constexpr double kHardlyEver = 0.002;
  const double place = std::clamp((off - kLowest) / kWidth, 0.0, shares.size() - 1.0);
  const auto at = static_cast<size_t>(place);
  const size_t first = at > 0 ? at - 1 : 0;
  const size_t end = std::min(at + 2, shares.size());
  double share = 0;
  for (size_t i = first; i < end; ++i) share += shares[i];
  return kHardlyEver + share / static_cast<double>(end - first);
}

void Deviation::Observe(double off, double weight) {
  const double ratio = std::log(recent_.ShareNear(off) / all_.ShareNear(off));
  recent_is_better_ = kRecentKept * recent_is_better_ +
                      std::clamp(ratio, -kMostRecentEvidence, kMostRecentEvidence);
  all_.Add(off, weight);
  recent_.Add(off, std::max(weight, kRecentDeviationWeight));
}

double Deviation::TrustInRecent() const {
  return 1 / (1 + std::exp(kRecentPrior - recent_is_better_));
}

double Deviation::ShareUpTo(double off) const {
  const double trust = TrustInRecent();
  return trust * recent_.ShareUpTo(off) + (1 - trust) * all_.ShareUpTo(off);
}

double Deviation::MeanLateness(double share) const {
  const double trust = TrustInRecent();
  return trust * recent_.MeanLateness(share) + (1 - trust) * all_.MeanLateness(share);
}

double ChanceWithin(const Deviation& deviation, double predicted_ms, double limit_ms) {
  if (std::isinf(limit_ms) || predicted_ms <= 0) return 1;
  return limit_ms > 0 ? deviation.ShareUpTo(std::log(limit_ms / predicted_ms)) : 0;
}

double LatenessOf(const Deviation& deviation, double predicted_ms, double limit_ms) {
  if (std::isinf(limit_ms) || predicted_ms <= 0) return 0;
  return limit_ms > 0 ? deviation.MeanLateness(predicted_ms / limit_ms) : kMostLateness;
}

}  // namespace withy::policy
