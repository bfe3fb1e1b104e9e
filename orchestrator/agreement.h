// How often a level of the model says what the full model says, of the prompts that an app sends:
// what is to be expected of the level beside what its training says. Pure. Neighbours: auditor.h
// finds out, prepare.cc weighs by it.
#pragma once

#include <cstdint>
#include <map>

namespace withy::orchestrator {

// Of one app. Not thread-safe.
class Agreement {
 public:
  // What is known before counts as much as so many answers; older answers than the last kMemory
  // fade.
  static constexpr double kPrior = 4;
  static constexpr double kMemory = 64;
  // An app's first answers are all looked at, later ones now and then: what its prompts are like
  // hardly changes, and looking takes energy.
  static constexpr uint32_t kFirstAnswers = 32;
  static constexpr uint32_t kEveryAnswer = 32;

  void Learn(uint32_t level_percent, bool agrees) {
    Level& level = levels_[level_percent];
    if (level.answers >= kMemory) {
      const double fade = (kMemory - 1) / level.answers;
      level.answers *= fade;
      level.agreeing *= fade;
    }
    level.answers += 1;
    level.agreeing += agrees ? 1 : 0;
  }

  // The chance of a right answer at a level. `before`: without this, at the level and at the full
  // model.
  double Expect(uint32_t level_percent, double before, double full_before) const {
    const auto found = levels_.find(level_percent);
    if (found == levels_.end()) return before;
    const Level& level = found->second;
    return (kPrior * before + level.agreeing * full_before) / (kPrior + level.answers);
  }

 private:
  struct Level {
    double answers = 0;
    double agreeing = 0;
  };
  std::map<uint32_t, Level> levels_;
};

}  // namespace withy::orchestrator
