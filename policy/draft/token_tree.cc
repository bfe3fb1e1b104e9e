#include "policy/draft/token_tree.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace withy::policy {

absl::StatusOr<TokenTree> TokenTree::Create(std::span<const DraftedToken> drafted,
                                            int32_t vocab_size, int32_t max_depth,
                                            int32_t root_slot) {
  if (drafted.size() > static_cast<size_t>(kMaxDraftedTokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a draft of ", drafted.size(), " tokens; at most ", kMaxDraftedTokens));
  }
  constexpr int32_t kLeftOut = -1;
  TokenTree tree;
  tree.root_slot_ = root_slot;
  std::vector<int32_t> rows;  // of each drafted token
  for (size_t i = 0; i < drafted.size(); ++i) {
    const auto& [token, parent] = drafted[i];
    if (token < 0 || token >= vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("drafted token ", i, " is ", token, "; ids are 0 to ", vocab_size - 1));
    }
    if (parent < -1 || parent >= static_cast<int32_t>(i)) {
      return absl::InvalidArgumentError(absl::StrCat("drafted token ", i, " has parent ", parent,
                                                     "; it must be -1 to ",
                                                     static_cast<int32_t>(i) - 1));
    }
    const int32_t parent_row = parent < 0 ? 0 : rows[static_cast<size_t>(parent)];
    const int32_t depth = parent_row > 0 ? tree.depth(parent_row) + 1 : 1;
    if (parent_row == kLeftOut || depth > max_depth) {
      rows.push_back(kLeftOut);
      continue;
    }
    const Node node{.token = token,
                    .parent_row = parent_row,
                    .depth = depth,
                    .first_ancestor = tree.ancestor_slots_.size()};
    if (parent_row > 0) {
      const Node& before = tree.NodeOf(parent_row);
      for (size_t a = 0; a + 1 < static_cast<size_t>(before.depth); ++a) {
        const int32_t slot = tree.ancestor_slots_[before.first_ancestor + a];
        tree.ancestor_slots_.push_back(slot);
      }
      tree.ancestor_slots_.push_back(tree.slot(parent_row));
    }
    tree.nodes_.push_back(node);
    rows.push_back(tree.rows() - 1);
  }
  return tree;
}

std::span<const int32_t> TokenTree::AncestorSlots(int32_t row) const {
  const Node& node = NodeOf(row);
  return std::span(ancestor_slots_)
      .subspan(node.first_ancestor, static_cast<size_t>(node.depth) - 1);
}

int32_t TokenTree::Child(int32_t row, int32_t token, int32_t rows) const {
  for (int32_t child = row + 1; child < rows; ++child) {
    const Node& node = NodeOf(child);
    if (node.parent_row == row && node.token == token) return child;
  }
  return -1;
}

}  // namespace withy::policy
