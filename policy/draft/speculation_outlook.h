// What the calls of an app gained by speculation of late, and what the next one can count on. Pure.
// Neighbours: live_correction.h keeps one an app, call_plan.h predicts by it.
#pragma once

#include <array>
#include <cstddef>

namespace withy::policy {

// Plain data, copied freely.
class SpeculationOutlook {
 public:
  // Ratio by which tokens come faster than by plain decoding, at a low quantile of the last calls;
  // 1 until enough calls have told, and never below.
  double Expected() const;
  // A call's tokens came faster by this ratio; not above zero: it does not tell.
  void Observe(double speedup);

 private:
  static constexpr size_t kCalls = 16;
  std::array<float, kCalls> last_{};
  size_t seen_ = 0;
};

}  // namespace withy::policy
