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

// A step that ran.
struct ObservedPass {
  PassShape shape = {};
  double ms = 0;  // of computing
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
  bool preempted = false;  // by another step
  bool streams_weights = false;
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
  // The same step, of any rows, as far as it tells the board's speed; false: not at all. Steps
  // behind a pause find cold caches (kColdPasses), and so does a step that another one preempted; a
  // pass that streams weights tells of the disk. When the speed is found to have changed,
  // slowdown() follows at once.
  bool ObserveBoard(const ObservedPass& pass);

 private:
  const double full_row_ms_;
  PieceSizer sizer_;
  Slowdown slowdown_;
  BoardSpeed board_;
  int64_t last_pass_ns_ = 0;  // end of the last step
  int32_t warm_passes_ = 0;   // steps since the last pause
};

}  // namespace withy::policy
