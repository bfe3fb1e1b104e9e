#include "engine/cuda/attend_tiles.h"

#include <algorithm>

namespace withy::engine::cuda {
namespace {

// Factors of key biases need shared memory, too.
constexpr int kBiasedTileQueries = 48;

bool ReadAlike(const PlannedRow& a, const PlannedRow& b) {
  return a.row->context == b.row->context && a.level == b.level &&
         a.attention_level == b.attention_level && (a.tail_group < 0) == (b.tail_group < 0);
}

int RunsOf(int32_t last_position) { return last_position / kRunKeys + 1; }

AttendTile TileOf(int32_t i, const PlannedRow& row) {
  return {
      .first = i, .rows = 1, .runs = RunsOf(row.row->position), .last_position = row.row->position};
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
  const auto row_at = [&](int32_t i) -> const PlannedRow& {
    return rows[static_cast<size_t>(chosen[static_cast<size_t>(i)])];
  };
  const auto count = static_cast<int32_t>(chosen.size());
  for (int32_t i = 0; i < count;) {
    const PlannedRow& first = row_at(i);
    if (limits.rows == 0 || has_halves[static_cast<size_t>(first.row->context)]) {
      plan.single.push_back(TileOf(i++, first));
      continue;
    }
    AttendTile tile = TileOf(i, first);
    int32_t tail_group = first.tail_group;
    int32_t end = i + 1;
    for (; end < count && end - i < limits.rows && end % limits.at_once != 0; ++end) {
      const PlannedRow& row = row_at(end);
      if (!ReadAlike(first, row)) break;
      tile.last_position = std::max(tile.last_position, row.row->position);
      tail_group = std::min(tail_group, row.tail_group);
    }
    tile.rows = end - i;
    tile.runs = tail_group < 0 ? RunsOf(tile.last_position) : tail_group / kRunGroups;
    if (tile.runs > 0) plan.tiles.push_back(tile);
    for (; i < end; ++i) {
      AttendTile tail = TileOf(i, row_at(i));
      tail.first_run = tile.runs;
      tail.runs -= tile.runs;
      if (tail_group >= 0) plan.tails.push_back(tail);
    }
  }
  return plan;
}

void TakeTiles(const std::vector<AttendTile>& tiles, const AttendTile* on_device, int first,
               int rows, AttendArgs* args) {
  const auto at = [&](int row) {
    return std::ranges::lower_bound(tiles, row, {}, &AttendTile::first);
  };
  const auto begin = at(first);
  args->tiles = on_device + (begin - tiles.begin());
  args->tile_count = 0;
  args->tile_rows = args->tile_runs = 0;
  for (auto tile = begin; tile != at(first + rows); ++tile) {
    ++args->tile_count;
    args->tile_rows = std::max(args->tile_rows, static_cast<int>(tile->rows));
    args->tile_runs = std::max(args->tile_runs, static_cast<int>(tile->runs));
  }
}

}  // namespace withy::engine::cuda
