#include "serving/speculation/prefix_drafter.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

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

}  // namespace

PrefixDrafter::PrefixDrafter(engine::Model& model, std::span<const policy::RowCost> row_costs,
                             engine::PassNumbers& passes, Clock& clock)
    : model_(model),
      pass_numbers_(passes),
      clock_(clock),
      can_draft_in_windows_(OnlyFullModelStreams(model.weight_stats())),
      costs_(CostsOfResident(model, row_costs)) {}

bool PrefixDrafter::CanDraftFor(int32_t level) const {
  const std::vector<engine::LevelInfo>& levels = model_.info().levels;
  return levels.size() > 1 && level > 0 && levels.front().percent <= kMaxPercent;
}

absl::Status PrefixDrafter::Grow(std::vector<TreeJob> jobs, const policy::LevelPace& pace,
                                 const std::atomic<bool>* interrupt) {
  int32_t depth = 0;
  for (const TreeJob& job : jobs) depth = std::max(depth, job.kv.computed());
  WITHY_ASSIGN_OR_RETURN(const std::unique_ptr<TreeGrower> grower, Begin(std::move(jobs)));
  while (true) {
    WITHY_ASSIGN_OR_RETURN(const bool more, grower->Begin());
    if (!more) return absl::OkStatus();
    WITHY_ASSIGN_OR_RETURN(const bool computed, grower->Compute(interrupt));
    if (!computed) return absl::OkStatus();
    costs_.Observe(grower->rows(), grower->pass_ms(), pace.TokenMs(depth));
  }
}

}  // namespace withy::serving
