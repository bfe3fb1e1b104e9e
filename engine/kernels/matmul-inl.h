// The matrix product: walks panels, tiles and rows of different extents. Included by kernels_*.cc
// after vec-inl.h and QuantStrip (the inner kernel of quantised weights: quant_strip-inl.h, or the
// target's own). One output of one row is always the same chain, y = y + x_scale * (w_scale * sum
// of 32 products) block after block, so neither the number of rows nor the cutting into strips,
// panels and tiles changes a bit.
#include "engine/kernels/matmul.h"
#include "engine/kernels/strip.h"

namespace withy::engine::WITHY_TARGET {

template <WeightType kType>
WITHY_INLINE F16 LoadWeights(const std::byte* p) {
  if constexpr (kType == WeightType::kF32) return Load(reinterpret_cast<const float*>(p));
  const uint16_t* half = reinterpret_cast<const uint16_t*>(p);
  if constexpr (kType == WeightType::kF16) return LoadHalves(half);
  return LoadBf16(half);
}

// Float weights: four interleaved sums a 32-block, folded in one order.
template <WeightType kType, int T>
inline void FloatTile(const std::byte* tile, const Strip& strip, const StripRows& rows, int first) {
  constexpr size_t kBytes = kType == WeightType::kF32 ? 64 : 32;
  F16 acc[T];
  const float* x[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const float* y = rows.y + (first + t) * rows.y_stride;
    acc[t] = rows.add ? Load(y) : Zero();
    x[t] = rows.x->floats(rows.row + first + t) + strip.x_block * kQuantBlock;
  }
  const std::byte* p = tile + static_cast<size_t>(strip.begin) * kQuantBlock * kBytes;
  for (int b = strip.begin; b < strip.end; ++b) {
    for (size_t i = 0; first == 0 && i < kQuantBlock * kBytes; i += 64) {
      __builtin_prefetch(p + kFetchAhead + i);
    }
    F16 part[T][4];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) part[t][0] = part[t][1] = part[t][2] = part[t][3] = Zero();
    for (int k = 0; k < kQuantBlock; k += 4, p += 4 * kBytes) {
#pragma GCC unroll 4
      for (size_t j = 0; j < 4; ++j) {
        const F16 w = LoadWeights<kType>(p + j * kBytes);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) part[t][j] = MulAdd(w, Splat(x[t][j]), part[t][j]);
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) x[t] += 4;
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      acc[t] = acc[t] + ((part[t][0] + part[t][1]) + (part[t][2] + part[t][3]));
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) Store(acc[t], rows.y + (first + t) * rows.y_stride);
}

template <WeightType kType>
inline void FloatStrip(const Strip& strip, StripRows rows) {
  for (int n = 0; n < strip.tiles; ++n) {
    const std::byte* tile = strip.tile + static_cast<size_t>(n) * strip.tile_bytes;
    int r = 0;
    for (; r + kFloatRows <= rows.rows; r += kFloatRows) {
      FloatTile<kType, kFloatRows>(tile, strip, rows, r);
    }
    for (; r < rows.rows; ++r) FloatTile<kType, 1>(tile, strip, rows, r);
    rows.y += kTileRows;
  }
}

template <WeightType kType>
inline void AnyStrip(const Strip& strip, const StripRows& rows) {
  if constexpr (IsQuantized(kType)) {
    QuantStrip<kType>(strip, rows);
  } else {
    FloatStrip<kType>(strip, rows);
  }
}

// Rows whose extent is more than `limit`; extents fall from row to row.
inline int RowsBeyond(const int* extent, int rows, int limit) {
  if (extent == nullptr) return rows;
  while (rows > 0 && extent[rows - 1] <= limit) --rows;
  return rows;
}

inline constexpr int kRowsAtOnce = 132;

// Rows that end within the tile starting at output `out`: through a buffer, because a row's y ends
// at its extent.
template <WeightType kType>
inline void RaggedRows(const MatMulArgs& args, const Strip& strip, int begin, int end, int out,
                       bool add) {
  alignas(64) float buffer[kRowsAtOnce * kTileRows];
  const auto each = [&](auto fn) {
    for (int r = begin; r < end; ++r) {
      int n = (args.n_out_extent != nullptr ? args.n_out_extent[r] : args.w.n_out) - out;
      if (n > kTileRows) n = kTileRows;
      fn(args.y + r * args.y_stride + out, buffer + (r - begin) * kTileRows, n);
    }
  };
  if (add) {
    each([](const float* y, float* sums, int n) {
      for (int i = 0; i < kTileRows; ++i) sums[i] = i < n ? y[i] : 0.0f;
    });
  }
  AnyStrip<kType>(strip, {args.x, args.x_row + begin, end - begin, buffer, kTileRows, add});
  each([](float* y, const float* sums, int n) {
    for (int i = 0; i < n; ++i) y[i] = sums[i];
  });
}

// Blocks of 32 inputs that many rows take at once, so that the activations of a pass stay in the
// second-level cache while the tiles go by.
inline int BlocksAtOnce(int rows, int panel_blocks) {
  const int fit = (640 << 10) / kQuantBlock / rows;
  return fit >= panel_blocks ? panel_blocks : fit < 8 ? 8 : fit / 8 * 8;
}

// Walks the blocks [begin, end) of panel after panel that BlocksAtOnce allows; calls fn(panel,
// begin, end).
template <typename Fn>
WITHY_INLINE void ForPasses(const MatMulArgs& args, Fn fn) {
  const int inputs = args.n_in_extent != nullptr ? args.n_in_extent[0] : args.w.padded_inputs();
  for (int panel = 0; panel < args.w.panels() && args.w.panel_begin(panel) < inputs; ++panel) {
    const int blocks = (args.w.panel_end(panel) - args.w.panel_begin(panel)) / kQuantBlock;
    const int step = BlocksAtOnce(args.rows, blocks);
    for (int begin = 0; begin < blocks; begin += step) {
      fn(panel, begin, begin + step < blocks ? begin + step : blocks);
    }
  }
}

// Blocks [begin, end) of a panel's first tile.
inline Strip PanelStrip(const PackedMatrix& w, int panel, int begin, int end) {
  const int panel_begin = w.panel_begin(panel);
  const int inputs = w.panel_end(panel) - panel_begin;
  Strip strip;
  strip.tile = w.data + TileOffset(w, panel, 0);
  strip.tile_bytes = TileBytes(w.type, inputs);
  strip.tile_blocks = inputs / kQuantBlock;
  strip.begin = begin;
  strip.end = end;
  strip.x_block = panel_begin / kQuantBlock + begin;
  return strip;
}

// How many of the rows that reach output `out` also fill the outputs up to `limit`.
inline int RowsFilling(const MatMulArgs& args, int limit) {
  return limit <= args.w.n_out ? RowsBeyond(args.n_out_extent, args.rows, limit - 1) : 0;
}

// Every pass goes over the tiles and leaves its sums in y.
template <WeightType kType>
inline void RowsMatMul(const MatMulArgs& args, int tile_begin, int tile_end) {
  // The first row has the largest extent.
  const int outputs = args.n_out_extent != nullptr ? args.n_out_extent[0] : args.w.n_out;
  const int tiles_wanted = (outputs + kTileRows - 1) / kTileRows;
  if (tile_end > tiles_wanted) tile_end = tiles_wanted;
  if (tile_begin >= tile_end) return;
  ForPasses(args, [&](int panel, int begin, int end) {
    const bool add = args.accumulate || panel > 0 || begin > 0;
    const int reach = RowsBeyond(args.n_in_extent, args.rows, args.w.panel_begin(panel));
    Strip strip = PanelStrip(args.w, panel, begin, end);
    strip.tile += static_cast<size_t>(tile_begin) * strip.tile_bytes;
    const std::byte* next_panel = panel + 1 < args.w.panels()
                                      ? args.w.data + TileOffset(args.w, panel + 1, tile_begin)
                                      : nullptr;
    for (int tile = tile_begin; tile < tile_end; tile += strip.tiles, strip.tile = strip.next) {
      const int out = tile * kTileRows;
      const int rows = RowsBeyond(args.n_out_extent, reach, out);
      if (rows == 0) return;
      const bool pair = tile + 1 < tile_end && RowsFilling(args, out + 2 * kTileRows) >= rows;
      strip.tiles = pair ? 2 : 1;
      strip.next = tile + strip.tiles < tile_end
                       ? strip.tile + static_cast<size_t>(strip.tiles) * strip.tile_bytes
                       : next_panel;
      int whole = RowsFilling(args, out + strip.tiles * kTileRows);
      if (whole > rows) whole = rows;
      if (whole > 0) {
        AnyStrip<kType>(strip, {args.x, args.x_row, whole, args.y + out, args.y_stride, add});
      }
      if (whole < rows) RaggedRows<kType>(args, strip, whole, rows, out, add);
    }
  });
}

// So many rows at a time that their inputs stay in the second-level cache beside the weights of a
// tile range.
template <WeightType kType>
inline void MatMulTyped(const MatMulArgs& args, int tile_begin, int tile_end) {
  for (int row = 0; row < args.rows; row += kRowsAtOnce) {
    MatMulArgs part = args;
    part.rows = args.rows - row < kRowsAtOnce ? args.rows - row : kRowsAtOnce;
    part.x_row += row;
    part.y += row * args.y_stride;
    if (part.n_out_extent != nullptr) part.n_out_extent += row;
    if (part.n_in_extent != nullptr) part.n_in_extent += row;
    RowsMatMul<kType>(part, tile_begin, tile_end);
  }
}

inline void MatMul(const MatMulArgs& args, int tile_begin, int tile_end) {
  switch (args.w.type) {
    case WeightType::kF32:
      return MatMulTyped<WeightType::kF32>(args, tile_begin, tile_end);
    case WeightType::kF16:
      return MatMulTyped<WeightType::kF16>(args, tile_begin, tile_end);
    case WeightType::kBf16:
      return MatMulTyped<WeightType::kBf16>(args, tile_begin, tile_end);
    case WeightType::kQ8:
      return MatMulTyped<WeightType::kQ8>(args, tile_begin, tile_end);
    case WeightType::kQ4:
      return MatMulTyped<WeightType::kQ4>(args, tile_begin, tile_end);
    case WeightType::kQ4M:
      return MatMulTyped<WeightType::kQ4M>(args, tile_begin, tile_end);
  }
}

}  // namespace withy::engine::WITHY_TARGET
