// Checks a batch, and orders the rows of one piece of it by level. For each row it finds whether
// the slots that the row sees are scattered, and where its logits go. Neighbours: row_plan.h adds
// what each row computes. Pure: touches neither KV nor weights.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/model.h"

namespace withy::engine {

struct PlannedRow {
  const Row* row = nullptr;
  int32_t level = 0;  // index into info().levels
  // Level whose heads attend: the lower of the row's level and its context's.
  int32_t attention_level = 0;
  int32_t logits_row = -1;  // row of the caller's logits; -1: none wanted
  int32_t batch_row = 0;    // index into Batch::rows
  // Keys at positions from tail_group * chunk_tokens on are copied into `tail_blocks` scratch
  // blocks. -1: every key is in the slot of its position, and nothing is copied.
  int32_t tail_group = -1;
  int32_t tail_blocks = 0;
  int32_t tail_first = 0;  // index of the row's first block among the piece's scratch blocks

  // Slot of the key that the row sees at `position`; 0 <= position <= the row's own.
  int32_t SlotAt(int32_t position) const {
    const auto ancestors = static_cast<int32_t>(row->ancestor_slots.size());
    const int32_t linear = row->position - ancestors;
    if (position < linear) return position;
    return position == row->position ? row->slot
                                     : row->ancestor_slots[static_cast<size_t>(position - linear)];
  }
};

// Errors: INVALID_ARGUMENT naming the row (or context), the value and the limit.
absl::Status CheckBatch(const Batch& batch, const ModelInfo& info);

// Writes rows [begin, end) of a checked batch to `plan`: highest level first, and in batch order
// within a level. `full_level`: index of the full model's level. `first_logits`: number of rows
// before `begin` that want logits.
void PlanPiece(const Batch& batch, int32_t full_level, int32_t begin, int32_t end,
               int32_t first_logits, std::vector<PlannedRow>* plan);

}  // namespace withy::engine
