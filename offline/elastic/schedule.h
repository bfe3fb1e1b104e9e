// The stages of an elasticizing run, and how long each will take: what is said before hours of work
// begin, and what the time left is counted from. Neighbours: job.cc runs the stages, step_times.h
// measures, base/time_left.h corrects the estimate while the run goes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/weights/shape.h"

namespace withy::elastic {

// What decides how much work there is.
struct ScheduleOptions {
  std::vector<int32_t> percents;  // ascending
  int64_t calibration_batches = 32;
  int64_t recovery_steps = 400;
  int64_t recoveries = 2;
  int64_t trial_steps = 60;
  std::string order = "importance";
  bool measured = true;
  int threads = 1;
};

// What --quick asks for.
ScheduleOptions QuickSchedule();

// Seconds that the whole machine takes for one batch, at the full level and at a low one; between
// them, and below, a line.
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
  int train_threads = 1;  // that share such a step
  double write_s = 0;     // the elastic file
};

enum class StageKind { kUnits, kLayers, kCuts, kSplits, kRecovery, kLosses, kWrite };
std::string StageKindName(StageKind kind);  // "importance of units"

struct PlannedStage {
  StageKind kind = StageKind::kUnits;
  int32_t percent = 100;  // of the level; of kUnits the level whose units are judged
  double cost_s = 0;
};

// LoRA steps at a level, from those at 50 %: by what it cuts for what it keeps.
int64_t StepsAt(int32_t percent, int64_t steps_at_50);
// Most extents that are tried for a level.
int64_t MostTrials(bool measured);
// Batches that cuts are judged on.
int64_t CutBatches(int64_t calibration_batches);
// Seconds that one of `tasks` tasks adds to the run, each of `task_s` on one thread: they run side
// by side, and threads without a task do nothing.
double SideBySide(double task_s, int64_t tasks, int threads);

// All stages in the order that they run in.
std::vector<PlannedStage> PlanStages(const engine::ModelShape& shape,
                                     const ScheduleOptions& options, const StepTimes& times);

// "about 9 h 40 min on 2 threads: importance of units 12 min, ...". `done`: what an earlier run has
// done of each stage, in shares; empty: nothing.
std::string EstimateText(const std::vector<PlannedStage>& stages, const std::vector<double>& done,
                         int threads);
double TotalCost(const std::vector<PlannedStage>& stages);

}  // namespace withy::elastic
