// The stages of an elasticizing run and their expected times, for the estimate before the run and
// the time left during it. Pure. Neighbours: job.cc runs the stages, step_times.h measures, and
// base/time_left.h corrects the estimate during the run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/weights/shape.h"
#include "offline/elastic/plan.h"

namespace withy::elastic {

// How steps of LoRA grow towards low levels.
enum class StepGrowth {
  kCut,    // with the parameters that are cut: for little time, where each level needs some
  kRatio,  // with the ratio of cut to kept parameters: for time enough, which low levels need most
};

// Options that determine the amount of work.
struct ScheduleOptions {
  std::vector<int32_t> percents;  // ascending
  int64_t calibration_batches = 32;
  int64_t recovery_steps = 400;
  int64_t recoveries = 1;
  int64_t trial_steps = 60;
  StepGrowth growth = StepGrowth::kRatio;
  std::string order = "importance";
  Cuts cuts = Cuts::kMeasured;
  int64_t text_batches = 0;  // that take time to write or to label; StepTimes::text_s each
  int threads = 1;
};

// Seconds of the whole machine for one batch at the full level and at a low one; linear in between
// and below.
struct BatchTime {
  int32_t low_percent = 20;
  double low_s = 0;
  double full_s = 0;

  double At(int32_t percent) const;
};

struct StepTimes {
  BatchTime loss;         // of a calibration batch
  BatchTime units;        // importance of units, from a calibration batch
  BatchTime train;        // a step of LoRA on a batch of the text
  int train_threads = 1;  // threads that share one step
  double text_s = 0;      // a batch that the model writes or labels
  double write_s = 0;     // the elastic file
};

enum class StageKind { kText, kUnits, kLayers, kCuts, kSplits, kRecovery, kLosses, kWrite };
std::string StageKindName(StageKind kind);  // "importance of units"

struct PlannedStage {
  StageKind kind = StageKind::kUnits;
  int32_t percent = 100;  // per cent of the level; for kUnits the level whose units are measured
  double cost_s = 0;
};

// Number of LoRA steps at a level, scaled from those at 50 %.
int64_t StepsAt(int32_t percent, int64_t steps_at_50, StepGrowth growth);
// Maximum number of candidate extents per level that are tried; 0: the only one is taken.
int64_t MaxTrials(Cuts cuts);
// Number of batches for judging cuts.
int64_t CutBatches(int64_t calibration_batches);
// Seconds that each of `tasks` tasks adds to the run if every task takes `task_s` on one thread.
// Tasks run in parallel; threads without a task idle.
double ParallelSeconds(double task_s, int64_t tasks, int threads);

// All stages in order of execution.
std::vector<PlannedStage> PlanStages(const engine::ModelShape& shape,
                                     const ScheduleOptions& options, const StepTimes& times);

// `options` with as much text (if it takes time) and as many steps of recovery as `hours` allow:
// an eighth of the time for text, what other stages leave for recovery; at least one batch and one
// step.
ScheduleOptions FitToHours(const engine::ModelShape& shape, ScheduleOptions options,
                           const StepTimes& times, double hours);

// "about 9 h 40 min on 2 threads: importance of units 12 min, ...". `done`: share of each stage
// that an earlier run completed; empty: nothing.
std::string EstimateText(const std::vector<PlannedStage>& stages, const std::vector<double>& done,
                         int threads);
double TotalCost(const std::vector<PlannedStage>& stages);

}  // namespace withy::elastic
