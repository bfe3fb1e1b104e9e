// Corrects calibrated times by what was measured: a constant, a ratio of what weights take and a
// ratio of what the depth of a context takes, so that what long calls teach does not spoil the
// predictions of short ones, nor the other way round. Pure. Neighbours: cost_parameters.h makes the
// calibrated times, latency_model.h has a fit for prefill and one for decode steps.
#pragma once

#include <array>

#include "policy/board/cost_parameters.h"

namespace withy::policy {

// By how much a prediction moves. What is off by more than kMaxSurprise, and by more than
// `least_ms`, counts as that; kSurprisesBelieved in a row to the same side are believed and move it
// by kBelievedWeight, at most to the double. `surprises` counts them, above zero where predictions
// are too low, below where they are too high.
double Correction(double measured_ms, double predicted_ms, double least_ms, double weight,
                  int* surprises);

// Estimates three numbers from one an observation. How much each of them moves is in proportion to
// its part in the prediction and to how little is known of it: what is known is the covariance of a
// Kalman filter that forgets towards what holds before any observation. There, what depth adds is
// less sure than what weights take (it is the difference of two measured times), and the two go
// together by half, since a slow board is slow at both.
class SpeedFit {
 public:
  // What `work` takes. Never below zero.
  double Ms(const Work& work) const;
  // As `ratio()` times the calibrated time, the constant aside.
  double ratio() const { return ratio_; }
  double depth_ratio() const { return depth_ratio_; }
  double constant_ms() const { return constant_ms_; }

  // `work` took `measured_ms`; `short_ms`: of works as short as that the constant is half at fault
  // where a prediction is wrong. `weight`: as kFitWeight, (0, 1]. Measured or calibrated times that
  // are not above zero teach nothing.
  void Learn(const Work& work, double measured_ms, double short_ms, double weight);

 private:
  using Vector = std::array<double, 3>;  // by constant, ratio, depth ratio
  using Matrix = std::array<Vector, 3>;
  // Ratios known to within about 1 (their square is their variance here); only proportions count.
  static constexpr Matrix kPrior = {{{1, 0, 0}, {0, 1, 1}, {0, 1, 4}}};

  void Move(const Vector& step, const Vector& parts, double short_ms);
  void Forget(double short_ms, double share);

  double ratio_ = 1;
  double depth_ratio_ = 1;
  double constant_ms_ = 0;  // >= 0
  int surprises_ = 0;
  Matrix covariance_ = kPrior;
};

}  // namespace withy::policy
