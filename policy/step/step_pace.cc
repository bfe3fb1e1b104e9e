#include "policy/step/step_pace.h"

#include <algorithm>
#include <cstdint>

#include "policy/constants.h"

namespace withy::policy {

void StepPaceEstimate::Look(double done, double ms) {
  // The first look includes what comes before the first layer, so it only marks where to begin.
  if (next_ > 0) wholes_ms_[known_++] = (ms - ms_) / (done - done_);
  done_ = done;
  ms_ = ms;
  while (next_ < kStepLooks.size() && kStepLooks[next_] <= done) ++next_;
}

double StepPaceEstimate::WholeMs() const {
  if (known_ < 2) return 0;
  std::array<double, kStepLooks.size()> wholes = wholes_ms_;
  const auto middle = wholes.begin() + static_cast<int64_t>((known_ - 1) / 2);
  std::nth_element(wholes.begin(), middle, wholes.begin() + static_cast<int64_t>(known_));
  return *middle;
}

}  // namespace withy::policy
