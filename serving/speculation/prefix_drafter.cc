#include "serving/speculation/prefix_drafter.h"

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "engine/session/solo_answer.h"

namespace withy::serving {
namespace {

// Where the full model waits for a disk, more rows cost it nothing, which says nothing of passes
// that do not wait.
std::span<const policy::RowCost> CostsOfResident(const engine::Model& model,
                                                 std::span<const policy::RowCost> costs) {
  return model.weight_stats().streams() ? std::span<const policy::RowCost>() : costs;
}

bool OnlyFullModelStreams(const engine::WeightStreamStats& stats) {
  return stats.pass_bytes > 0 && stats.lowest_pass_bytes == 0;
}

class PrefixWindows final : public StepWindows {
 public:
  PrefixWindows(std::unique_ptr<TreeGrower> grower, std::span<const DraftTask> tasks, Clock& clock,
                WorkerMetrics& metrics)
      : grower_(std::move(grower)),
        tasks_(tasks.begin(), tasks.end()),
        clock_(clock),
        metrics_(metrics) {}

  bool Open(const std::atomic<bool>& arrived) override {
    const int64_t started = clock_.SteadyNanos();
    std::vector<int32_t> before;
    for (const DraftTask& task : tasks_) before.push_back(task.drafts.prefix.tree.size());
    const absl::StatusOr<bool> done = grower_->Run(&arrived);
    const int64_t ended = clock_.SteadyNanos();
    for (size_t i = 0; i < tasks_.size(); ++i) {
      const int32_t drafted = tasks_[i].drafts.prefix.tree.size() - before[i];
      if (drafted == 0) continue;
      tasks_[i].session.draft().stats().window_drafted += drafted;
      metrics_.DraftedInWindow(tasks_[i].call_id, drafted, started, ended);
    }
    return done.ok() && !*done;
  }

 private:
  const std::unique_ptr<TreeGrower> grower_;
  const std::vector<DraftTask> tasks_;
  Clock& clock_;
  WorkerMetrics& metrics_;
};

}  // namespace

PrefixDrafter::PrefixDrafter(engine::Model& model, std::span<const policy::RowCost> row_costs,
                             const policy::LevelPace& pace, Clock& clock, WorkerMetrics& metrics)
    : model_(model),
      pace_(pace),
      clock_(clock),
      metrics_(metrics),
      grows_in_windows_(OnlyFullModelStreams(model.weight_stats())),
      costs_(CostsOfResident(model, row_costs)) {}

bool PrefixDrafter::CanDraftFor(const Session& session) const {
  const std::vector<engine::LevelInfo>& levels = model_.info().levels;
  return levels.size() > 1 && levels.front().percent <= kMaxPercent &&
         engine::LevelIndex(model_.info(), session.level_percent()) > 0;
}

policy::DraftOffer PrefixDrafter::Follow(const DraftTask& task) {
  KvTree& tree = task.drafts.prefix;
  // A tree stays with its call only where it grew in a window.
  if (task.drafts.step.windows != policy::DraftSourceKind::kPrefix) tree = {};
  tree.Follow(task.drafts.prefix_kv);
  task.session.draft().stats().window_kept += tree.grown();
  tree.Settle();
  task.drafts.step.tree.Merge(tree.tree);
  const bool ready = CanDraftFor(task.session);
  return {.ready = ready,
          .grows_in_windows = ready && grows_in_windows_,
          .goes_on = !tree.tree.empty(),
          .pass_ms = costs_.PlainMs(pace_.TokenMs(task.session.rows().computed())),
          .rows = &costs_};
}

absl::StatusOr<std::unique_ptr<TreeGrower>> PrefixDrafter::GrowerOf(
    std::span<const DraftTask> tasks) {
  std::vector<TreeJob> jobs;
  for (const DraftTask& task : tasks) {
    jobs.push_back({.call_id = task.call_id,
                    .tree = task.drafts.prefix,
                    .kv = task.drafts.prefix_kv,
                    .sampling = task.session.answer().sampling(),
                    .limits = task.limits,
                    .confidence = task.drafts.Confidence()});
  }
  return TreeGrower::Create({.model = model_,
                             .passes = metrics_.pass_numbers(),
                             .clock = clock_,
                             .logits = logits_,
                             .source = policy::DraftSourceKind::kPrefix},
                            std::move(jobs));
}

absl::Status PrefixDrafter::GrowAll(TreeGrower& grower, int32_t depth,
                                    const std::atomic<bool>* interrupt) {
  while (true) {
    WITHY_ASSIGN_OR_RETURN(const bool more, grower.Begin());
    if (!more) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(const bool computed, grower.Compute(interrupt));
    if (!computed) return absl::OkStatus();
    costs_.Observe(grower.rows(), grower.pass_ms(), pace_.TokenMs(depth));
  }
}

DraftResult PrefixDrafter::Grow(std::span<const DraftTask> tasks, const DraftTime& time) {
  int32_t depth = 0;
  for (const DraftTask& task : tasks) depth = std::max(depth, task.session.rows().computed());
  const auto grower = GrowerOf(tasks);
  if (grower.ok()) GrowAll(**grower, depth, time.interrupt).IgnoreError();
  for (const DraftTask& task : tasks) task.drafts.step.tree.Merge(task.drafts.prefix.tree);
  return {.came = true};
}

std::unique_ptr<StepWindows> PrefixDrafter::GrowMeanwhile(std::span<const DraftTask> tasks) {
  for (const DraftTask& task : tasks) {
    task.drafts.prefix.tree.AddPart(task.drafts.step.tree, task.drafts.step.chosen);
    task.drafts.prefix.Settle();
  }
  auto grower = GrowerOf(tasks);
  if (!grower.ok()) return nullptr;
  return std::make_unique<PrefixWindows>(*std::move(grower), tasks, clock_, metrics_);
}

}  // namespace withy::serving
