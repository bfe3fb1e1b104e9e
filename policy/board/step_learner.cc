#include "policy/board/step_learner.h"

#include <cstddef>

namespace withy::policy {

double StepLearner::Observe(const StepPlan& plan, double ms) {
  if (!plan.has_prefill()) return 1;
  const bool large_enough = static_cast<size_t>(plan.rows()) >= Slowdown::kMinRows;
  const double share = large_enough ? ms / (plan.expected_ms * slowdown_.value()) : 1;
  if (plan.has_decode()) sizer_.Observe(plan.expected_ms / full_row_ms_, ms * 1e3);
  if (large_enough) slowdown_.Observe(ms, plan.expected_ms);
  return share;
}

void StepLearner::ObserveBoard(const PassShape& shape, double ms) {
  slowdown_.Scale(board_.Observe(shape, ms));
}

}  // namespace withy::policy
