// What one level of the model takes in a step, as the worker plans steps by it: rows of prompts,
// tokens of answers, and what depth adds. Pure. Neighbours: cost_parameters.h has the measured
// times that this is made of, pace.h and step_plan.h use it.
#pragma once

#include <cstdint>

#include "policy/board/cost_parameters.h"

namespace withy::policy {

// Milliseconds, while no other call runs.
struct LevelPace {
  double row_ms = 0;    // a token of a prompt, of many at once
  double token_ms = 0;  // a decode step
  // Added to these by each token of the context before.
  double row_depth_ms = 0;
  double token_depth_ms = 0;
  double extra_row_ms = 0;  // added to a decode step by a row of another call; 0 = not known

  // `rows` tokens of a prompt behind `depth` tokens, in any number of pieces.
  double RowsMs(int32_t rows, int32_t depth) const {
    return rows * (row_ms + row_depth_ms * (depth + rows / 2.0));
  }
  double TokenMs(int32_t depth) const { return token_ms + token_depth_ms * depth; }
};

// Of a level that takes `cost`. Where prefill was measured by length, a row takes its share of the
// longest one, less what depth added there, at least half of it; else prefill_us_per_token.
LevelPace LevelPaceOf(const CostParameters& cost);

}  // namespace withy::policy
