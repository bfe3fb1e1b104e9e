#include "offline/elastic/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/time_left.h"
#include "engine/weights/levels.h"

namespace withy::elastic {
namespace {

constexpr std::array<StageKind, 8> kKinds = {
    StageKind::kText,   StageKind::kUnits,    StageKind::kLayers, StageKind::kCuts,
    StageKind::kSplits, StageKind::kRecovery, StageKind::kLosses, StageKind::kWrite};

// An approximation of the level; its actual extents are not known yet.
engine::LevelSpec About(const engine::ModelShape& shape, int32_t percent) {
  if (percent < 100) return engine::PlanLevel(shape, percent, {}, 1.0, nullptr);
  return {.percent = 100,
          .layers = std::vector<engine::LayerExtent>(static_cast<size_t>(shape.layers),
                                                     {shape.heads, shape.d_ff})};
}

class Planner {
 public:
  Planner(const engine::ModelShape& shape, const ScheduleOptions& options, const StepTimes& times)
      : shape_(shape),
        options_(options),
        times_(times),
        calibration_(static_cast<double>(options.calibration_batches)) {}

  std::vector<PlannedStage> Plan() {
    if (options_.text_batches > 0) {
      Add(StageKind::kText, 100, static_cast<double>(options_.text_batches) * times_.text_s);
    }
    if (options_.order == "importance" || options_.order == "gradient") Units(100);
    const int32_t rows = options_.cuts == Cuts::kEstimated ? 1 : shape_.layers + 1;
    Add(StageKind::kLayers, 100, rows * calibration_ * times_.loss.full_s);
    int32_t above = 100;
    for (auto it = options_.percents.rbegin(); it != options_.percents.rend(); ++it) {
      if (above < 100 && options_.order == "importance") Units(above);
      Level(*it, above);
      above = *it;
    }
    Add(StageKind::kWrite, 100, times_.write_s);
    return std::move(stages_);
  }

 private:
  void Add(StageKind kind, int32_t percent, double cost_s) {
    stages_.push_back({kind, percent, cost_s});
  }

  void Units(int32_t percent) {
    Add(StageKind::kUnits, percent, calibration_ * times_.units.At(percent));
  }

  void Level(int32_t percent, int32_t above) {
    const double loss = calibration_ * times_.loss.At(percent);
    if (options_.cuts != Cuts::kAlike) {
      const engine::LevelSpec from = About(shape_, above);
      const std::vector<LayerCut> possible = PossibleCuts(shape_, percent, from);
      const size_t measured =
          options_.cuts == Cuts::kMeasured ? possible.size() : DeepestCuts(from, possible).size();
      const double cuts = static_cast<double>(measured) + 1;
      Add(StageKind::kCuts, percent,
          cuts * static_cast<double>(CutBatches(options_.calibration_batches)) *
              times_.loss.At(above));
    }
    if (const int64_t trials = MaxTrials(options_.cuts); trials > 0) {
      const auto trial_steps = static_cast<double>(
          options_.recovery_steps == 0 ? 0
                                       : StepsAt(percent, options_.trial_steps, options_.growth));
      Add(StageKind::kSplits, percent,
          static_cast<double>(trials) *
              ParallelSeconds(trial_steps * times_.train.At(percent) * times_.train_threads +
                                  loss * options_.threads,
                              trials, options_.threads));
    }
    if (options_.recovery_steps > 0) {
      const auto times = static_cast<double>(options_.recoveries);
      const auto steps =
          static_cast<double>(StepsAt(percent, options_.recovery_steps, options_.growth));
      Add(StageKind::kRecovery, percent,
          times * steps * times_.train.At(percent) + (times + 1) * loss);
    }
    Add(StageKind::kLosses, percent, 2 * loss);
  }

  const engine::ModelShape& shape_;
  const ScheduleOptions& options_;
  const StepTimes& times_;
  const double calibration_;
  std::vector<PlannedStage> stages_;
};

}  // namespace

double BatchTime::At(int32_t percent) const {
  const double slope = (full_s - low_s) / (100 - low_percent);
  const double line = low_s + slope * (percent - low_percent);
  return std::max({line, low_s / 2, full_s * 0.02});
}

std::string StageKindName(StageKind kind) {
  switch (kind) {
    case StageKind::kText:
      return "text";
    case StageKind::kUnits:
      return "importance of units";
    case StageKind::kLayers:
      return "importance of layers";
    case StageKind::kCuts:
      return "cuts of single layers";
    case StageKind::kSplits:
      return "heads and neurons";
    case StageKind::kRecovery:
      return "recovery";
    case StageKind::kLosses:
      return "losses";
    case StageKind::kWrite:
      return "writing the file";
  }
  return "";
}

int64_t StepsAt(int32_t percent, int64_t steps_at_50, StepGrowth growth) {
  const int64_t cut = steps_at_50 * (100 - percent);
  const int64_t steps =
      growth == StepGrowth::kCut ? cut / 50 : cut * 50 / (int64_t{percent} * percent);
  return steps + (steps_at_50 > 0 ? 1 : 0);
}

int64_t MaxTrials(Cuts cuts) {
  if (cuts == Cuts::kEstimated) return 0;
  return kSplitCount + (cuts == Cuts::kMeasured ? 1 : 0);
}

int64_t CutBatches(int64_t calibration_batches) { return (calibration_batches + 3) / 4; }

double ParallelSeconds(double task_s, int64_t tasks, int threads) {
  const auto rounds = static_cast<double>((tasks + threads - 1) / threads);
  return task_s * rounds / static_cast<double>(tasks);
}

std::vector<PlannedStage> PlanStages(const engine::ModelShape& shape,
                                     const ScheduleOptions& options, const StepTimes& times) {
  return Planner(shape, options, times).Plan();
}

double TotalCost(const std::vector<PlannedStage>& stages) {
  double sum = 0;
  for (const PlannedStage& stage : stages) sum += stage.cost_s;
  return sum;
}

ScheduleOptions FitToHours(const engine::ModelShape& shape, ScheduleOptions options,
                           const StepTimes& times, double hours) {
  constexpr double kTextShare = 1.0 / 8;
  constexpr int64_t kMostSteps = 20'000;
  const double wanted_s = hours * 3600;
  if (times.text_s > 0) {
    options.text_batches = std::clamp<int64_t>(std::llround(kTextShare * wanted_s / times.text_s),
                                               1, options.text_batches);
  }
  const auto cost = [&](int64_t steps) {
    options.recovery_steps = steps;
    return TotalCost(PlanStages(shape, options, times));
  };
  const double least = cost(1);
  const double each = (cost(1 + kMostSteps) - least) / static_cast<double>(kMostSteps);
  options.recovery_steps =
      std::clamp<int64_t>(1 + static_cast<int64_t>((wanted_s - least) / each), 1, kMostSteps);
  return options;
}

std::string EstimateText(const std::vector<PlannedStage>& stages, const std::vector<double>& done,
                         int threads) {
  double all = 0;
  double found = 0;
  std::vector<std::string> parts;
  for (const StageKind kind : kKinds) {
    double left = 0;
    for (size_t i = 0; i < stages.size(); ++i) {
      if (stages[i].kind != kind) continue;
      const double share = i < done.size() ? done[i] : 0;
      left += (1 - share) * stages[i].cost_s;
      found += share * stages[i].cost_s;
    }
    all += left;
    if (left >= 1 && (left >= 0.01 * TotalCost(stages) || left >= 60)) {
      parts.push_back(absl::StrCat(StageKindName(kind), " ", DurationText(left)));
    }
  }
  return absl::StrCat(
      all < 1 ? "" : "about ", DurationText(all), found > 0 ? " more" : "", " on ", threads,
      threads == 1 ? " thread" : " threads", parts.empty() ? "" : ": ", absl::StrJoin(parts, ", "),
      found > 0 ? absl::StrCat(" (", DurationText(found), " of work is done)") : "");
}

}  // namespace withy::elastic
