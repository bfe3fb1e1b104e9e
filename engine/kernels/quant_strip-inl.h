// The inner kernel of quantised weights in terms of a target's dot primitives: Bytes64, LoadQ8(p),
// LoadNibbles(p, &lo, &hi), DotQ8(acc, w, a), DotQ4(acc, w, a), and the constants kQ8Signed (LoadQ8
// takes the offset of 128 off) and kQuantRows. Included by kernels_*.cc after vec-inl.h; AVX-512
// has its own.
#include "engine/kernels/strip.h"

namespace withy::engine::WITHY_TARGET {

template <WeightType kType>
WITHY_INLINE I16 BlockSum(const Bytes64* w, const Activations& x, int row, int block) {
  const int8_t* a = x.quants(row) + block * kQuantBlock;
  I16 sum = SplatI(0);
  if constexpr (kType == WeightType::kQ8 && !kQ8Signed) sum = SplatI(x.init8(row)[block]);
  if constexpr (kType == WeightType::kQ4) sum = SplatI(x.init4(row)[block]);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    if constexpr (kType == WeightType::kQ8) {
      sum = DotQ8(sum, w[j], a + 4 * j);
    } else {
      sum = DotQ4(sum, w[j], a + 4 * j);
    }
  }
  return sum;
}

template <WeightType kType, int T>
inline void QuantTile(const std::byte* tile, const Strip& strip, const StripRows& rows, int first) {
  const size_t meta = (static_cast<size_t>(strip.tile_blocks) * 32 + 63) / 64 * 64;
  constexpr bool kMins = kType == WeightType::kQ4M;
  constexpr size_t kBytes = kType == WeightType::kQ8 ? 512 : 256;
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile);
  const uint16_t* mins = reinterpret_cast<const uint16_t*>(tile + meta);
  const uint8_t* quants = reinterpret_cast<const uint8_t*>(tile + (kMins ? 2 * meta : meta));
  F16 acc[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    acc[t] = rows.add ? Load(rows.y + (first + t) * rows.y_stride) : Zero();
  }
  for (int b = strip.begin; b < strip.end; ++b) {
    const uint8_t* p = quants + static_cast<size_t>(b) * kBytes;
    Bytes64 w[8];
    if constexpr (kType == WeightType::kQ8) {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) w[j] = LoadQ8(p + 64 * j);
    } else {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) LoadNibbles(p + 64 * j, &w[j], &w[j + 4]);
    }
    const F16 w_scale = LoadHalves(scales + b * kTileRows);
    const int block = strip.x_block + b - strip.begin;
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const int row = rows.row + first + t;
      const I16 sum = BlockSum<kType>(w, *rows.x, row, block);
      acc[t] = MulAdd(ToFloat(sum) * w_scale, Splat(rows.x->scales(row)[block]), acc[t]);
      if constexpr (kMins) {
        const F16 min = LoadHalves(mins + b * kTileRows);
        acc[t] = MulAdd(min, Splat(rows.x->sums(row)[block]), acc[t]);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) Store(acc[t], rows.y + (first + t) * rows.y_stride);
}

template <WeightType kType>
inline void QuantStrip(const Strip& strip, StripRows rows) {
  for (int n = 0; n < strip.tiles; ++n) {
    const std::byte* tile = strip.tile + static_cast<size_t>(n) * strip.tile_bytes;
    int r = 0;
    for (; r + kQuantRows <= rows.rows; r += kQuantRows) {
      QuantTile<kType, kQuantRows>(tile, strip, rows, r);
    }
    for (; r < rows.rows; ++r) QuantTile<kType, 1>(tile, strip, rows, r);
    rows.y += kTileRows;
  }
}

}  // namespace withy::engine::WITHY_TARGET
