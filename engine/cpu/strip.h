// What the inner kernels of a matrix product get: one or two neighbouring tiles over a range of
// blocks, and the rows they apply to. Internal.
#pragma once

#include <cstddef>

#include "engine/cpu/activations.h"

namespace withy::engine {

// How far ahead of itself the first group of rows asks for weights. Memory gives most when lines
// are wanted in the order of their addresses, each tile from end to end and one after the other.
inline constexpr size_t kFetchAhead = 8 << 10;

struct Strip {
  const std::byte* tile = nullptr;  // first tile's bytes within its panel
  size_t tile_bytes = 0;            // distance to the second tile
  int tiles = 1;                    // 1 or 2
  int tile_blocks = 0;              // blocks of the whole (panel, tile): says where its parts lie
  int begin = 0;                    // blocks [begin, end) of it are taken
  int end = 0;
  int x_block = 0;  // block of the rows that meets `begin`
  const std::byte* next =
      nullptr;  // the strip that will follow, to be fetched ahead; may be nullptr
};

struct StripRows {
  const Activations* x = nullptr;
  int row = 0;
  int rows = 0;
  float* y = nullptr;  // first output of the strip in the first row
  ptrdiff_t y_stride = 0;
  bool add = false;  // go on from what y holds
};

}  // namespace withy::engine
