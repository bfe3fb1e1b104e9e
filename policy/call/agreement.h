// How often a level of the model gives the full model's answer to an app's prompts. It corrects
// what the level's training says of it. Pure. Neighbours: the orchestrator's audits feed it,
// pair_table.h counts for models without a TLM, call_plan.h weighs settings by it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "policy/constants.h"

namespace withy::policy {

// Audits of one level, of which old ones fade.
struct AuditCount {
  double audits = 0;
  double agreeing = 0;  // at most `audits`

  // `agreement`: how much of the answer agreed, 0..1. Of the audits before, as many as leave room
  // in `memory` go on to count.
  void Learn(double agreement, double memory) {
    if (audits >= memory) {
      const double fade = (memory - 1) / audits;
      audits *= fade;
      agreeing *= fade;
    }
    audits += 1;
    agreeing += std::clamp(agreement, 0.0, 1.0);
  }
  // The mean, to which `before` counts as `prior` audits.
  double Mean(double before, double prior) const {
    return (prior * before + agreeing) / (prior + audits);
  }
};

// Of one app. Not thread-safe.
class Agreement {
 public:
  Agreement() = default;
  explicit Agreement(std::map<uint32_t, AuditCount> levels) : levels_(std::move(levels)) {}

  void Learn(uint32_t level_percent, bool agrees) {
    levels_[level_percent].Learn(agrees ? 1 : 0, kAgreementMemory);
  }

  // The chance of a right answer at a level. `before` and `full_before`: the same without this
  // class, of the level and of the full model.
  double Expect(uint32_t level_percent, double before, double full_before) const {
    const auto found = levels_.find(level_percent);
    if (found == levels_.end()) return before;
    const AuditCount& level = found->second;
    return (kAgreementPrior * before + level.agreeing * full_before) /
           (kAgreementPrior + level.audits);
  }

 private:
  std::map<uint32_t, AuditCount> levels_;
};

}  // namespace withy::policy
