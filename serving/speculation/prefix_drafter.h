// Drafts with the target's own lowest level: a draft model that takes no memory. Knows which calls
// it can draft for and what its passes take. Neighbours: tree_grower.h computes, session_tree_kv.h
// is where.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "policy/call/level_pace.h"
#include "policy/draft/tree_budget.h"
#include "serving/call/worker_metrics.h"
#include "serving/speculation/drafter.h"
#include "serving/speculation/tree_grower.h"

namespace withy::serving {

// For the engine thread. Everything passed in is borrowed.
class PrefixDrafter final : public Drafter {
 public:
  // Levels above this share are too slow to draft, in per cent.
  static constexpr int32_t kMaxPercent = 40;

  // `row_costs`: of the full model's passes. `pace`: of the lowest level.
  PrefixDrafter(engine::Model& model, std::span<const policy::RowCost> row_costs,
                const policy::LevelPace& pace, Clock& clock, WorkerMetrics& metrics);

  policy::DraftOffer Follow(const DraftTask& task) override;
  // An error of the engine ends it: without a draft the step decodes plainly, and says what is
  // wrong with the model.
  DraftResult Grow(std::span<const DraftTask> tasks, const DraftTime& time) override;
  // Of a model whose other levels alone need weights that are streamed.
  std::unique_ptr<StepWindows> GrowMeanwhile(std::span<const DraftTask> tasks) override;
  void Forget(uint64_t /*call_id*/) override {}

 private:
  bool CanDraftFor(const Session& session) const;
  absl::StatusOr<std::unique_ptr<TreeGrower>> GrowerOf(std::span<const DraftTask> tasks);
  absl::Status GrowAll(TreeGrower& grower, int32_t depth, const std::atomic<bool>* interrupt);

  engine::Model& model_;
  const policy::LevelPace& pace_;
  Clock& clock_;
  WorkerMetrics& metrics_;
  const bool grows_in_windows_;
  policy::RowCosts costs_;  // of its passes
  std::vector<float> logits_;
};

}  // namespace withy::serving
