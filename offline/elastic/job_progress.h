// Where an elasticizing run is: counts what its stages report and shows it with the time left of
// the stage and of all. Neighbours: job.cc, base/time_left.h.
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

  // The stage of this kind and level; there must be one.
  double CostOf(StageKind kind, int32_t percent) const;
  // Begins it. `cost_s`: what it costs, where that is known better by now; `item_s`: cost of what
  // is done between two reports.
  void Begin(StageKind kind, int32_t percent, double cost_s, double item_s);
  // A keeper that reports to the stage that runs.
  Keeper KeeperOf(Part part);
  void End();
  // An earlier run has done it.
  void Skip(StageKind kind, int32_t percent);
  // Ends the line, so that something else can be printed.
  void EndLine();

 private:
  size_t Find(StageKind kind, int32_t percent) const;
  double Now() const;
  void Show(bool now);  // with mutex_ held

  const std::vector<PlannedStage> stages_;
  const Clock& clock_;
  std::mutex mutex_;
  TimeLeft left_;
  ProgressLine line_;
  size_t stage_ = 0;
};

}  // namespace withy::elastic
