#include "bench/speculation/speculation_drafter.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/status.h"

namespace withy::bench {
namespace {

// The draft's likely tokens, the likeliest first.
std::vector<policy::LikelyToken> Likely(std::span<const float> logits) {
  constexpr size_t kCandidates = 4;
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::partial_sort(order.begin(), order.begin() + kCandidates, order.end(),
                    [&](int32_t a, int32_t b) {
                      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
                    });
  std::vector<policy::LikelyToken> likely;
  for (size_t i = 0; i < kCandidates; ++i) {
    likely.push_back({order[i], std::exp(LogProbability(logits, order[i]))});
  }
  return likely;
}

}  // namespace

void TreeDrafter::Follow(std::span<const int32_t> tokens) {
  const auto length = static_cast<int32_t>(tokens.size());
  if (length == length_) return;
  int32_t end = -1;  // of the branch that the answer went along
  bool along = rooted_ && level_ < 0 && length > length_;
  for (int32_t at = length_; along && at < length; ++at) {
    end = tree_.Find(end, tokens[static_cast<size_t>(at)]);
    along = end >= 0 && tree_.nodes()[static_cast<size_t>(end)].extended;
    if (along) sequence_.Accept(length_, end, at);
  }
  policy::DraftTree kept;
  // A node's new slot is not behind its old one, nor that of a node that is still to be moved.
  std::vector<int32_t> places(static_cast<size_t>(tree_.size()), -1);
  for (int32_t index = end + 1; along && index < tree_.size(); ++index) {
    const policy::DraftNode& node = tree_.nodes()[static_cast<size_t>(index)];
    const int32_t parent = node.parent < 0 ? -1 : places[static_cast<size_t>(node.parent)];
    if (node.parent != end && parent < 0) continue;
    const int32_t place =
        kept.Add(node.parent == end ? -1 : parent, node.token, node.confidence, node.origin);
    places[static_cast<size_t>(index)] = place;
    if (!node.extended) continue;
    kept.MarkExtended(place);
    sequence_.Move(length_ + index, length + place);
  }
  tree_ = std::move(kept);
  rooted_ = along;
  length_ = length;
}

absl::StatusOr<bool> TreeDrafter::Step(std::span<const int32_t> tokens,
                                       const policy::GrowthLimits& limits,
                                       const policy::ConfidenceFn& confidence) {
  policy::TreeGrowth growth(limits, source_, confidence, &tree_);
  std::vector<int32_t> leaves = growth.Next();  // the root
  if (rooted_) {
    leaves = growth.Next();
  } else if (level_ < 0 && !leaves.empty()) {
    WITHY_RETURN_IF_ERROR(sequence_.CatchUp(tokens));
  }
  if (leaves.empty()) return false;
  WITHY_ASSIGN_OR_RETURN(const std::span<const float> logits,
                         sequence_.Compute(tokens, tree_, leaves, level_));
  ++passes_;
  const int32_t before = tree_.size();
  const size_t vocab = logits.size() / leaves.size();
  for (size_t i = 0; i < leaves.size(); ++i) {
    growth.Extend(leaves[i], Likely(logits.subspan(i * vocab, vocab)));
  }
  for (int32_t node = before; node < tree_.size(); ++node) {
    if (ends_(tree_.nodes()[static_cast<size_t>(node)].token)) tree_.MarkExtended(node);
  }
  rooted_ = true;
  return true;
}

}  // namespace withy::bench
