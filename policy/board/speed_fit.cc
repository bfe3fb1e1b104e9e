#include "policy/board/speed_fit.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "policy/constants.h"

namespace withy::policy {
namespace {

// kPrior's inverse, its constant aside: of [[1, 1], [1, 4]].
constexpr double kInverseRatio = 4.0 / 3, kInverseBoth = -1.0 / 3, kInverseDepth = 1.0 / 3;

}  // namespace

double Correction(double measured_ms, double predicted_ms, double least_ms, double weight,
                  int* surprises) {
  const double limit_ms = std::max(least_ms, kMaxSurprise * predicted_ms);
  const double error_ms = measured_ms - predicted_ms;
  if (std::abs(error_ms) <= limit_ms) {
    *surprises = 0;
    return weight * error_ms;
  }
  const int sign = error_ms > 0 ? 1 : -1;
  *surprises = *surprises * sign > 0 ? *surprises + sign : sign;
  if (std::abs(*surprises) < kSurprisesBelieved) return weight * sign * limit_ms;
  *surprises = sign * kSurprisesBelieved;
  return std::max(weight, kBelievedWeight) * std::min(error_ms, std::max(least_ms, predicted_ms));
}

double SpeedFit::Ms(const Work& work) const {
  return ratio_ * work.base_ms + depth_ratio_ * work.depth_ms + constant_ms_;
}

void SpeedFit::Learn(const Work& work, double measured_ms, double short_ms, double weight) {
  if (!(work.ms() > 0) || !(measured_ms > 0) || !std::isfinite(measured_ms)) return;
  const double correction_ms =
      Correction(measured_ms, Ms(work), /*least_ms=*/0, weight, &surprises_);
  // The board has changed: what was known of it no longer holds.
  if (std::abs(surprises_) >= kSurprisesBelieved) covariance_ = kPrior;
  // The parts of the prediction, as a vector of length 1.
  const double length =
      std::sqrt(short_ms * short_ms + work.base_ms * work.base_ms + work.depth_ms * work.depth_ms);
  const Vector parts = {short_ms / length, work.base_ms / length, work.depth_ms / length};
  Vector gain{};
  double variance = 0;
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) gain[i] += covariance_[i][j] * parts[j];
    variance += parts[i] * gain[i];
  }
  Vector step;
  for (size_t i = 0; i < 3; ++i) step[i] = gain[i] / variance * correction_ms / length;
  Move(step, {short_ms, work.base_ms, work.depth_ms}, short_ms);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      covariance_[i][j] -= gain[i] * gain[j] / (variance + kSpeedFitNoise);
      covariance_[i][j] += kForgetCovariance * (kPrior[i][j] - covariance_[i][j]);
    }
  }
  Forget(short_ms, kForgetValue * weight / kFitWeight);
}

// By `step`, in units of `parts`; what a constant that would fall below zero leaves over goes to
// the ratios.
void SpeedFit::Move(const Vector& step, const Vector& parts, double short_ms) {
  const double constant_ms = constant_ms_ + step[0] * short_ms;
  constant_ms_ = std::max(0.0, constant_ms);
  const double rest_ms = constant_ms - constant_ms_;
  const double moved_ms = std::abs(step[1]) * parts[1] + std::abs(step[2]) * parts[2];
  double base_share = parts[1] / (parts[1] + parts[2]);
  if (moved_ms > 0) base_share = std::abs(step[1]) * parts[1] / moved_ms;
  const auto move = [](double by, double* ratio) {
    *ratio = std::clamp(*ratio + by, 1 / kMaxRatio, kMaxRatio);
  };
  if (parts[1] > 0) move(step[1] + base_share * rest_ms / parts[1], &ratio_);
  if (parts[2] > 0) move(step[2] + (1 - base_share) * rest_ms / parts[2], &depth_ratio_);
  depth_ratio_ = std::clamp(depth_ratio_, ratio_ / kMaxDepthSkew, ratio_ * kMaxDepthSkew);
}

// What has not been seen for long goes back to what was calibrated, the rest stays.
void SpeedFit::Forget(double short_ms, double share) {
  const double off_ratio = ratio_ - 1, off_depth = depth_ratio_ - 1;
  const Vector pull = {constant_ms_ / short_ms,
                       kInverseRatio * off_ratio + kInverseBoth * off_depth,
                       kInverseBoth * off_ratio + kInverseDepth * off_depth};
  Vector back{};
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 3; ++j) back[i] += share * covariance_[i][j] * pull[j];
  }
  constant_ms_ = std::max(0.0, constant_ms_ - back[0] * short_ms);
  ratio_ = std::clamp(ratio_ - back[1], 1 / kMaxRatio, kMaxRatio);
  depth_ratio_ = std::clamp(depth_ratio_ - back[2], 1 / kMaxRatio, kMaxRatio);
}

}  // namespace withy::policy
