// The matrix product in terms of a target's dot primitive. Included by kernels_*.cc after vec-inl.h
// and the primitives:
//   Bytes64, LoadQ8(p), LoadNibbles(p, &lo, &hi), DotQ8(acc, w, a), DotQ4(acc, w, a), kInitBias,
//   kQ8Signed, kFloatRows.
// One output of one row is always the same chain: y = y + x_scale * (w_scale * sum of 32 products),
// block after block; so neither the number of rows nor the cutting into panels and tiles changes a
// bit.
#include "engine/kernels/matmul.h"

namespace withy::engine::WITHY_TARGET {

template <WeightType kType>
WITHY_INLINE void LoadBlock(const std::byte* quants, Bytes64* w) {
  const uint8_t* p = reinterpret_cast<const uint8_t*>(quants);
  if constexpr (kType == WeightType::kQ8) {
    for (int j = 0; j < 8; ++j) w[j] = LoadQ8(p + 64 * j);
  } else {
    for (int j = 0; j < 4; ++j) LoadNibbles(p + 64 * j, &w[j], &w[j + 4]);
  }
}

// Adds blocks [0, blocks) of one (panel, tile) to T rows of y.
template <WeightType kType, int T>
inline void QuantTile(const std::byte* tile, int blocks, const Activations& x, int row,
                      int first_block, float* y, ptrdiff_t stride, bool add) {
  const size_t meta = (static_cast<size_t>(blocks) * 32 + 63) / 64 * 64;
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile);
  const uint16_t* mins = reinterpret_cast<const uint16_t*>(tile + meta);
  const std::byte* quants = tile + (kType == WeightType::kQ4M ? 2 * meta : meta);
  constexpr int kBytes = kType == WeightType::kQ8 ? 512 : 256;
  F16 acc[T];
  for (int t = 0; t < T; ++t) acc[t] = add ? Load(y + t * stride) : F16{};
  for (int b = 0; b < blocks; ++b) {
    Bytes64 w[8];
    LoadBlock<kType>(quants + static_cast<size_t>(b) * kBytes, w);
    const F16 w_scale = LoadF16Lanes(scales + b * 16);
    F16 w_min{};
    if constexpr (kType == WeightType::kQ4M) w_min = LoadF16Lanes(mins + b * 16);
    const int block = first_block + b;
    for (int t = 0; t < T; ++t) {
      const int8_t* a = x.quants(row + t) + block * kQuantBlock;
      I16 sum{};
      if constexpr (kType == WeightType::kQ8) {
        if constexpr (!kQ8Signed) sum = SplatI(x.init8(row + t)[block] - kInitBias);
        for (int j = 0; j < 8; ++j) sum = DotQ8(sum, w[j], a + 4 * j);
      } else {
        if constexpr (kType == WeightType::kQ4) {
          sum = SplatI(x.init4(row + t)[block] - kInitBias);
        }
        for (int j = 0; j < 8; ++j) sum = DotQ4(sum, w[j], a + 4 * j);
      }
      acc[t] += (ToFloat(sum) * w_scale) * x.scales(row + t)[block];
      if constexpr (kType == WeightType::kQ4M) acc[t] += w_min * x.sums(row + t)[block];
    }
  }
  for (int t = 0; t < T; ++t) Store(acc[t], y + t * stride);
}

template <WeightType kType>
WITHY_INLINE F16 LoadWeights(const std::byte* p) {
  if constexpr (kType == WeightType::kF32) return Load(reinterpret_cast<const float*>(p));
  if constexpr (kType == WeightType::kF16) {
    return LoadF16Lanes(reinterpret_cast<const uint16_t*>(p));
  }
  return LoadBf16Lanes(reinterpret_cast<const uint16_t*>(p));
}

// The same for float weights: four interleaved sums a 32-block, folded in one order.
template <WeightType kType, int T>
inline void FloatTile(const std::byte* tile, int blocks, const Activations& x, int row,
                      int first_block, float* y, ptrdiff_t stride, bool add) {
  constexpr int kBytes = kType == WeightType::kF32 ? 64 : 32;
  F16 acc[T];
  for (int t = 0; t < T; ++t) acc[t] = add ? Load(y + t * stride) : F16{};
  for (int b = 0; b < blocks; ++b) {
    F16 part[T][4] = {};
    const std::byte* p = tile + static_cast<size_t>(b) * kQuantBlock * kBytes;
    for (int i = 0; i < kQuantBlock; i += 4) {
      for (int j = 0; j < 4; ++j) {
        const F16 w = LoadWeights<kType>(p + (i + j) * kBytes);
        for (int t = 0; t < T; ++t) {
          part[t][j] += w * x.floats(row + t)[(first_block + b) * kQuantBlock + i + j];
        }
      }
    }
    for (int t = 0; t < T; ++t) acc[t] += (part[t][0] + part[t][1]) + (part[t][2] + part[t][3]);
  }
  for (int t = 0; t < T; ++t) Store(acc[t], y + t * stride);
}

template <WeightType kType, int T>
WITHY_INLINE void AnyTile(const std::byte* tile, int blocks, const Activations& x, int row,
                          int first_block, float* y, ptrdiff_t stride, bool add) {
  if constexpr (IsQuantized(kType)) {
    QuantTile<kType, T>(tile, blocks, x, row, first_block, y, stride, add);
  } else {
    FloatTile<kType, T>(tile, blocks, x, row, first_block, y, stride, add);
  }
}

// All `rows` rows of one (panel, tile); y points at the tile's first output of the first row.
template <WeightType kType>
inline void TileRows(const std::byte* tile, int blocks, const Activations& x, int row, int rows,
                     int first_block, float* y, ptrdiff_t stride, bool add) {
  constexpr int T = IsQuantized(kType) ? kQuantRows : kFloatRows;
  int r = 0;
  for (; r + T <= rows; r += T) {
    AnyTile<kType, T>(tile, blocks, x, row + r, first_block, y + r * stride, stride, add);
  }
  for (; r < rows; ++r) {
    AnyTile<kType, 1>(tile, blocks, x, row + r, first_block, y + r * stride, stride, add);
  }
}

// Rows whose extent is more than `limit`; extents fall from row to row.
inline int RowsBeyond(const int* extent, int rows, int limit) {
  if (extent == nullptr) return rows;
  while (rows > 0 && extent[rows - 1] <= limit) --rows;
  return rows;
}

// Outputs [begin, begin + n) of a partial tile: through a buffer, because a row's y ends at its
// extent.
template <WeightType kType>
inline void PartialTile(const MatMulArgs& args, const std::byte* tile, int blocks, int first_block,
                        int rows, int out_begin, bool add) {
  for (int r = 0; r < rows; ++r) {
    int n = args.n_out_extent != nullptr ? args.n_out_extent[r] : args.w.n_out;
    n = n - out_begin < kTileRows ? n - out_begin : kTileRows;
    float* y = args.y + r * args.y_stride + out_begin;
    alignas(64) float buffer[kTileRows] = {};
    for (int i = 0; i < n; ++i) buffer[i] = add ? y[i] : 0.0f;
    AnyTile<kType, 1>(tile, blocks, *args.x, args.x_row + r, first_block, buffer, kTileRows, add);
    for (int i = 0; i < n; ++i) y[i] = buffer[i];
  }
}

template <WeightType kType>
inline void MatMulTyped(const MatMulArgs& args, int tile_begin, int tile_end) {
  for (int panel = 0; panel < args.w.panels(); ++panel) {
    const int begin = args.w.panel_begin(panel);
    const int blocks = (args.w.panel_end(panel) - begin) / kQuantBlock;
    const int reach = RowsBeyond(args.n_in_extent, args.rows, begin);
    const bool add = args.accumulate || panel > 0;
    for (int tile = tile_begin; tile < tile_end; ++tile) {
      const int out = tile * kTileRows;
      const int rows = RowsBeyond(args.n_out_extent, reach, out);
      if (rows == 0) break;
      const std::byte* data = args.w.data + TileOffset(args.w, panel, tile);
      int whole = out + kTileRows <= args.w.n_out
                      ? RowsBeyond(args.n_out_extent, rows, out + kTileRows - 1)
                      : 0;
      TileRows<kType>(data, blocks, *args.x, args.x_row, whole, begin / kQuantBlock, args.y + out,
                      args.y_stride, add);
      if (whole < rows) {
        MatMulArgs rest = args;
        rest.x_row += whole;
        rest.y += whole * args.y_stride;
        if (rest.n_out_extent != nullptr) rest.n_out_extent += whole;
        PartialTile<kType>(rest, data, blocks, begin / kQuantBlock, rows - whole, out, add);
      }
    }
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
