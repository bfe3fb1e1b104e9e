#include "engine/cuda/attend_tiles.h"

#include <algorithm>

namespace withy::engine::cuda {
namespace {

// Factors of key biases need shared memory, too.
constexpr int kBiasedTileQueries = 48;

bool ReadAlike(const PlannedRow& a, const PlannedRow& b) {
  return a.row->context == b.row->context && a.level == b.level &&
         a.attention_level == b.attention_level;
}

}  // namespace

TileLimits LimitsOf(const Shape& shape, bool has_key_bias, size_t row_bytes, size_t bytes) {
  TileLimits limits;
  limits.rows = (has_key_bias ? kBiasedTileQueries : kTileQueries) / (shape.heads / shape.kv_heads);
  limits.at_once = static_cast<int>(std::max<size_t>(1, bytes / row_bytes));
  if (limits.at_once > limits.rows && limits.rows > 0) {
    limits.at_once -= limits.at_once % limits.rows;
  }
  return limits;
}

AttendTiles PlanTiles(std::span<const PlannedRow> rows, std::span<const int32_t> chosen,
                      const std::vector<bool>& has_halves, const TileLimits& limits) {
  AttendTiles plan;
  const PlannedRow* before = nullptr;  // the last row of the last tile, if that may grow
  for (int32_t i = 0; i < static_cast<int32_t>(chosen.size()); ++i) {
    const PlannedRow& row = rows[static_cast<size_t>(chosen[static_cast<size_t>(i)])];
    const AttendTile alone = {.first = i,
                              .rows = 1,
                              .last_position = row.row->position,
                              .tail_group = row.tail_group < 0 ? INT32_MAX : row.tail_group};
    if (limits.rows == 0 || has_halves[static_cast<size_t>(row.row->context)]) {
      plan.single.push_back(alone);
      before = nullptr;
      continue;
    }
    if (before == nullptr || !ReadAlike(*before, row) || plan.tiles.back().rows == limits.rows ||
        i % limits.at_once == 0) {
      plan.tiles.push_back(alone);
    } else {
      AttendTile& tile = plan.tiles.back();
      ++tile.rows;
      tile.last_position = std::max(tile.last_position, alone.last_position);
      tile.tail_group = std::min(tile.tail_group, alone.tail_group);
    }
    plan.rows = std::max(plan.rows, static_cast<int>(plan.tiles.back().rows));
    before = &row;
  }
  return plan;
}

}  // namespace withy::engine::cuda
