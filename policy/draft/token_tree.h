// The rows of one decode step: the answer's last token and what a draft expects behind it.
// Neighbours: the worker's session makes rows of it and follows it with the sampled tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"

namespace withy::policy {

// A token that a draft expects in an answer.
struct DraftedToken {
  int32_t token = 0;
  int32_t parent = -1;  // index of the drafted token before it; -1: the answer's last token
};

// Row 0 is the answer's last token, the root; row i + 1 is drafted token i. Parents come before
// their children, so the first rows of a tree are a tree, too. Row i has the KV slot root_slot + i.
// Immutable.
class TokenTree {
 public:
  static constexpr int32_t kMaxDraftedTokens = 255;

  // The root alone: plain decoding.
  TokenTree() = default;
  // Leaves out tokens more than `max_depth` tokens behind the root, with their children.
  // Errors: INVALID_ARGUMENT: more than kMaxDraftedTokens tokens, a token outside the vocabulary of
  // `vocab_size`, a parent that does not come before its child.
  static absl::StatusOr<TokenTree> Create(std::span<const DraftedToken> drafted, int32_t vocab_size,
                                          int32_t max_depth, int32_t root_slot);

  int32_t rows() const { return 1 + static_cast<int32_t>(nodes_.size()); }
  // Of a row but the root.
  int32_t token(int32_t row) const { return NodeOf(row).token; }
  int32_t slot(int32_t row) const { return root_slot_ + row; }
  int32_t depth(int32_t row) const { return NodeOf(row).depth; }  // the root's children: 1
  // Slots of the drafted tokens between the root and `row`, the root's child first; both ends left
  // out. Stays as long as the tree.
  std::span<const int32_t> AncestorSlots(int32_t row) const;
  // The first row below `rows` that is `token` behind `row`; -1: there is none.
  int32_t Child(int32_t row, int32_t token, int32_t rows) const;

 private:
  struct Node {
    int32_t token = 0;
    int32_t parent_row = 0;
    int32_t depth = 0;
    size_t first_ancestor = 0;  // in ancestor_slots_; depth - 1 of them
  };
  const Node& NodeOf(int32_t row) const { return nodes_[static_cast<size_t>(row) - 1]; }

  int32_t root_slot_ = 0;
  std::vector<Node> nodes_;
  std::vector<int32_t> ancestor_slots_;
};

}  // namespace withy::policy
