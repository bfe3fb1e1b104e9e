// What the worker learns from the steps that ran: how many rows fit into one, how slow the board
// is. Neighbours: step_plan.h plans with both.
#pragma once

#include <cstdint>

#include "policy/board/board_speed.h"
#include "policy/step/piece_sizer.h"
#include "policy/step/step_pace.h"
#include "policy/step/step_plan.h"

namespace withy::policy {

struct StepLearnerOptions {
  double us_per_row = 0;   // first guess of a row of a prompt at the full level
  double full_row_ms = 0;  // LevelPace::row_ms of the full level: what rows are counted in
  int32_t piece_ms = 50;   // what a step may take beside answers
  int32_t max_rows = 256;
};

// Not thread-safe.
class StepLearner {
 public:
  explicit StepLearner(const StepLearnerOptions& options)
      : full_row_ms_(options.full_row_ms),
        sizer_(options.us_per_row, options.piece_ms, options.max_rows) {}

  const PieceSizer& sizer() const { return sizer_; }
  double slowdown() const { return slowdown_.value(); }

  const BoardSpeed& board() const { return board_; }

  // A step took `ms` of computing. Returns the ratio of that to what such steps took before it; 1
  // where the step has too few rows of prompts to tell.
  double Observe(const StepPlan& plan, double ms);
  // The same step, of any rows, as far as it tells the board's speed. When that is found to have
  // changed, slowdown() follows at once.
  void ObserveBoard(const PassShape& shape, double ms);

 private:
  const double full_row_ms_;
  PieceSizer sizer_;
  Slowdown slowdown_;
  BoardSpeed board_;
};

}  // namespace withy::policy
