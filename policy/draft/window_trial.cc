#include "policy/draft/window_trial.h"

namespace withy::policy {

void WindowTrial::OnStep(bool was_open, double tokens, double ms, double plain_ms) {
  if (!(ms > 0) || !(plain_ms > 0)) return;
  Way& way = ways_[was_open ? 1 : 0];
  way.plain_ms = way.plain_ms * kMemory + tokens * plain_ms;
  way.ms = way.ms * kMemory + ms;
  ++way.steps;
  ++steps_;
  const bool better = OpenIsBetter();
  if (!BothKnown() || open_ != better) {
    if (steps_ < kTrialSteps) return;
    open_ = BothKnown() ? better : !open_;
  } else {
    if (steps_ < kSettledSteps) return;
    open_ = !open_;
  }
  steps_ = 0;
}

}  // namespace withy::policy
