// At which level prompts are computed so that their first tokens are in time: before each step, and
// once more when a step turns out slow. Pure functions and one fed state machine. Neighbours:
// pace.h judges one call; step_plan.h calls ChoosePromptLevels for every step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "policy/call/pace.h"
#include "policy/call/turn.h"
#include "policy/step/step_pace.h"

namespace withy::policy {

// A prompt that is being computed.
struct PromptTurn {
  const Pacer* pacer = nullptr;
  Turn turn;
  int32_t rows = 0;  // that are left
  size_t level = 0;
  int32_t depth = 0;  // tokens of its context before those
};

// The level of each of `prompts` from now on. A prompt begins once the prompts whose turns are
// before its own are computed; when its first token would then be late, it gets a lower level.
std::vector<size_t> ChoosePromptLevels(std::span<const LevelPace> levels,
                                       std::span<const PromptTurn> prompts, double slowdown,
                                       int64_t now_ns);

// The level at which a prompt begins again whose step turns out slow: the highest lower level that
// is in time from here, when `prompt.level` is not; else `prompt.level`: it goes on. `prompt.rows`
// includes the step's `step_rows`, which still take `left_ms`.
size_t RestartLevel(std::span<const LevelPace> levels, const PromptTurn& prompt, int32_t step_rows,
                    double left_ms, double slowdown, int64_t now_ns);

// Watches the first part of a step of one prompt, to give it up where a lower level is in time and
// the step is not. The caller runs the step up to next_look(), calls Look, and so on until
// next_look() is 1; then RestartLevel says at which level the prompt goes on. Not thread-safe.
class SlowStepWatch {
 public:
  // Whether the step of `prompt` needs a watch: it would be late at half the speed of late, and has
  // a level to fall to.
  static bool IsNeeded(std::span<const LevelPace> levels, const PromptTurn& prompt, double slowdown,
                       int64_t now_ns);

  // Share of the step's work after which Look is due; 1: no look is left.
  double next_look() const { return estimate_.next_look(); }
  void Look(double done, double ms) { estimate_.Look(done, ms); }
  // As policy::RestartLevel, with the time that the looks tell. `expected_ms`: of the whole step,
  // by LevelPace.
  size_t RestartLevel(std::span<const LevelPace> levels, const PromptTurn& prompt,
                      int32_t step_rows, double expected_ms, int64_t now_ns) const;

 private:
  StepPaceEstimate estimate_;
};

}  // namespace withy::policy
