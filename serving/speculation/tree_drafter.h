// Grows token trees behind the tokens of the target's calls by a model of its own. Keeps the KV of
// the last few calls, and computes what a call's KV lacks before it is used. Neighbours:
// tree_grower.h grows; draft_worker lends the thread and speaks gRPC.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/model/kernel_observer.h"
#include "engine/model/model.h"
#include "engine/model/scratch_kv.h"
#include "engine/sampling/sampler.h"
#include "policy/draft/draft_tree.h"
#include "policy/draft/tree_growth.h"
#include "serving/speculation/scratch_tree_kv.h"
#include "serving/speculation/tree_grower.h"

namespace withy::serving {

struct TreeRequest {
  uint64_t call_id = 0;
  int32_t known_tokens = 0;         // of an earlier request of the call
  std::span<const int32_t> tokens;  // that follow them
  engine::SamplingParams sampling;
  policy::GrowthLimits limits;  // `pass_ms` is the drafter's own
};

// Lends the processors to a tree that grows while the target waits.
class Turns {
 public:
  virtual ~Turns() = default;
  // Waits until the draft may compute; false: it is over.
  virtual bool Begin() = 0;
  // True: compute no longer, and call End.
  virtual const std::atomic<bool>& wanted() const = 0;
  virtual void End() = 0;
};

struct GrownTree {
  policy::DraftTree tree;  // confidences are the draft's probabilities
  bool unknown = false;    // `known_tokens` are not here
  int32_t passes = 0;
  double pass_ms = 0;
  CaughtUp caught_up;
  // Tokens that Grow added since the last Draft, and those of them that are in the tree.
  int32_t window_drafted = 0;
  int32_t window_kept = 0;
};

// A tree stays with its call: a request whose tokens go on along a branch begins with what follows
// there. For one thread. `model`, `passes` and `clock` are borrowed. Bounded: the KV of kCalls
// calls of `window` tokens each.
class TreeDrafter {
  struct Drafted {
    Drafted(uint64_t call, const engine::ModelInfo& info) : call_id(call), scratch(info, 64) {}

    const uint64_t call_id;
    engine::ScratchKv scratch;
    ScratchTreeKv kv{scratch};
    KvTree tree;                 // what Grow added is not settled
    int32_t window_drafted = 0;  // since the last Draft
  };

 public:
  static constexpr size_t kCalls = 8;

  // `passes` names its passes: a pass that several calls share belongs to none.
  TreeDrafter(engine::Model& model, int32_t window, engine::PassNumbers& passes, Clock& clock)
      : model_(model), window_(window), pass_numbers_(passes), clock_(clock) {}

  // Trees of calls, kCalls at most and each once, whose leaves are computed in passes that they
  // share; `passes` are of all together. What a call gets does not depend on the others; one that
  // is longer than the window gets an empty tree. `cancelled` is asked between passes: what was
  // computed until then stays for the next request. Errors: INVALID_ARGUMENT (no tokens, a token
  // outside the vocabulary, a call twice), CANCELLED; those of the engine.
  absl::StatusOr<std::vector<GrownTree>> Draft(std::span<const TreeRequest> requests,
                                               const std::function<bool()>& cancelled);
  // Trees of calls that go on growing beyond what was asked for, in as many slices as there is time
  // for. No Draft meanwhile.
  class Growth {
   public:
    // Grows until all trees are done; false: `*stop` became true first, and the next Run goes on in
    // the middle of the pass. Errors: of the engine.
    absl::StatusOr<bool> Run(const std::atomic<bool>* stop) { return grower_->Run(stop); }

   private:
    friend TreeDrafter;
    std::vector<Drafted*> calls_;                   // [request]; null: not here, or too long
    std::vector<bool> unknown_;                     // [request]
    std::vector<int32_t> before_;                   // nodes of each call's tree
    std::vector<engine::SamplingParams> sampling_;  // of those that are here; does not grow
    std::unique_ptr<TreeGrower> grower_;
  };
  // The requests need not outlive it. Errors: as Draft.
  absl::StatusOr<Growth> BeginGrowth(std::span<const TreeRequest> requests);
  // Takes in what grew; a pass under way is dropped.
  CaughtUp EndGrowth(Growth growth);
  // Lets the trees of these calls grow in turns, until they are done or the turns are over. Errors:
  // as Draft.
  absl::StatusOr<CaughtUp> Grow(std::span<const TreeRequest> requests, Turns& turns);
  // Of the call's tokens, the first ones that have KV; 0: the call is not here.
  int32_t computed(uint64_t call_id) const;

 private:
  Drafted& EntryOf(uint64_t call_id);
  absl::Status Check(const TreeRequest& request) const;
  // Brings the call's tokens and tree up to the request. Null: `known_tokens` are not here.
  Drafted* Follow(const TreeRequest& request);
  static absl::Status GrowInTurns(TreeGrower& grower, Turns& turns);
  absl::Status GrowAll(TreeGrower& grower, const std::function<bool()>& cancelled);

  engine::Model& model_;
  const int32_t window_;
  engine::PassNumbers& pass_numbers_;
  Clock& clock_;
  std::vector<std::unique_ptr<Drafted>> calls_;  // the one used last stands last
  std::vector<float> logits_;
  double pass_ms_ = 0;  // of one leaf or a few
};

}  // namespace withy::serving
