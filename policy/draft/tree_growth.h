// How a draft model grows a tree: which leaves it computes next, which of their tokens become
// branches, when it stops and lets the target verify. Pure. Neighbours: draft_tree.h is the tree;
// the worker's resident prefix and draft_worker compute what this asks for.
//
//   TreeGrowth growth(limits, &tree);
//   while (!(leaves = growth.Next()).empty())
//     for (int32_t leaf : leaves) growth.Extend(leaf, candidates of the model behind `leaf`);
//
// Source: LLMCad sections 3.2 and 3.3.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "policy/draft/draft_confidence.h"
#include "policy/draft/draft_tree.h"

namespace withy::policy {

struct GrowthLimits {
  int32_t max_nodes = 16;
  int32_t max_depth = 16;
  int32_t max_passes = 0;  // of the draft; 0: any number
  int32_t leaves_per_pass = 2;
  double alpha = 0.01;            // draft_confidence.h
  double branch_threshold = 0.3;  // probability from which a token that is not the first branches
  // What the next token behind the tree must be worth: a token that is accepted for sure is worth
  // `token_ms`, another pass of the draft takes `pass_ms`. 0: whatever it is worth.
  double pass_ms = 0;
  double token_ms = 0;
};

// A token of a draft model. `probability`: by the model, of all tokens.
struct LikelyToken {
  int32_t token = 0;
  double probability = 0;
};

// Confidence in a token that the model gives `probability`.
using ConfidenceFn = std::function<double(DraftOrigin origin, double probability)>;

// One tree's growth. `tree` is borrowed. Not thread-safe.
class TreeGrowth {
 public:
  static constexpr int32_t kRoot = -1;

  TreeGrowth(const GrowthLimits& limits, DraftSourceKind source, ConfidenceFn confidence,
             DraftTree* tree)
      : limits_(limits), source_(source), confidence_(std::move(confidence)), tree_(*tree) {}

  // The nodes whose next tokens are wanted, kRoot first of all, unless a tree that was begun before
  // knows what follows it; none: the tree is done.
  std::vector<int32_t> Next();
  // `candidates`: what the model expects behind `leaf`, the likeliest first; the first one always
  // becomes a branch. `ends`: tokens that end an answer; nothing follows those that become nodes.
  void Extend(int32_t leaf, std::span<const LikelyToken> candidates,
              std::span<const int32_t> ends = {});

 private:
  const GrowthLimits limits_;
  const DraftSourceKind source_;
  const ConfidenceFn confidence_;
  DraftTree& tree_;
  bool begun_ = false;
  int32_t passes_ = 0;
};

}  // namespace withy::policy
