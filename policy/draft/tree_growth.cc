#include "policy/draft/tree_growth.h"

#include <algorithm>
#include <cmath>

namespace withy::policy {

std::vector<int32_t> TreeGrowth::Next() {
  if (limits_.max_nodes < 1 || limits_.max_depth < 1) return {};
  if (limits_.max_passes > 0 && passes_ >= limits_.max_passes) return {};
  ++passes_;
  if (!begun_ && !tree_.root_extended()) {
    begun_ = true;
    return {kRoot};
  }
  const double confidence = tree_.TreeConfidence();
  if (tree_.size() >= limits_.max_nodes || confidence < limits_.alpha) return {};
  std::vector<int32_t> leaves = tree_.LeavesToExtend(
      std::min(limits_.leaves_per_pass, limits_.max_nodes - tree_.size()), limits_.max_depth);
  if (limits_.pass_ms > 0) {
    // The token behind a leaf is taken to be as sure as those before it were on the average.
    double worth = 0;
    for (const int32_t leaf : leaves) {
      const DraftNode& node = tree_.nodes()[static_cast<size_t>(leaf)];
      worth += std::pow(node.cumulative, 1 + 1.0 / node.depth);
    }
    if (worth * limits_.token_ms < limits_.pass_ms) return {};
  }
  return leaves;
}

void TreeGrowth::Extend(int32_t leaf, std::span<const LikelyToken> candidates,
                        std::span<const int32_t> ends) {
  tree_.MarkExtended(leaf);
  for (size_t i = 0; i < candidates.size(); ++i) {
    const auto& [token, probability] = candidates[i];
    if (i > 0 && probability < limits_.branch_threshold) continue;
    const bool is_new = tree_.Find(leaf, token) < 0;
    if (is_new && tree_.size() >= limits_.max_nodes) return;
    const DraftOrigin origin{source_, DraftConfidence::ProbabilityBin(probability)};
    const int32_t node = tree_.Add(leaf, token, confidence_(origin, probability), origin);
    if (is_new && std::find(ends.begin(), ends.end(), token) != ends.end()) {
      tree_.MarkExtended(node);
    }
  }
}

}  // namespace withy::policy
