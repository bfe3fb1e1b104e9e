#include "serving/speculation/head_tree_kv.h"

#include <algorithm>

namespace withy::serving {

void HeadTreeKv::Append(int32_t position, std::span<const float> features) {
  if (position != states_.end()) computed_ = position + 1;
  states_.Append(position, features);
}

bool HeadTreeKv::BeginTree() {
  const int32_t root = length() - 1;
  states_.BeginDrafts(root);
  return states_.end() == root && states_.first() <= root;
}

int32_t HeadTreeKv::pending() const {
  return std::max(0, std::min(states_.end() + 1, length() - 1) - computed_);
}

std::vector<engine::Row> HeadTreeKv::PendingRows(int32_t count) const {
  std::vector<engine::Row> rows;
  for (int32_t at = computed_; at < computed_ + count; ++at) {
    engine::Row row;
    row.token = tokens()[static_cast<size_t>(at)];
    row.position = row.slot = at;
    rows.push_back(row);
  }
  return rows;
}

void HeadTreeKv::set_computed(int32_t tokens) {
  computed_ = tokens;
  states_.DropBefore(tokens - 1);
}

std::vector<int32_t> HeadTreeKv::Place(std::span<const int32_t> nodes,
                                       std::span<const int32_t> /*used*/) {
  std::vector<int32_t> slots;
  for (const int32_t node : nodes) slots.push_back(length() + node);
  MakeRoom(slots.back() + 1);
  return slots;
}

// A tree does not outlive its step.
void HeadTreeKv::Keep(std::span<const int32_t> path, std::span<int32_t> slots) {
  if (!path.empty()) std::fill(slots.begin(), slots.end(), kNoSlot);
}

engine::Row HeadTreeKv::LastTokenRow() const {
  engine::Row row;
  row.token = tokens().back();
  row.position = length() - 1;
  return row;
}

engine::ContextView HeadTreeKv::View() {
  MakeRoom(length());
  engine::ContextView view = scratch_.View();
  view.head = &states_;
  return view;
}

// In steps, since it moves what is there.
void HeadTreeKv::MakeRoom(int32_t slots) {
  constexpr int32_t kStep = 256;
  scratch_.Extend((slots + kStep - 1) / kStep * kStep);
}

}  // namespace withy::serving
