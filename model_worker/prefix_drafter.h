// Drafts with the target's own lowest level, over the call's KV as the full model left it: a draft
// model that takes no memory. Neighbours: policy/tree_growth.h says what to compute, speculator.h
// when. Its rows write to slots behind the call's tokens, which the verifying step writes over or
// nobody reads: nothing of a low level stays in a context. Source: DESIGN section 6, the resident
// prefix.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "engine/model/model.h"
#include "engine/sampling/sampler.h"
#include "model_worker/session.h"
#include "policy/draft_tree.h"
#include "policy/level_pace.h"
#include "policy/tree_growth.h"

namespace withy::model_worker {

// For the engine thread. Everything passed in is borrowed.
class PrefixDrafter {
 public:
  // Levels above this share are too slow to draft, in per cent.
  static constexpr int32_t kMaxPercent = 40;

  PrefixDrafter(engine::Model& model, Clock& clock) : model_(model), clock_(clock) {}

  // Whether the model has a level that drafts for calls at level `level` (index).
  bool CanDraftFor(int32_t level) const;
  // What a pass of it takes, in milliseconds; `pace`: of its level.
  double PassMs(const policy::LevelPace& pace, int32_t depth) const {
    return pace.TokenMs(depth) * pace_;
  }
  // Grows `tree` behind the session's tokens. Ends early once `*interrupt` is true, with what there
  // is. Errors: of the engine or the sampler; the tree is what it is then.
  absl::Status Grow(Session& session, const policy::GrowthLimits& limits,
                    const policy::ConfidenceFn& confidence, const std::atomic<bool>* interrupt,
                    const policy::LevelPace& pace, policy::DraftTree* tree);

 private:
  // Computes the nodes and leaves their logits; false: interrupted.
  absl::StatusOr<bool> Compute(Session& session, const policy::DraftTree& tree,
                               const std::vector<int32_t>& nodes,
                               const std::atomic<bool>* interrupt);

  engine::Model& model_;
  Clock& clock_;
  std::vector<float> logits_;
  double pace_ = 1;  // ratio of what its passes take to what was calibrated
};

}  // namespace withy::model_worker
