// Element-wise kernels, and quantisation of activations and of K/V. Included by kernels_*.cc after
// vec-inl.h, rotate-inl.h and the target's WidenBytes(16 bytes) and StoreBytes(16 lanes within a
// byte's range, out). Targets define these two because GCC 12 compiles __builtin_convertvector
// between bytes and lanes to scalar code.
#include "engine/cpu/activations.h"
#include "engine/cpu/low_rank.h"
#include "engine/kv/block.h"

namespace withy::engine::WITHY_TARGET {

inline float MaxAbs(const float* x, int n) {
  F16 m = Zero();
  ForVectors(n, [&](int i, int lanes) { m = Max(m, Abs(LoadN(x + i, lanes))); });
  return MaxLane(m);
}

// Clamps quants before rounding. Finite inputs are already within +-127; NaN becomes -127, so that
// damaged weights give wrong numbers but no undefined behaviour.
WITHY_INLINE F16 ClampQuants(F16 x) { return Max(x, Splat(-127.0f)); }

// Quantises kBlocks (1..4) neighbouring 32-column blocks of a row; the last has `last` columns. The
// reductions over lanes are done for four blocks at once.
template <int kBlocks>
WITHY_INLINE void PrepareBlocks(const float* x, int last, int row, int block, Activations* out) {
  F16 lo[kBlocks];
  F16 hi[kBlocks];
  F16 largest[4];
#pragma GCC unroll 4
  for (int i = 0; i < kBlocks; ++i) {
    const int n = i + 1 == kBlocks ? last : kQuantBlock;
    lo[i] = LoadN(x + i * kQuantBlock, n);
    hi[i] = LoadN(x + i * kQuantBlock + 16, n - 16);
    largest[i] = Max(Abs(lo[i]), Abs(hi[i]));
  }
#pragma GCC unroll 4
  for (int i = kBlocks; i < 4; ++i) largest[i] = largest[0];
  const F4 max = MaxLanes(largest);
  const F4 scale = max / 127.0f;
  const F4 inverse = max > 1e-30f ? 127.0f / max : F4{};
  I16 sums[4];
  int8_t* quants = out->quants(row) + block * kQuantBlock;
#pragma GCC unroll 4
  for (int i = 0; i < kBlocks; ++i, quants += kQuantBlock) {
    const I16 a = RoundToInt(ClampQuants(lo[i] * Splat(inverse[i])));
    const I16 b = RoundToInt(ClampQuants(hi[i] * Splat(inverse[i])));
    StoreBytes(a, quants);
    StoreBytes(b, quants + 16);
    sums[i] = a + b;
  }
#pragma GCC unroll 4
  for (int i = kBlocks; i < 4; ++i) sums[i] = sums[0];
  const I4 sum = SumLanes(sums);
  const I4 init8 = kInitBias - 128 * sum;
  const I4 init4 = kInitBias - 8 * sum;
  const F4 sum_of_inputs = scale * __builtin_convertvector(sum, F4);
  const auto store = [block](const auto& from, auto* to) {
    std::memcpy(to + block, &from, kBlocks * sizeof(float));
  };
  store(scale, out->scales(row));
  store(init8, out->init8(row));
  store(init4, out->init4(row));
  store(sum_of_inputs, out->sums(row));
}

inline void PrepareQuants(const float* x, int row, int col_begin, int col_end, Activations* out) {
  int block = col_begin / kQuantBlock;
  int left = col_end - col_begin;
  for (; left >= 4 * kQuantBlock; left -= 4 * kQuantBlock, x += 4 * kQuantBlock, block += 4) {
    PrepareBlocks<4>(x, kQuantBlock, row, block, out);
  }
  if (left <= 0) return;
  const int blocks = (left + kQuantBlock - 1) / kQuantBlock;
  const int last = left - (blocks - 1) * kQuantBlock;
  switch (blocks) {
    case 1:
      return PrepareBlocks<1>(x, last, row, block, out);
    case 2:
      return PrepareBlocks<2>(x, last, row, block, out);
    case 3:
      return PrepareBlocks<3>(x, last, row, block, out);
    default:
      return PrepareBlocks<4>(x, last, row, block, out);
  }
}

inline void Prepare(const float* x, ptrdiff_t stride, int row_begin, int row_end, int col_begin,
                    int col_end, Activations* out) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* in = x + (row - row_begin) * stride;
    if ((out->forms() & kActQ8) != 0) PrepareQuants(in, row, col_begin, col_end, out);
    if ((out->forms() & kActF32) == 0) continue;
    for (int col = col_begin; col < col_end; col += 16) {
      Store(LoadN(in + (col - col_begin), col_end - col), out->floats(row) + col);
    }
    for (int col = (col_end + 15) / 16 * 16; col % kQuantBlock != 0; col += 16) {
      Store(Zero(), out->floats(row) + col);
    }
  }
}

// Quantises one head vector to s8 and returns its scale.
inline float QuantizeHead(const float* x, int n, int8_t* q) {
  const float max = MaxAbs(x, n);
  const float inverse = max > 1e-30f ? 127.0f / max : 0.0f;
  for (int i = 0; i < n; i += 16) StoreBytes(RoundToInt(Load(x + i) * Splat(inverse)), q + i);
  return max / 127.0f;
}

inline void WriteQ8(const KvGeometry& g, int head, const float* k, const float* v, std::byte* block,
                    int slot) {
  const KvOffsets at = g.Offsets(KvFormat::kQ8, head);
  const size_t scale_at = sizeof(float) * static_cast<size_t>(slot);
  int8_t q[kMaxHeadDim];
  const float k_scale = QuantizeHead(k, g.head_dim, q);
  std::memcpy(block + at.k_scale + scale_at, &k_scale, sizeof k_scale);
  std::byte* to = block + at.k + slot * 4;
  for (int d = 0; d < g.head_dim; d += 4, to += kChunkTokens * 4) {
    uint32_t quad;
    std::memcpy(&quad, q + d, 4);
    quad ^= 0x80808080u;
    std::memcpy(to, &quad, 4);
  }
  const float v_scale = QuantizeHead(v, g.head_dim, q);
  std::memcpy(block + at.v_scale + scale_at, &v_scale, sizeof v_scale);
  to = block + at.v + (slot / 4) * g.head_dim * 4 + slot % 4;
  for (int d = 0; d < g.head_dim; ++d) to[d * 4] = static_cast<std::byte>(q[d]);
}

inline void WriteF16(const KvGeometry& g, int head, const float* k, const float* v,
                     std::byte* block, int slot) {
  const KvOffsets at = g.Offsets(KvFormat::kF16, head);
  for (int d = 0; d < g.head_dim; ++d) {
    const uint16_t k_half = F32ToF16(k[d]);
    const uint16_t v_half = F32ToF16(v[d]);
    std::memcpy(block + at.k + (d * kChunkTokens + slot) * 2, &k_half, sizeof k_half);
    std::memcpy(block + at.v + (slot * g.head_dim + d) * 2, &v_half, sizeof v_half);
  }
}

inline void WriteKv(const KvGeometry& g, const float* k, const float* v, KvFormat format,
                    std::byte* block, int slot) {
  alignas(64) float rotated_k[kMaxHeadDim];
  alignas(64) float rotated_v[kMaxHeadDim];
  for (int head = 0; head < g.kv_heads; ++head, k += g.head_dim, v += g.head_dim) {
    RotateHead(k, g.head_dim, rotated_k);
    RotateHead(v, g.head_dim, rotated_v);
    const auto write = format == KvFormat::kF16 ? WriteF16 : WriteQ8;
    write(g, head, rotated_k, rotated_v, block, slot);
  }
}

inline void RmsNorm(const float* x, const float* weight, float eps, int n, float* out) {
  F16 squares = Zero();
  ForVectors(n, [&](int i, int lanes) {
    const F16 v = LoadN(x + i, lanes);
    squares = MulAdd(v, v, squares);
  });
  const float scale = 1.0f / std::sqrt(Sum(squares) / static_cast<float>(n) + eps);
  ForVectors(n, [&](int i, int lanes) {
    StoreN(LoadN(x + i, lanes) * Splat(scale) * LoadN(weight + i, lanes), out + i, lanes);
  });
}

// Rotates the first n (up to 16) dimensions `x`, which are paired with the dimensions `pair`.
WITHY_INLINE F16 Rotate(F16 x, F16 pair, const float* angles, int rope_dims, int n) {
  return x * LoadN(angles, n) + pair * LoadN(angles + rope_dims, n);
}

inline void Rope(float* x, int heads, int head_dim, const float* angles, int rope_dims,
                 bool interleaved) {
  const int half = rope_dims / 2;
  for (int head = 0; head < heads; ++head, x += head_dim) {
    if (interleaved) {
      ForVectors(rope_dims, [&](int i, int lanes) {
        const F16 v = LoadN(x + i, lanes);
        StoreN(Rotate(v, SwapNeighbours(v), angles + i, rope_dims, lanes), x + i, lanes);
      });
      continue;
    }
    ForVectors(half, [&](int i, int lanes) {
      const F16 first = LoadN(x + i, lanes);
      const F16 second = LoadN(x + half + i, lanes);
      StoreN(Rotate(first, second, angles + i, rope_dims, lanes), x + i, lanes);
      StoreN(Rotate(second, first, angles + half + i, rope_dims, lanes), x + half + i, lanes);
    });
  }
}

// 1 / (1 + e^-x), with the exponential taken of -|x| so that it cannot overflow.
WITHY_INLINE F16 Sigmoid(F16 x) {
  const F16 e = Exp(Negate(Abs(x)));
  return Select(AtLeast(x, Zero()), Splat(1.0f), e) / (e + Splat(1.0f));
}

inline void SwiGlu(const float* gate, const float* up, int n, float* out) {
  ForVectors(n, [&](int i, int lanes) {
    const F16 g = LoadN(gate + i, lanes);
    StoreN(g * Sigmoid(g) * LoadN(up + i, lanes), out + i, lanes);
  });
}

inline void GeGlu(const float* gate, const float* up, int n, float* out) {
  ForVectors(n, [&](int i, int lanes) {
    const F16 g = LoadN(gate + i, lanes);
    // gelu(g) = g / 2 * (1 + tanh(y)) = g * sigmoid(2y), with y = sqrt(2 / pi) * (g + 0.044715
    // g^3).
    const F16 twice =
        g * MulAdd(g * g, Splat(0.044715f * 1.5957691216057308f), Splat(1.5957691216057308f));
    StoreN(g * Sigmoid(twice) * LoadN(up + i, lanes), out + i, lanes);
  });
}

WITHY_INLINE F16 AtMost(F16 x, F16 most) { return Negate(Max(Negate(x), Negate(most))); }

// The activation of gpt-oss; factor and limit are the architecture's.
inline void ClampedSwiGlu(const float* gate, const float* up, int n, float* out) {
  const F16 limit = Splat(7.0f);
  ForVectors(n, [&](int i, int lanes) {
    const F16 g = AtMost(LoadN(gate + i, lanes), limit);
    const F16 u = Max(AtMost(LoadN(up + i, lanes), limit), Negate(limit));
    StoreN(g * Sigmoid(g * Splat(1.702f)) * (u + Splat(1.0f)), out + i, lanes);
  });
}

// cap * tanh(x / cap), with tanh(y) = (1 - e^-2|y|) / (1 + e^-2|y|) and the sign of y.
WITHY_INLINE F16 SoftCapped(F16 x, float cap) {
  const F16 e = Exp(Negate(Abs(x)) * Splat(2.0f / cap));
  const F16 size = Splat(cap) * ((Splat(1.0f) - e) / (e + Splat(1.0f)));
  return Select(AtLeast(x, Zero()), size, Negate(size));
}

inline void SoftCap(float* x, int n, float cap) {
  ForVectors(n,
             [&](int i, int lanes) { StoreN(SoftCapped(LoadN(x + i, lanes), cap), x + i, lanes); });
}

inline void Add(const float* x, int n, float* y) {
  ForVectors(n, [&](int i, int lanes) {
    StoreN(LoadN(y + i, lanes) + LoadN(x + i, lanes), y + i, lanes);
  });
}

inline void AddScaled(const float* x, float factor, int n, float* y) {
  ForVectors(n, [&](int i, int lanes) {
    StoreN(MulAdd(LoadN(x + i, lanes), Splat(factor), LoadN(y + i, lanes)), y + i, lanes);
  });
}

inline float Dot(const float* x, const float* y, int n) {
  F16 sum = Zero();
  ForVectors(
      n, [&](int i, int lanes) { sum = MulAdd(LoadN(x + i, lanes), LoadN(y + i, lanes), sum); });
  return Sum(sum);
}

inline void CutOff(float* x, int n, float cut) {
  F16 sum = Zero();
  ForVectors(n, [&](int i, int lanes) { sum = sum + LoadN(x + i, lanes); });
  const float mean = Sum(sum) / static_cast<float>(n);
  F16 squares = Zero();
  ForVectors(n, [&](int i, int lanes) {
    const F16 off = LoadN(x + i, lanes) - Splat(mean);
    const F16 live = lanes == 16 ? off : Select(LanesBelow(lanes), off, Zero());
    squares = MulAdd(live, live, squares);
  });
  const F16 least = Splat(mean + cut * std::sqrt(Sum(squares) / static_cast<float>(n)));
  ForVectors(
      n, [&](int i, int lanes) { StoreN(Max(LoadN(x + i, lanes) - least, Zero()), x + i, lanes); });
}

// B of rank r for the 16 outputs of a block from `first` on.
WITHY_INLINE F16 LowRankPart(const float* scales, const int8_t* quants, int r, int first) {
  return ToFloat(WidenBytes(quants + r * kQuantBlock + first)) * Splat(scales[r]);
}

// Adds the first n outputs of a block to one row.
WITHY_INLINE void AddBlockToRow(const float* scales, const int8_t* quants, const float* a, int rank,
                                int n, float* y) {
  F16 lo = LoadN(y, n);
  F16 hi = LoadN(y + 16, n - 16);
  for (int r = 0; r < rank; ++r) {
    const F16 factor = Splat(a[r]);
    lo = MulAdd(factor, LowRankPart(scales, quants, r, 0), lo);
    hi = MulAdd(factor, LowRankPart(scales, quants, r, 16), hi);
  }
  StoreN(lo, y, n);
  StoreN(hi, y + 16, n - 16);
}

// Adds ranks [first, first + kRanks) of the first n outputs of a block to many rows. B is unpacked
// once for all rows.
template <int kRanks>
WITHY_INLINE void AddBlockToRows(const float* scales, const int8_t* quants, int first, int n,
                                 const LowRankRows& rows, ptrdiff_t out) {
  F16 lo[kRanks];
  F16 hi[kRanks];
#pragma GCC unroll 8
  for (int r = 0; r < kRanks; ++r) {
    lo[r] = LowRankPart(scales, quants, first + r, 0);
    hi[r] = LowRankPart(scales, quants, first + r, 16);
  }
  for (int row = 0; row < rows.rows; ++row) {
    const float* a = rows.a + row * rows.a_stride + first;
    float* y = rows.y + row * rows.y_stride + out;
    F16 sum_lo = LoadN(y, n);
    F16 sum_hi = LoadN(y + 16, n - 16);
#pragma GCC unroll 8
    for (int r = 0; r < kRanks; ++r) {
      const F16 factor = Splat(a[r]);
      sum_lo = MulAdd(factor, lo[r], sum_lo);
      sum_hi = MulAdd(factor, hi[r], sum_hi);
    }
    StoreN(sum_lo, y, n);
    StoreN(sum_hi, y + 16, n - 16);
  }
}

// Adds the first n outputs of a block, which starts at output `out` of the rows' y.
WITHY_INLINE void AddBlock(const LowRankOutputs& b, const LowRankRows& rows, int block, int n,
                           ptrdiff_t out) {
  constexpr int kRanks = 8;
  const float* scales = b.scales(block);
  const int8_t* quants = b.quants(block);
  if (rows.rows == 1) {
    AddBlockToRow(scales, quants, rows.a, b.rank, n, rows.y + out);
    return;
  }
  int r = 0;
  for (; r + kRanks <= b.rank; r += kRanks) {
    AddBlockToRows<kRanks>(scales, quants, r, n, rows, out);
  }
  for (; r < b.rank; ++r) AddBlockToRows<1>(scales, quants, r, n, rows, out);
}

// Adds B * a. Every output adds its ranks in ascending order, however rows and ranks are grouped.
inline void AddLowRank(const LowRankOutputs& b, const LowRankRows& rows, int begin, int end) {
  int o = begin;
  for (; o + kQuantBlock <= end; o += kQuantBlock) {
    AddBlock(b, rows, o / kQuantBlock, kQuantBlock, o - begin);
  }
  if (o < end) AddBlock(b, rows, o / kQuantBlock, end - o, o - begin);
}

inline void Softmax(const float* x, int n, float inv_temperature, float* out) {
  const F16 lowest = Splat(-3.0e38f);
  const auto live = [](F16 v, F16 otherwise, int lanes) {
    return lanes == 16 ? v : Select(LanesBelow(lanes), v, otherwise);
  };
  F16 m = lowest;
  ForVectors(n, [&](int i, int lanes) {
    m = Max(m, live(LoadN(x + i, lanes) * Splat(inv_temperature), lowest, lanes));
  });
  const float max = MaxLane(m);
  F16 total = Zero();
  ForVectors(n, [&](int i, int lanes) {
    const F16 e = Exp(LoadN(x + i, lanes) * Splat(inv_temperature) - Splat(max));
    total = total + live(e, Zero(), lanes);
    StoreN(e, out + i, lanes);
  });
  const float inverse = 1.0f / Sum(total);
  ForVectors(
      n, [&](int i, int lanes) { StoreN(LoadN(out + i, lanes) * Splat(inverse), out + i, lanes); });
}

}  // namespace withy::engine::WITHY_TARGET
