#include "policy/board/ramp.h"

#include <algorithm>

#include "policy/constants.h"

namespace withy::policy {

void Ramp::Observe(double steps, double took) {
  const auto [slope, constant] = Fit();
  if (answers_ >= kRampKnownAnswers && slope > 0) {
    const double expected = slope * steps + constant;
    took = std::clamp(took, (1 - kMaxSurprise) * expected, (1 + kMaxSurprise) * expected);
  }
  answers_ += 1;
  const double weight = std::max(kRampWeight, 1 / answers_);
  const auto move = [&](double value, double* mean) { *mean += weight * (value - *mean); };
  move(steps, &steps_);
  move(steps * steps, &steps_squared_);
  move(took, &took_);
  move(steps * took, &steps_took_);
}

// took = slope · steps + constant, the constant held near zero where lengths hardly differ.
std::pair<double, double> Ramp::Fit() const {
  const double of_constant = 1 + kRampPrior;
  const double determinant = steps_squared_ * of_constant - steps_ * steps_;
  if (determinant <= 0) return {0, 0};
  return {(steps_took_ * of_constant - took_ * steps_) / determinant,
          (steps_squared_ * took_ - steps_ * steps_took_) / determinant};
}

double Ramp::Steps() const {
  const auto [slope, constant] = Fit();
  return slope > 0 ? std::clamp(constant / slope, 0.0, kMaxRampSteps) : 0;
}

}  // namespace withy::policy
