#include "policy/board/step_learner.h"

#include <algorithm>

#include "policy/constants.h"

namespace withy::policy {

double StepLearner::Observe(const StepPlan& plan, const ObservedPass& pass) {
  streams_weights_ = pass.streams_weights;
  const bool cold = IsCold(pass.started_ns);
  warm_passes_ = pass.started_ns - last_pass_ns_ > kColdPauseNs ? 0 : warm_passes_ + 1;
  last_pass_ns_ = pass.ended_ns;
  if (plan.has_prefill() && plan.has_decode()) {
    sizer_.Observe(plan.expected_ms / full_row_ms_, pass.ms * 1e3);
  }
  const double warm_share = pass.ms / (board_.Ratio(plan.shape) * plan.shape.ExpectedMs());
  if (!cold && !pass.preempted) board_.Observe(plan.shape, pass.ms);
  if (!plan.has_prefill() || !plan.shape.many_rows()) return 1;
  if (!cold) return warm_share;
  const double share = warm_share / cold_ratio_;
  cold_ratio_ +=
      kColdWeight * (std::clamp(warm_share, 1 / kMostColdRatio, kMostColdRatio) - cold_ratio_);
  return share;
}

}  // namespace withy::policy
