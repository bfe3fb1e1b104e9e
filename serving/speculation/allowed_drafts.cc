#include "serving/speculation/allowed_drafts.h"

#include <utility>
#include <vector>

#include "policy/constants.h"
#include "policy/draft/draft_confidence.h"

namespace withy::serving {

void CutForbidden(engine::OutputConstraint& constraint, policy::DraftTree* tree) {
  if (!constraint.active() || tree->empty()) return;
  const std::vector<policy::DraftNode>& nodes = tree->nodes();
  std::vector<std::vector<int32_t>> children(nodes.size() + 1);  // of node i - 1
  for (size_t i = nodes.size(); i-- > 0;) {
    children[static_cast<size_t>(nodes[i].parent + 1)].push_back(static_cast<int32_t>(i));
  }
  std::vector<int32_t> allowed;  // parents first
  std::vector<int32_t> path;     // from the root; all are taken by the constraint
  std::vector<int32_t> left = children[0];
  while (!left.empty()) {
    const int32_t at = left.back();
    left.pop_back();
    const policy::DraftNode& node = nodes[static_cast<size_t>(at)];
    const auto above = static_cast<size_t>(node.depth - 1);
    constraint.TakeBack(static_cast<int32_t>(path.size() - above));
    path.resize(above);
    if (!constraint.Try(node.token)) continue;
    path.push_back(at);
    allowed.push_back(at);
    const std::vector<int32_t>& below = children[static_cast<size_t>(at + 1)];
    left.insert(left.end(), below.begin(), below.end());
  }
  constraint.TakeBack(static_cast<int32_t>(path.size()));
  if (allowed.size() == nodes.size()) return;
  policy::DraftTree kept;
  kept.AddPart(*tree, allowed);
  *tree = std::move(kept);
}

void AddForced(engine::OutputConstraint& constraint, int32_t depth, policy::DraftedCall* call) {
  if (!constraint.active() || depth < 1) return;
  constexpr policy::DraftOrigin kForced{policy::DraftSourceKind::kLookup,
                                        policy::DraftConfidence::kForcedBin};
  int32_t node = -1;
  for (const int32_t token : constraint.Forced(static_cast<size_t>(depth))) {
    node = call->tree.Add(node, token, call->speculation.Confidence(kForced), kForced);
    if (call->tree.nodes()[static_cast<size_t>(node)].cumulative < policy::kLeastDraftConfidence) {
      return;
    }
  }
}

}  // namespace withy::serving
