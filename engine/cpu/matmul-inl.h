// The matrix product: iterates over panels, tiles and rows of different extents. Included by
// kernels_*.cc after vec-inl.h and QuantStrip, the inner kernel of quantised weights
// (quant_strip-inl.h or the target's own). An output of a row is always the same chain, y = y +
// x_scale * (w_scale * sum of 32 products), block after block. So neither the number of rows nor
// the split into strips, panels and tiles changes a bit.
#include "engine/cpu/matmul.h"
#include "engine/cpu/strip.h"

namespace withy::engine::WITHY_TARGET {

template <WeightType kType>
WITHY_INLINE F16 LoadWeights(const std::byte* p) {
  if constexpr (kType == WeightType::kF32) return Load(reinterpret_cast<const float*>(p));
  const uint16_t* half = reinterpret_cast<const uint16_t*>(p);
  if constexpr (kType == WeightType::kF16) return LoadHalves(half);
  return LoadBf16(half);
}

// Float weights, N tiles by T rows. Each block of 32 has four interleaved sums, computed one after
// the other so that they stay in registers, and added in a fixed order.
template <WeightType kType, int N, int T>
inline void FloatTiles(const std::byte* tile, const Strip& strip, const StripRows& rows,
                       int first) {
  constexpr size_t kBytes = kType == WeightType::kF32 ? 64 : 32;
  F16 acc[N][T];
  const float* x[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const float* y = rows.y + (first + t) * rows.y_stride;
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) acc[n][t] = rows.add ? Load(y + n * kTileRows) : Zero();
    x[t] = rows.x->floats(rows.row + first + t) + strip.x_block * kQuantBlock;
  }
  const std::byte* p = tile + static_cast<size_t>(strip.begin) * kQuantBlock * kBytes;
  for (int b = strip.begin; b < strip.end; ++b, p += kQuantBlock * kBytes) {
    for (size_t i = 0; first == 0 && i < kQuantBlock * kBytes; i += 64) {
#pragma GCC unroll 8
      for (size_t n = 0; n < N; ++n) {
        __builtin_prefetch(p + n * strip.tile_bytes + kFetchAhead + i);
      }
    }
    const auto part = [&](int j, F16(&sums)[N][T]) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) sums[n][t] = Zero();
      }
      for (int k = j; k < kQuantBlock; k += 4) {
#pragma GCC unroll 8
        for (int n = 0; n < N; ++n) {
          const F16 w = LoadWeights<kType>(p + static_cast<size_t>(n) * strip.tile_bytes +
                                           static_cast<size_t>(k) * kBytes);
#pragma GCC unroll 8
          for (int t = 0; t < T; ++t) sums[n][t] = MulAdd(w, Splat(x[t][k]), sums[n][t]);
        }
      }
    };
    const auto add = [](const F16(&from)[N][T], F16(&to)[N][T]) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) to[n][t] = to[n][t] + from[n][t];
      }
    };
    F16 even[N][T];
    F16 odd[N][T];
    F16 late[N][T];
    part(0, even);
    part(1, odd);
    add(odd, even);
    part(2, late);
    part(3, odd);
    add(odd, late);
    add(late, even);
    add(even, acc);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) x[t] += kQuantBlock;
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    float* y = rows.y + (first + t) * rows.y_stride;
#pragma GCC unroll 8
    for (int n = 0; n < N; ++n) Store(acc[n][t], y + n * kTileRows);
  }
}

template <WeightType kType, int N>
WITHY_INLINE void FloatRows(const std::byte* tile, const Strip& strip, const StripRows& rows) {
  int r = 0;
  for (; r + kFloatRows <= rows.rows; r += kFloatRows) {
    FloatTiles<kType, N, kFloatRows>(tile, strip, rows, r);
  }
  for (; r < rows.rows; ++r) FloatTiles<kType, N, 1>(tile, strip, rows, r);
}

template <WeightType kType>
inline void FloatStrip(const Strip& strip, StripRows rows) {
  for (int n = 0; n < strip.tiles;) {
    const std::byte* tile = strip.tile + static_cast<size_t>(n) * strip.tile_bytes;
    const int tiles = strip.tiles - n < kFloatTiles ? 1 : kFloatTiles;
    if (tiles == 1) {
      FloatRows<kType, 1>(tile, strip, rows);
    } else {
      FloatRows<kType, kFloatTiles>(tile, strip, rows);
    }
    n += tiles;
    rows.y += tiles * kTileRows;
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

// Number of rows whose extent is above `limit`. Extents never grow from row to row.
inline int RowsBeyond(const int* extent, int rows, int limit) {
  if (extent == nullptr) return rows;
  while (rows > 0 && extent[rows - 1] <= limit) --rows;
  return rows;
}

inline constexpr int kRowsAtOnce = 132;

// Computes rows [begin, end), whose extents end within the tile at output `out`. Uses a buffer,
// because nothing beyond a row's extent may be written to y.
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

// Number of blocks of 32 inputs per pass over the tiles: as many as keep the pass's activations of
// all rows in the second-level cache.
inline int BlocksAtOnce(int rows, int panel_blocks) {
  const int fit = (640 << 10) / kQuantBlock / rows;
  return fit >= panel_blocks ? panel_blocks : fit < 8 ? 8 : fit / 8 * 8;
}

// Calls fn(panel, begin, end) for each pass: blocks [begin, end) of a panel, at most BlocksAtOnce.
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

// Strip of blocks [begin, end) of a panel's first tile.
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

// Number of rows that compute all outputs below `limit`.
inline int RowsFilling(const MatMulArgs& args, int limit) {
  return limit <= args.w.n_out ? RowsBeyond(args.n_out_extent, args.rows, limit - 1) : 0;
}

// Computes tiles [tile_begin, tile_end). Every pass iterates over the tiles and adds to y.
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

// Takes kRowsAtOnce rows at a time: their inputs stay in the second-level cache beside the weights
// of a tile range.
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
    case WeightType::kFp4:
      return MatMulTyped<WeightType::kFp4>(args, tile_begin, tile_end);
    case WeightType::kNl4:
      return MatMulTyped<WeightType::kNl4>(args, tile_begin, tile_end);
  }
}

}  // namespace withy::engine::WITHY_TARGET
