#include "serving/speculation/session_tree_kv.h"

#include <algorithm>

namespace withy::serving {

std::vector<int32_t> SessionTreeKv::Place(std::span<const int32_t> nodes,
                                          std::span<const int32_t> used) {
  std::vector<int32_t> slots;
  for (int32_t slot = session_.draft().end_slot() - 1;
       slots.size() < nodes.size() && slot >= session_.draft().first_slot(); --slot) {
    if (std::find(used.begin(), used.end(), slot) == used.end()) slots.push_back(slot);
  }
  if (slots.size() < nodes.size()) slots.clear();
  return slots;
}

void SessionTreeKv::Keep(std::span<const int32_t> /*path*/, std::span<int32_t> slots) {
  const int32_t first = session_.draft().first_slot(), end = session_.draft().end_slot();
  for (int32_t& slot : slots) {
    if (slot < first || slot >= end) slot = kNoSlot;
  }
}

}  // namespace withy::serving
