#include "serving/speculation/scratch_tree_kv.h"

#include <algorithm>

namespace withy::serving {

bool ScratchTreeKv::SetTokens(int32_t known, std::span<const int32_t> added) {
  const std::span<const int32_t> here = std::span(tokens_).subspan(static_cast<size_t>(known));
  const auto same = std::mismatch(here.begin(), here.end(), added.begin(), added.end());
  const int32_t agree = known + static_cast<int32_t>(same.first - here.begin());
  const bool goes_on = agree == length();
  if (!goes_on) computed_ = std::min(computed_, agree);
  tokens_.resize(static_cast<size_t>(known));
  tokens_.insert(tokens_.end(), added.begin(), added.end());
  kv_.Extend(length());
  return goes_on;
}

std::vector<int32_t> ScratchTreeKv::Place(std::span<const int32_t> nodes,
                                          std::span<const int32_t> /*used*/) {
  std::vector<int32_t> slots;
  for (const int32_t node : nodes) slots.push_back(length() + node);
  kv_.Extend(slots.back() + 1);
  return slots;
}

// A slot that is copied to is not behind the one it is copied from, nor is one that is still to be
// copied: nodes are behind their parents.
void ScratchTreeKv::Keep(std::span<const int32_t> path, std::span<int32_t> slots) {
  int32_t at = length() - static_cast<int32_t>(path.size());
  for (const int32_t slot : path) {
    if (slot != kNoSlot && computed_ == at) {
      kv_.Copy(slot, at);
      computed_ = at + 1;
    }
    ++at;
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const int32_t to = length() - 1 + static_cast<int32_t>(i);
    if (i == 0) {
      slots[i] = computed_ == length() ? to : kNoSlot;
    } else if (slots[i] != kNoSlot) {
      kv_.Copy(slots[i], to);
      slots[i] = to;
    }
  }
}

engine::Row ScratchTreeKv::LastTokenRow() const {
  return {.token = tokens_.back(), .position = length() - 1, .level = level_};
}

}  // namespace withy::serving
