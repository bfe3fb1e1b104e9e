#include "policy/kv/kv_shrink.h"

#include <algorithm>

namespace withy::policy {
namespace {

// Below this share of shrink_share an observation counts as quiet. In between nothing changes.
constexpr double kQuietShare = 0.25;

}  // namespace

uint64_t ArenaShrink::Observe(double stalled_share) {
  if (rules_.shrink_share >= 1) return withheld_;
  if (stalled_share >= rules_.shrink_share) {
    quiet_ = 0;
    withheld_ = std::min(withheld_ + arena_bytes_ / kShrinkDivisor,
                         arena_bytes_ - arena_bytes_ / kStaysDivisor);
    return withheld_;
  }
  quiet_ = stalled_share < rules_.shrink_share * kQuietShare ? quiet_ + 1 : 0;
  if (quiet_ >= rules_.quiet_before_growth) {
    withheld_ -= std::min(withheld_, (arena_bytes_ + kGrowthDivisor - 1) / kGrowthDivisor);
    quiet_ -= std::min(quiet_, rules_.quiet_between_growths);
  }
  return withheld_;
}

}  // namespace withy::policy
