// Which rows attention takes together. Neighbours: pass_inputs.cc copies tiles to the device,
// attention_tile-inl.cuh and attention-inl.cuh compute them. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/cuda/kernels/args.h"
#include "engine/model/rows.h"

namespace withy::engine::cuda {

struct TileLimits {
  int rows = 0;     // of a tile; 0: Kernels::attend takes all rows
  int at_once = 0;  // rows of a launch: a tile does not reach from one into the next
};

// The limits of a shape whose attention leaves `row_bytes` a row in memory of `bytes`.
TileLimits LimitsOf(const Shape& shape, bool has_key_bias, size_t row_bytes, size_t bytes);

// Each run of each row is in one tile. Lists are in the order of the rows.
struct AttendTiles {
  std::vector<AttendTile> tiles;   // for Kernels::attend_tiles: of rows that read the same blocks
  std::vector<AttendTile> tails;   // likewise, one row each: where rows of a token tree read blocks
                                   // of their own
  std::vector<AttendTile> single;  // for Kernels::attend, one row each
};

// `chosen`: the operation's rows, as indices of `rows`. `has_halves`: by context, whether it has
// blocks of kF16.
AttendTiles PlanTiles(std::span<const PlannedRow> rows, std::span<const int32_t> chosen,
                      const std::vector<bool>& has_halves, const TileLimits& limits);

// The tiles of rows [first, first + rows), in `args`; the list is at `on_device`, too.
void TakeTiles(const std::vector<AttendTile>& tiles, const AttendTile* on_device, int first,
               int rows, AttendArgs* args);

}  // namespace withy::engine::cuda
