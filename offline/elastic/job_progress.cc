#include "offline/elastic/job_progress.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace withy::elastic {
namespace {

std::vector<TimeLeft::Stage> TimesOf(const std::vector<PlannedStage>& stages) {
  std::vector<TimeLeft::Stage> times;
  for (const PlannedStage& stage : stages) {
    times.push_back({StageKindName(stage.kind), stage.cost_s});
  }
  return times;
}

std::string NameOf(const PlannedStage& stage) {
  const std::string kind = StageKindName(stage.kind);
  if (stage.kind == StageKind::kLayers || stage.kind == StageKind::kWrite) return kind;
  return stage.percent == 100 ? kind : absl::StrCat("level ", stage.percent, " %, ", kind);
}

}  // namespace

JobProgress::JobProgress(std::vector<PlannedStage> stages, const Clock& clock)
    : stages_(std::move(stages)), clock_(clock), left_(TimesOf(stages_)), line_(clock) {}

size_t JobProgress::Find(StageKind kind, int32_t percent) const {
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (stages_[i].kind == kind && stages_[i].percent == percent) return i;
  }
  return stages_.size();
}

double JobProgress::CostOf(StageKind kind, int32_t percent) const {
  return stages_[Find(kind, percent)].cost_s;
}

double JobProgress::Now() const {
  return static_cast<double>(clock_.SteadyNanos()) / static_cast<double>(kNanosPerSecond);
}

void JobProgress::Begin(StageKind kind, int32_t percent, double cost_s, double item_s) {
  const std::lock_guard lock(mutex_);
  stage_ = Find(kind, percent);
  left_.SetEstimate(stage_, cost_s);
  left_.Begin(stage_, 0, item_s, Now());
  Show(true);
}

Checkpointer JobProgress::CheckpointerOf(StageState stage_state) {
  return {.stage_state = std::move(stage_state),
          .resumed =
              [this](double cost_s) {
                const std::lock_guard lock(mutex_);
                left_.AddResumed(cost_s);
                Show(true);
              },
          .advance =
              [this](double cost_s) {
                const std::lock_guard lock(mutex_);
                left_.Advance(cost_s, Now());
                Show(false);
              }};
}

void JobProgress::End() {
  const std::lock_guard lock(mutex_);
  left_.End(Now());
}

void JobProgress::Skip(StageKind kind, int32_t percent) {
  const std::lock_guard lock(mutex_);
  left_.Skip(Find(kind, percent));
}

void JobProgress::EndLine() {
  const std::lock_guard lock(mutex_);
  line_.End();
}

void JobProgress::Show(bool now) {
  const double time = Now();
  const int percent = static_cast<int>(100 * left_.StageShare());
  line_.Show(ProgressText(absl::StrCat(NameOf(stages_[stage_]), ", ", percent, " %"),
                          left_.Share(time), left_.OfStage(time), left_.OfAll(time)),
             now);
}

}  // namespace withy::elastic
