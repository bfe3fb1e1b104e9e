// What the worker learns from the steps that ran: how many rows fit into one, how slow the board
// is. Neighbours: step_plan.h plans with both; board_speed.h predicts passes.
#pragma once

#include <cstdint>

#include "policy/board/board_speed.h"
#include "policy/step/piece_sizer.h"
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
  double ms = 0;  // of computing
  int64_t started_ns = 0;
  int64_t ended_ns = 0;
  bool preempted = false;  // by another step
  bool streams_weights = false;
};

// The worker's model of the board. A pass is cold where it is among the first ones behind a pause
// (kColdPasses), or streams weights: it finds nothing in the caches or in memory, and tells nothing
// of the board's speed, only how much longer such passes take. Not thread-safe.
class StepLearner {
 public:
  explicit StepLearner(const StepLearnerOptions& options)
      : full_row_ms_(options.full_row_ms),
        sizer_(options.us_per_row, options.piece_ms, options.max_rows) {}

  const PieceSizer& sizer() const { return sizer_; }
  const BoardSpeed& board() const { return board_; }
  // Ratio of what rows of prompts take, in a step that begins at `start_ns`, to LevelPace.
  double slowdown(int64_t start_ns) const {
    return board_.PromptRatio() * (IsCold(start_ns) ? cold_ratio_ : 1);
  }

  // Returns the ratio of what the step took to what it was predicted to take; 1 where it has too
  // few rows of prompts to tell.
  double Observe(const StepPlan& plan, const ObservedPass& pass);

 private:
  bool IsCold(int64_t start_ns) const {
    return streams_weights_ || start_ns - last_pass_ns_ > kColdPauseNs ||
           warm_passes_ + 1 < kColdPasses;
  }

  const double full_row_ms_;
  PieceSizer sizer_;
  BoardSpeed board_;
  double cold_ratio_ = 1;  // of the time of cold passes of prompts to that of warm ones
  bool streams_weights_ = false;
  int64_t last_pass_ns_ = 0;  // end of the last step
  int32_t warm_passes_ = 0;   // steps since the last pause
};

}  // namespace withy::policy
