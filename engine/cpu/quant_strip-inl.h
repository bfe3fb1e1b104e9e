// The inner kernel of quantised weights, written with a target's dot primitives: Bytes64,
// LoadQ8(p), LoadNibbles(p, &lo, &hi), LoadTable<type>(p, &lo, &hi), which gives what DotQ8 takes,
// DotQ8(acc, w, a); Q4Sums, an accumulator for the products of one block of nibbles, with
// DotQ4(sums, w, a) and Widen(sums); kQ8Signed, true if LoadQ8 removes the offset of 128. Included
// by kernels_*.cc after vec-inl.h; AVX-512 has its own version. Where WITHY_MATRIX_SUMS is defined,
// AddQ8<T>(w, a, inputs, sums) and AddNibbles<type, T>(w, a, sums) compute an even number of rows.
#include "engine/cpu/strip.h"

namespace withy::engine::WITHY_TARGET {

// Integer sums of one block for T rows. The outer loop goes over the weights, so that few vector
// registers suffice: the sums stay in registers, the weights do not.
template <WeightType kType, int T>
WITHY_INLINE void BlockSums(const uint8_t* w, const int8_t* const* a, I16* sum) {
#ifdef WITHY_MATRIX_SUMS
  if constexpr (T % 2 == 0 && kType == WeightType::kQ8) return AddQ8<T>(w, a, kQuantBlock, sum);
  if constexpr (T % 2 == 0) return AddNibbles<kType, T>(w, a, sum);
#endif
  if constexpr (kType == WeightType::kQ8) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const Bytes64 weights = LoadQ8(w + 64 * j);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[t] = DotQ8(sum[t], weights, a[t] + 4 * j);
    }
  } else if constexpr (HasTable(kType)) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      Bytes64 low;
      Bytes64 high;
      LoadTable<kType>(w + 64 * j, &low, &high);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[t] = DotQ8(sum[t], low, a[t] + 4 * j);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) sum[t] = DotQ8(sum[t], high, a[t] + 4 * j + 16);
    }
  } else {
    Q4Sums part[T] = {};
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      Bytes64 low;
      Bytes64 high;
      LoadNibbles(w + 64 * j, &low, &high);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) part[t] = DotQ4(part[t], low, a[t] + 4 * j);
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) part[t] = DotQ4(part[t], high, a[t] + 4 * j + 16);
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) sum[t] = sum[t] + Widen(part[t]);
  }
}

template <WeightType kType, int T>
inline void QuantTile(const std::byte* tile, const Strip& strip, const StripRows& rows, int first) {
  const size_t meta = (static_cast<size_t>(strip.tile_blocks) * 32 + 63) / 64 * 64;
  constexpr bool kMins = kType == WeightType::kQ4M;
  constexpr size_t kBytes = kType == WeightType::kQ8 ? 512 : 256;
  const uint16_t* scales = reinterpret_cast<const uint16_t*>(tile);
  const uint16_t* mins = reinterpret_cast<const uint16_t*>(tile + meta);
  const uint8_t* quants = reinterpret_cast<const uint8_t*>(tile + (kMins ? 2 * meta : meta));
  const Activations& x = *rows.x;
  F16 acc[T];
  const int8_t* a[T];
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    acc[t] = rows.add ? Load(rows.y + (first + t) * rows.y_stride) : Zero();
    a[t] = x.quants(rows.row + first + t) + strip.x_block * kQuantBlock;
  }
  for (int b = strip.begin; b < strip.end; ++b) {
    const int block = strip.x_block + b - strip.begin;
    if (first == 0) {
      for (size_t i = 0; i < kBytes; i += 64) {
        __builtin_prefetch(quants + static_cast<size_t>(b) * kBytes + kFetchAhead + i);
      }
    }
    I16 sum[T];
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const int row = rows.row + first + t;
      sum[t] = SplatI(kType == WeightType::kQ4              ? x.init4(row)[block]
                      : MultipliesAsQ8(kType) && !kQ8Signed ? x.init8(row)[block]
                                                            : 0);
    }
    BlockSums<kType, T>(quants + static_cast<size_t>(b) * kBytes, a, sum);
    const F16 w_scale = LoadHalves(scales + b * kTileRows);
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) {
      const int row = rows.row + first + t;
      acc[t] = MulAdd(ToFloat(sum[t]) * w_scale, Splat(x.scales(row)[block]), acc[t]);
      if constexpr (kMins) {
        acc[t] = MulAdd(LoadHalves(mins + b * kTileRows), Splat(x.sums(row)[block]), acc[t]);
      }
      a[t] += kQuantBlock;
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
    for (; r + 4 <= rows.rows; r += 4) QuantTile<kType, 4>(tile, strip, rows, r);
    const int left = rows.rows - r;
    if (left == 1) QuantTile<kType, 1>(tile, strip, rows, r);
    if (left == 2) QuantTile<kType, 2>(tile, strip, rows, r);
    if (left == 3) QuantTile<kType, 3>(tile, strip, rows, r);
    rows.y += kTileRows;
  }
}

}  // namespace withy::engine::WITHY_TARGET
