#include "policy/board/step_learner.h"

#include <utility>

#include "policy/constants.h"

namespace withy::policy {

double StepLearner::Observe(const StepPlan& plan, double ms) {
  if (!plan.has_prefill()) return 1;
  const bool large_enough = plan.rows() >= kManyRows;
  const double share = large_enough ? ms / (plan.expected_ms * slowdown_.value()) : 1;
  if (plan.has_decode()) sizer_.Observe(plan.expected_ms / full_row_ms_, ms * 1e3);
  if (large_enough) slowdown_.Observe(ms, plan.expected_ms);
  return share;
}

bool StepLearner::ObserveBoard(const ObservedPass& pass) {
  const int64_t pause_ns = pass.started_ns - std::exchange(last_pass_ns_, pass.ended_ns);
  warm_passes_ = pause_ns > kColdPauseNs ? 0 : warm_passes_ + 1;
  if (warm_passes_ < kColdPasses || pass.preempted || pass.streams_weights) return false;
  slowdown_.Scale(board_.Observe(pass.shape, pass.ms));
  return true;
}

}  // namespace withy::policy
