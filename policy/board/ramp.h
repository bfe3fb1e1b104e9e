// What the first steps of an answer take longer than its later ones, together: behind a prompt
// caches and clocks are not yet what decoding makes them. Learnt from answers of different lengths
// by least squares; old answers fade. Pure. Neighbour: latency_learning.h.
#pragma once

#include <utility>

namespace withy::policy {

class Ramp {
 public:
  // An answer that took `took` for `steps` steps, in units of its calibrated step.
  void Observe(double steps, double took);
  // In steps. Range [0, kMaxRampSteps]; 0 until answers of two lengths were seen.
  double Steps() const;

 private:
  std::pair<double, double> Fit() const;  // slope, constant

  double answers_ = 0;
  // Weighted means over them.
  double steps_ = 0, steps_squared_ = 0, took_ = 0, steps_took_ = 0;
};

}  // namespace withy::policy
