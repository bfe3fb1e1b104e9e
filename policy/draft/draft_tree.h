// The tree of tokens that drafts expect behind an answer, while it grows: branches of all sources
// merged, each with its confidence. Pure. Neighbours: tree_growth.h lets a draft model extend it,
// tree_budget.h chooses how much of it the target verifies, token_tree.h is what is verified.
// Source: LLMCad section 3.2: threshold branching, the confidence-based pacer (eq. 1-2) and
// tree-cumulative confidence (section 3.3). Ours merges what several sources say.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/draft/token_tree.h"

namespace withy::policy {

// Look-ups are the cheapest, and asked first.
enum class DraftSourceKind : uint8_t {
  kLookup,  // what followed the same tokens before
  kPrefix,  // a low level of the target
  kDraft,   // the draft model
  kHead,    // the target's draft head
};
inline constexpr size_t kDraftSourceKinds = 4;
std::string_view DraftSourceName(DraftSourceKind kind);  // "lookup", "prefix", "draft", "head"

// Where a drafted token comes from and how sure its source was: index of a class of the source's
// tokens whose acceptance is learnt together (draft_confidence.h).
struct DraftOrigin {
  DraftSourceKind source = DraftSourceKind::kLookup;
  int32_t bin = 0;
};

struct DraftNode {
  int32_t token = 0;
  int32_t parent = -1;    // index of a node before it; -1: the answer's last token
  int32_t depth = 1;      // of the first tokens behind the answer: 1
  double confidence = 0;  // that it follows its parent, (0, 1]
  double cumulative = 0;  // product of these from the root to it
  DraftOrigin origin;
  bool extended = false;  // its source has said what follows it
};

// Not thread-safe.
class DraftTree {
 public:
  const std::vector<DraftNode>& nodes() const { return nodes_; }
  bool empty() const { return nodes_.empty(); }
  int32_t size() const { return static_cast<int32_t>(nodes_.size()); }

  // Adds a token behind `parent` and returns its index. A token that is there already keeps its
  // first origin and gets the higher confidence.
  int32_t Add(int32_t parent, int32_t token, double confidence, DraftOrigin origin);
  // Adds all that another tree has.
  void Merge(const DraftTree& other);
  // Adds nodes of another tree; `chosen` has every parent before its children.
  void AddPart(const DraftTree& other, std::span<const int32_t> chosen);
  int32_t Find(int32_t parent, int32_t token) const;  // -1: it is not there
  // Its source has said what follows `node`; -1: what follows the answer's last token.
  void MarkExtended(int32_t node) {
    (node < 0 ? root_extended_ : nodes_[static_cast<size_t>(node)].extended) = true;
  }
  bool root_extended() const { return root_extended_; }
  // The tree that is left once the tokens from the root to `node` are the answer's: all below
  // `node`, which is the root of the result. `from`: index here of each of its nodes.
  DraftTree Below(int32_t node, std::vector<int32_t>* from) const;
  // The tokens from the root to `node`, both included; none for -1.
  std::vector<int32_t> PathTo(int32_t node) const;
  // KV slots of the nodes between the root and `node`, the root's child first, both ends left out;
  // none for -1. Node i has the slot `first_slot` + i.
  std::vector<int32_t> AncestorSlots(int32_t node, int32_t first_slot) const;

  // LLMCad's T_c: the cumulative confidence of the most confident branch; 1 without any.
  double TreeConfidence() const;
  // At most `count` leaves to extend next, none of them extended before and none at `max_depth`:
  // those that are furthest below their fair share of the tree's M tokens. Leaf x has C_x of the
  // confidence of all N leaves and ends a branch of T_x tokens: its deficit is
  // M * C_x / sum(C) - T_x (eq. 1), and extending the largest deficit first makes the smallest one
  // as small as can be (eq. 2, max-min fairness).
  std::vector<int32_t> LeavesToExtend(int32_t count, int32_t max_depth) const;

  // Indices of all nodes, the most confident branch first, every parent before its children.
  std::vector<int32_t> ByConfidence() const;

 private:
  std::vector<int32_t> Leaves() const;

  std::vector<DraftNode> nodes_;
  bool root_extended_ = false;
};

// How a verified tree fits the answer.
struct MatchedBranch {
  int32_t correct = 0;    // tokens of it that are in the answer: eq. 3's N_correct
  int32_t all = 0;        // its tokens: N_all
  double confidence = 1;  // of the verified tree: T_c
};

// The branch of the nodes `verified` (each behind its parent) whose first tokens match `answer`,
// the tokens behind the root, longest; of equal ones the longest branch.
MatchedBranch MostMatchingBranch(const DraftTree& tree, std::span<const int32_t> verified,
                                 std::span<const int32_t> answer);

// The nodes of `chosen` as a token tree has them, in this order. `chosen` has every parent before
// its children.
std::vector<DraftedToken> ToDrafted(const DraftTree& tree, std::span<const int32_t> chosen);

}  // namespace withy::policy
