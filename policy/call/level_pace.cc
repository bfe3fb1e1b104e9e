#include "policy/call/level_pace.h"

#include <algorithm>

namespace withy::policy {

LevelPace LevelPaceOf(const CostParameters& cost) {
  double row_us = cost.prefill_us_per_token;
  const double depth_us = cost.prefill_us_per_context_token;
  if (!cost.prefill.empty()) {
    const PrefillPoint& longest = cost.prefill.back();
    // Its rows are half as deep as it is long, on the average.
    const double mean_us = longest.us / longest.tokens;
    row_us = std::max(mean_us / 2, mean_us - depth_us * longest.tokens / 2);
  }
  return {.row_ms = row_us / 1e3,
          .token_ms = cost.decode_us_per_token / 1e3,
          .row_depth_ms = depth_us / 1e3,
          .token_depth_ms = cost.decode_us_per_context_token / 1e3,
          .extra_row_ms = cost.decode_us_per_extra_row / 1e3};
}

}  // namespace withy::policy
