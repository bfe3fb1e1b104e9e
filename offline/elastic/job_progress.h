// Progress of an elasticizing run: sums the reports of its stages and shows the time left of the
// stage and of the run. Neighbours: job.cc, base/time_left.h.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/progress_line.h"
#include "base/time_left.h"
#include "offline/elastic/schedule.h"
#include "offline/elastic/work.h"

namespace withy::elastic {

// Thread-safe.
class JobProgress {
 public:
  JobProgress(std::vector<PlannedStage> stages, const Clock& clock);

  // Cost of the stage of this kind and level, which must exist.
  double CostOf(StageKind kind, int32_t percent) const;
  // Begins that stage. `cost_s`: its cost, possibly improved; `item_s`: cost between two reports.
  void Begin(StageKind kind, int32_t percent, double cost_s, double item_s);
  // A checkpointer that reports to the current stage.
  Checkpointer CheckpointerOf(StageState stage_state);
  void End();
  // An earlier run completed the stage.
  void Skip(StageKind kind, int32_t percent);
  // Ends the line, so that other output can be printed.
  void EndLine();

 private:
  size_t Find(StageKind kind, int32_t percent) const;
  double Now() const;
  void Show(bool now);  // requires mutex_

  const std::vector<PlannedStage> stages_;
  const Clock& clock_;
  std::mutex mutex_;
  TimeLeft left_;
  ProgressLine line_;
  size_t stage_ = 0;
};

}  // namespace withy::elastic
