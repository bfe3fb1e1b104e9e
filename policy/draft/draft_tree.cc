#include "policy/draft/draft_tree.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace withy::policy {

std::string_view DraftSourceName(DraftSourceKind kind) {
  switch (kind) {
    case DraftSourceKind::kLookup:
      return "lookup";
    case DraftSourceKind::kPrefix:
      return "prefix";
    case DraftSourceKind::kDraft:
      return "draft";
    case DraftSourceKind::kHead:
      return "head";
  }
  return "unknown";
}

int32_t DraftTree::Find(int32_t parent, int32_t token) const {
  for (size_t i = static_cast<size_t>(parent + 1); i < nodes_.size(); ++i) {
    if (nodes_[i].parent == parent && nodes_[i].token == token) return static_cast<int32_t>(i);
  }
  return -1;
}

int32_t DraftTree::Add(int32_t parent, int32_t token, double confidence, DraftOrigin origin) {
  const double before = parent < 0 ? 1 : nodes_[static_cast<size_t>(parent)].cumulative;
  const int32_t known = Find(parent, token);
  if (known < 0) {
    nodes_.push_back({.token = token,
                      .parent = parent,
                      .depth = parent < 0 ? 1 : nodes_[static_cast<size_t>(parent)].depth + 1,
                      .confidence = confidence,
                      .cumulative = before * confidence,
                      .origin = origin});
    return size() - 1;
  }
  DraftNode& node = nodes_[static_cast<size_t>(known)];
  if (confidence <= node.confidence) return known;
  node.confidence = confidence;
  for (size_t i = static_cast<size_t>(known); i < nodes_.size(); ++i) {
    const int32_t above = nodes_[i].parent;
    nodes_[i].cumulative =
        nodes_[i].confidence * (above < 0 ? 1 : nodes_[static_cast<size_t>(above)].cumulative);
  }
  return known;
}

void DraftTree::Merge(const DraftTree& other) {
  std::vector<int32_t> place;  // of the other's nodes, here
  for (const DraftNode& node : other.nodes_) {
    const int32_t parent = node.parent < 0 ? -1 : place[static_cast<size_t>(node.parent)];
    place.push_back(Add(parent, node.token, node.confidence, node.origin));
  }
}

void DraftTree::AddPart(const DraftTree& other, std::span<const int32_t> chosen) {
  std::vector<int32_t> place(other.nodes_.size(), -1);  // of the other's nodes, here
  for (const int32_t index : chosen) {
    const DraftNode& node = other.nodes_[static_cast<size_t>(index)];
    const int32_t parent = node.parent < 0 ? -1 : place[static_cast<size_t>(node.parent)];
    place[static_cast<size_t>(index)] = Add(parent, node.token, node.confidence, node.origin);
  }
}

DraftTree DraftTree::Below(int32_t node, std::vector<int32_t>* from) const {
  const DraftNode& root = nodes_[static_cast<size_t>(node)];
  DraftTree below;
  below.root_extended_ = root.extended;
  from->clear();
  std::vector<int32_t> place(nodes_.size(), -1);  // of this tree's nodes, there
  for (size_t i = static_cast<size_t>(node) + 1; i < nodes_.size(); ++i) {
    const int32_t above = nodes_[i].parent;
    if (above < 0 || (above != node && place[static_cast<size_t>(above)] < 0)) continue;
    DraftNode moved = nodes_[i];
    moved.parent = above == node ? -1 : place[static_cast<size_t>(above)];
    moved.depth -= root.depth;
    moved.cumulative =
        moved.confidence *
        (moved.parent < 0 ? 1 : below.nodes_[static_cast<size_t>(moved.parent)].cumulative);
    place[i] = below.size();
    below.nodes_.push_back(moved);
    from->push_back(static_cast<int32_t>(i));
  }
  return below;
}

std::vector<int32_t> DraftTree::PathTo(int32_t node) const {
  std::vector<int32_t> path;
  for (int32_t at = node; at >= 0; at = nodes_[static_cast<size_t>(at)].parent) {
    path.push_back(nodes_[static_cast<size_t>(at)].token);
  }
  std::reverse(path.begin(), path.end());
  return path;
}

std::vector<int32_t> DraftTree::AncestorSlots(int32_t node, int32_t first_slot) const {
  std::vector<int32_t> slots;
  if (node < 0) return slots;
  for (int32_t at = nodes_[static_cast<size_t>(node)].parent; at >= 0;
       at = nodes_[static_cast<size_t>(at)].parent) {
    slots.push_back(first_slot + at);
  }
  std::reverse(slots.begin(), slots.end());
  return slots;
}

std::vector<int32_t> DraftTree::Leaves() const {
  std::vector<bool> inner(nodes_.size(), false);
  for (const DraftNode& node : nodes_) {
    if (node.parent >= 0) inner[static_cast<size_t>(node.parent)] = true;
  }
  std::vector<int32_t> leaves;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!inner[i]) leaves.push_back(static_cast<int32_t>(i));
  }
  return leaves;
}

double DraftTree::TreeConfidence() const {
  if (nodes_.empty()) return 1;
  double best = 0;
  for (const int32_t leaf : Leaves()) {
    best = std::max(best, nodes_[static_cast<size_t>(leaf)].cumulative);
  }
  return best;
}

std::vector<int32_t> DraftTree::LeavesToExtend(int32_t count, int32_t max_depth) const {
  std::vector<int32_t> leaves = Leaves();
  double sum = 0;
  for (const int32_t leaf : leaves) sum += nodes_[static_cast<size_t>(leaf)].cumulative;
  std::erase_if(leaves, [&](int32_t leaf) {
    const DraftNode& node = nodes_[static_cast<size_t>(leaf)];
    return node.extended || node.depth >= max_depth;
  });
  const auto deficit = [&](int32_t leaf) {
    const DraftNode& node = nodes_[static_cast<size_t>(leaf)];
    return static_cast<double>(nodes_.size()) * node.cumulative / sum - node.depth;
  };
  std::stable_sort(leaves.begin(), leaves.end(),
                   [&](int32_t a, int32_t b) { return deficit(a) > deficit(b); });
  if (leaves.size() > static_cast<size_t>(count)) leaves.resize(static_cast<size_t>(count));
  return leaves;
}

std::vector<int32_t> DraftTree::ByConfidence() const {
  std::vector<int32_t> order(nodes_.size());
  std::iota(order.begin(), order.end(), 0);
  // A parent has a lower index and is at least as confident as its children.
  std::stable_sort(order.begin(), order.end(), [this](int32_t a, int32_t b) {
    return nodes_[static_cast<size_t>(a)].cumulative > nodes_[static_cast<size_t>(b)].cumulative;
  });
  return order;
}

MatchedBranch MostMatchingBranch(const DraftTree& tree, std::span<const int32_t> verified,
                                 std::span<const int32_t> answer) {
  struct Seen {
    int32_t correct = 0;
    bool inner = false;
  };
  std::vector<Seen> seen(tree.nodes().size());
  for (const int32_t index : verified) {
    const DraftNode& node = tree.nodes()[static_cast<size_t>(index)];
    const bool root = node.parent < 0;
    if (!root) seen[static_cast<size_t>(node.parent)].inner = true;
    const int32_t before = root ? 0 : seen[static_cast<size_t>(node.parent)].correct;
    const bool fits = before == node.depth - 1 && static_cast<size_t>(before) < answer.size() &&
                      answer[static_cast<size_t>(before)] == node.token;
    seen[static_cast<size_t>(index)].correct = before + (fits ? 1 : 0);
  }
  MatchedBranch best;
  if (!verified.empty()) best.confidence = 0;
  for (const int32_t index : verified) {
    const auto& [correct, inner] = seen[static_cast<size_t>(index)];
    if (inner) continue;
    const DraftNode& node = tree.nodes()[static_cast<size_t>(index)];
    best.confidence = std::max(best.confidence, node.cumulative);
    if (std::pair(correct, node.depth) > std::pair(best.correct, best.all)) {
      best.correct = correct;
      best.all = node.depth;
    }
  }
  return best;
}

std::vector<DraftedToken> ToDrafted(const DraftTree& tree, std::span<const int32_t> chosen) {
  std::vector<int32_t> place(tree.nodes().size(), -1);  // in `chosen`
  std::vector<DraftedToken> drafted;
  for (const int32_t index : chosen) {
    const DraftNode& node = tree.nodes()[static_cast<size_t>(index)];
    place[static_cast<size_t>(index)] = static_cast<int32_t>(drafted.size());
    drafted.push_back({.token = node.token,
                       .parent = node.parent < 0 ? -1 : place[static_cast<size_t>(node.parent)]});
  }
  return drafted;
}

}  // namespace withy::policy
