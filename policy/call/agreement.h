// How often a level of the model gives the full model's answer to an app's prompts. It corrects
// what the level's training says of it. Pure. Neighbours: the orchestrator's audits feed it,
// call_plan.h weighs settings by it.
#pragma once

#include <cstdint>
#include <map>

#include "policy/constants.h"

namespace withy::policy {

// Of one app. Not thread-safe.
class Agreement {
 public:
  void Learn(uint32_t level_percent, bool agrees) {
    Level& level = levels_[level_percent];
    if (level.answers >= kAgreementMemory) {
      const double fade = (kAgreementMemory - 1) / level.answers;
      level.answers *= fade;
      level.agreeing *= fade;
    }
    level.answers += 1;
    level.agreeing += agrees ? 1 : 0;
  }

  // The chance of a right answer at a level. `before` and `full_before`: the same without this
  // class, of the level and of the full model.
  double Expect(uint32_t level_percent, double before, double full_before) const {
    const auto found = levels_.find(level_percent);
    if (found == levels_.end()) return before;
    const Level& level = found->second;
    return (kAgreementPrior * before + level.agreeing * full_before) /
           (kAgreementPrior + level.answers);
  }

 private:
  struct Level {
    double answers = 0;
    double agreeing = 0;
  };
  std::map<uint32_t, Level> levels_;
};

}  // namespace withy::policy
