// Drafts with the target's own lowest level: a draft model that takes no memory. Knows which calls
// it can draft for and what its passes take. Neighbours: tree_grower.h computes, session_tree_kv.h
// is where, speculator.h decides when.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "policy/call/level_pace.h"
#include "policy/draft/tree_budget.h"
#include "serving/speculation/tree_grower.h"

namespace withy::serving {

// For the engine thread. Everything passed in is borrowed.
class PrefixDrafter {
 public:
  // Levels above this share are too slow to draft, in per cent.
  static constexpr int32_t kMaxPercent = 40;

  // `row_costs`: of the full model's passes. `passes` names those of the low level.
  PrefixDrafter(engine::Model& model, std::span<const policy::RowCost> row_costs,
                engine::PassNumbers& passes, Clock& clock);

  // Whether the model has a level that drafts for calls at level `level` (index).
  bool CanDraftFor(int32_t level) const;
  // Whether its passes need no weights that are streamed, while those of the full model do.
  bool can_draft_in_windows() const { return can_draft_in_windows_; }
  // What a pass of one row takes, in milliseconds; `pace`: of its level.
  double PassMs(const policy::LevelPace& pace, int32_t depth) const {
    return costs_.PlainMs(pace.TokenMs(depth));
  }
  const policy::RowCosts& costs() const { return costs_; }
  // Grows the trees behind their sessions' tokens. Ends early once `*interrupt` is true, with what
  // there is. Errors: of the engine or the sampler; the trees are what they are then.
  absl::Status Grow(std::vector<TreeJob> jobs, const policy::LevelPace& pace,
                    const std::atomic<bool>* interrupt);
  // For slices; no longer than the calls' next step.
  absl::StatusOr<std::unique_ptr<TreeGrower>> Begin(std::vector<TreeJob> jobs) {
    return TreeGrower::Create({.model = model_,
                               .passes = pass_numbers_,
                               .clock = clock_,
                               .logits = logits_,
                               .source = policy::DraftSourceKind::kPrefix},
                              std::move(jobs));
  }

 private:
  engine::Model& model_;
  engine::PassNumbers& pass_numbers_;
  Clock& clock_;
  const bool can_draft_in_windows_;
  policy::RowCosts costs_;  // of its passes
  std::vector<float> logits_;
};

}  // namespace withy::serving
