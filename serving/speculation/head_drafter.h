// Drafts with the target's draft head: no second model, no prompt of its own. What the head reads
// comes of the target's passes, and its KV of a prompt is computed behind each of them, which takes
// three products of one layer and counts as no draft's time. Knows which calls it can draft for and
// what its passes take. Neighbours: engine/head/draft_head.h computes; head_tree_kv.h has a call's
// KV; tree_grower.h grows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/head/draft_head.h"
#include "engine/model/model.h"
#include "policy/call/level_pace.h"
#include "serving/call/worker_metrics.h"
#include "serving/speculation/drafter.h"
#include "serving/speculation/tree_grower.h"

namespace withy::serving {

// For the engine thread. Everything passed in is borrowed.
class HeadDrafter final : public Drafter {
 public:
  // `pace`: of the full model.
  HeadDrafter(engine::DraftHead& head, const engine::ModelInfo& target,
              const policy::LevelPace& pace, Clock& clock, WorkerMetrics& metrics);

  std::span<const int32_t> feature_layers() const { return head_.shape().feature_layers; }
  // Gives rows of the full level room in `features`, [rows, feature_width].
  void AskFeatures(std::span<engine::Row> rows, std::vector<float>* features) const;
  // The rows were computed, and the session has the tokens that came of them: takes the features of
  // those that are of the call's tokens. Computes the head's KV of them where many wait.
  void TakeFeatures(const Session& session, CallDrafts& drafts, std::span<const engine::Row> rows,
                    std::span<const float> features);

  policy::DraftOffer Follow(const DraftTask& task) override;
  // An error of the head ends it: without a draft the step decodes plainly.
  DraftResult Grow(std::span<const DraftTask> tasks, const DraftTime& time) override;
  std::unique_ptr<StepWindows> GrowMeanwhile(std::span<const DraftTask> /*tasks*/) override {
    return nullptr;
  }
  void Forget(uint64_t /*call_id*/) override {}

 private:
  bool OfFullLevel(const engine::Row& row) const;
  absl::Status ComputePending(uint64_t call_id, HeadTreeKv& kv);
  absl::StatusOr<std::unique_ptr<TreeGrower>> GrowerOf(std::span<const DraftTask> tasks);
  absl::Status GrowAll(TreeGrower& grower, const std::atomic<bool>* interrupt);

  engine::DraftHead& head_;
  const engine::ModelInfo& target_;
  const policy::LevelPace& pace_;
  Clock& clock_;
  WorkerMetrics& metrics_;
  const double weight_share_;  // bytes of a pass of the head / of one of the target
  double pass_ms_ = 0;         // of a pass that extends trees; 0: none was made
  std::vector<float> logits_;
};

}  // namespace withy::serving
