// Drafts several calls with the target's own lowest level, in passes that they share. Neighbours:
// prefix_drafter.h drafts for a call that runs alone and says which models can; speculator.h
// decides when.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/model.h"
#include "model_worker/session.h"
#include "policy/draft_tree.h"
#include "policy/tree_growth.h"

namespace withy::model_worker {

// Nothing follows a token that ends an answer: a model does not go on behind the nodes of `tree`
// from `first` on that are among `ends`.
void StopAtEnds(std::span<const int32_t> ends, int32_t first, policy::DraftTree* tree);

// One of the calls.
struct PrefixJob {
  Session& session;
  policy::GrowthLimits limits;
  policy::ConfidenceFn confidence;
  policy::DraftTree tree;  // that grows
};

// Grows the trees of `jobs` behind their sessions' tokens: each as if it were alone. Ends early
// once `*interrupt` is true, with what there is. `logits`: scratch. For the engine thread.
// Errors: of the engine or the sampler; the trees are what they are then.
absl::Status GrowTogether(engine::Model& model, std::span<PrefixJob> jobs,
                          const std::atomic<bool>* interrupt, std::vector<float>* logits);

}  // namespace withy::model_worker
