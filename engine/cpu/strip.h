// Arguments of the inner kernels of a matrix product: one or two neighbouring tiles over a range of
// blocks, and the rows that multiply them. Internal to the kernels.
#pragma once

#include <cstddef>

#include "engine/cpu/activations.h"

namespace withy::engine {

// How many bytes ahead the first group of rows prefetches weights. Memory is fastest when lines are
// requested in address order: each tile from end to end, one tile after the other.
inline constexpr size_t kFetchAhead = 8 << 10;

struct Strip {
  const std::byte* tile = nullptr;  // the first (panel, tile)
  size_t tile_bytes = 0;            // distance to the second tile
  int tiles = 1;                    // 1 or 2
  int tile_blocks = 0;              // blocks of a whole (panel, tile); locates its parts
  int begin = 0;                    // multiplies blocks [begin, end) of each tile
  int end = 0;
  int x_block = 0;                  // block of the rows that block `begin` multiplies
  const std::byte* next = nullptr;  // the following strip, to prefetch; may be nullptr
};

struct StripRows {
  const Activations* x = nullptr;
  int row = 0;
  int rows = 0;
  float* y = nullptr;  // first output of the strip in the first row
  ptrdiff_t y_stride = 0;
  bool add = false;  // add to y instead of overwriting it
};

}  // namespace withy::engine
