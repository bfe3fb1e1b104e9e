// Which rows attention takes together. Neighbours: run_data.cc copies tiles to the device,
// attention_tile-inl.cuh and attention-inl.cuh compute them. Pure.
#pragma once

#include <span>
#include <vector>

#include "engine/cuda/args.h"
#include "engine/model/rows.h"

namespace withy::engine::cuda {

// Tiles in the order of their rows; each row is in one of them.
struct AttendTiles {
  std::vector<AttendTile> tiles;   // for Kernels::attend_tiles
  std::vector<AttendTile> single;  // for Kernels::attend, of one row each
  int rows = 0;                    // of the tile with most
};

struct TileLimits {
  int rows = 0;     // of a tile; 0: all rows are single
  int at_once = 0;  // rows of a launch: a tile does not reach from one into the next
};

// The limits of a shape whose runs of attention leave `row_bytes` a row in memory of `bytes`.
TileLimits LimitsOf(const Shape& shape, bool has_key_bias, size_t row_bytes, size_t bytes);

// `chosen`: the operation's rows, as indices of `rows`. `has_halves`: by context, whether it has
// blocks of kF16.
AttendTiles PlanTiles(std::span<const PlannedRow> rows, std::span<const int32_t> chosen,
                      const std::vector<bool>& has_halves, const TileLimits& limits);

}  // namespace withy::engine::cuda
