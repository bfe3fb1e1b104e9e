// Element-wise kernels, quantisation of activations and of K/V. Included by kernels_*.cc after
// vec-inl.h and the target's StoreBytes(16 lanes within a byte's range, out).
#include "engine/kernels/activations.h"
#include "engine/kernels/low_rank.h"
#include "engine/kv/block.h"

namespace withy::engine::WITHY_TARGET {

inline float MaxAbs(const float* x, int n) {
  F16 m = Zero();
  for (int i = 0; i < n; i += 16) m = Max(m, Abs(LoadN(x + i, n - i)));
  return MaxLane(m);
}

// x within +-127, where finite inputs already are; NaN becomes -127, so that damaged weights give
// wrong numbers and no undefined ones.
WITHY_INLINE F16 ClampQuants(F16 x) {
  const F16 limit = Splat(-127.0f);
  return Zero() - Max(Zero() - Max(x, limit), limit);
}

inline void PrepareBlock(const float* x, int n, int row, int block, Activations* out) {
  const F16 lo = LoadN(x, n);
  const F16 hi = n > 16 ? LoadN(x + 16, n - 16) : Zero();
  const float max = MaxLane(Max(Abs(lo), Abs(hi)));
  const float scale = max / 127.0f;
  const float inverse = max > 1e-30f ? 127.0f / max : 0.0f;
  const I16 a = RoundToInt(ClampQuants(lo * Splat(inverse)));
  const I16 b = RoundToInt(ClampQuants(hi * Splat(inverse)));
  int8_t* quants = out->quants(row) + block * kQuantBlock;
  StoreBytes(a, quants);
  StoreBytes(b, quants + 16);
  const int32_t sum = SumInt(a + b);
  out->scales(row)[block] = scale;
  out->init8(row)[block] = kInitBias - 128 * sum;
  out->init4(row)[block] = kInitBias - 8 * sum;
  out->sums(row)[block] = scale * static_cast<float>(sum);
}

inline void Prepare(const float* x, ptrdiff_t stride, int row_begin, int row_end, int col_begin,
                    int col_end, Activations* out) {
  for (int row = row_begin; row < row_end; ++row) {
    const float* in = x + (row - row_begin) * stride;
    for (int col = col_begin; col < col_end; col += kQuantBlock) {
      const int n = col_end - col < kQuantBlock ? col_end - col : kQuantBlock;
      if ((out->forms() & kActQ8) != 0)
        PrepareBlock(in + (col - col_begin), n, row, col / kQuantBlock, out);
      if ((out->forms() & kActF32) != 0) {
        Store(LoadN(in + (col - col_begin), n), out->floats(row) + col);
        Store(n > 16 ? LoadN(in + (col - col_begin) + 16, n - 16) : Zero(),
              out->floats(row) + col + 16);
      }
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

inline void WriteKv(const KvGeometry& g, const float* k, const float* v, std::byte* block,
                    int slot) {
  int8_t q[256];
  for (int head = 0; head < g.kv_heads; ++head) {
    const size_t scale_at = sizeof(float) * static_cast<size_t>(head * kChunkTokens + slot);
    const size_t head_at = g.HeadBytes() * static_cast<size_t>(head);
    const float k_scale = QuantizeHead(k + head * g.head_dim, g.head_dim, q);
    std::memcpy(block + g.KScaleOffset() + scale_at, &k_scale, sizeof k_scale);
    std::byte* to = block + g.KOffset() + head_at + slot * 4;
    for (int d = 0; d < g.head_dim; d += 4, to += kChunkTokens * 4) {
      uint32_t quad;
      std::memcpy(&quad, q + d, 4);
      quad ^= 0x80808080u;
      std::memcpy(to, &quad, 4);
    }
    const float v_scale = QuantizeHead(v + head * g.head_dim, g.head_dim, q);
    std::memcpy(block + g.VScaleOffset() + scale_at, &v_scale, sizeof v_scale);
    to = block + g.VOffset() + head_at + (slot / 4) * g.head_dim * 4 + slot % 4;
    for (int d = 0; d < g.head_dim; ++d) to[d * 4] = static_cast<std::byte>(q[d]);
  }
}

inline void RmsNorm(const float* x, const float* weight, float eps, int n, float* out) {
  F16 squares = Zero();
  for (int i = 0; i < n; i += 16) {
    const F16 v = LoadN(x + i, n - i);
    squares = MulAdd(v, v, squares);
  }
  const float scale = 1.0f / std::sqrt(Sum(squares) / static_cast<float>(n) + eps);
  for (int i = 0; i < n; i += 16) {
    StoreN(LoadN(x + i, n - i) * Splat(scale) * LoadN(weight + i, n - i), out + i, n - i);
  }
}

inline void Rope(float* x, int heads, int head_dim, const float* angles, int rope_dims,
                 bool interleaved) {
  const int half = rope_dims / 2;
  const int step = interleaved ? 2 : 1;
  const int apart = interleaved ? 1 : half;
  for (int head = 0; head < heads; ++head, x += head_dim) {
    for (int i = 0; i < half; ++i) {
      const float c = angles[2 * i];
      const float s = angles[2 * i + 1];
      float* a = x + i * step;
      const float x0 = a[0];
      const float x1 = a[apart];
      a[0] = x0 * c - x1 * s;
      a[apart] = x0 * s + x1 * c;
    }
  }
}

inline void SwiGlu(const float* gate, const float* up, int n, float* out) {
  for (int i = 0; i < n; i += 16) {
    const F16 g = LoadN(gate + i, n - i);
    // silu(g) = g / (1 + e^-g), with the exponential taken of -|g| so that it cannot overflow.
    const F16 e = Exp(Negate(Abs(g)));
    const F16 sigmoid = Select(AtLeast(g, Zero()), Splat(1.0f), e) / (e + Splat(1.0f));
    StoreN(g * sigmoid * LoadN(up + i, n - i), out + i, n - i);
  }
}

inline void Add(const float* x, int n, float* y) {
  for (int i = 0; i < n; i += 16) StoreN(LoadN(y + i, n - i) + LoadN(x + i, n - i), y + i, n - i);
}

WITHY_INLINE F16 LoadBytesAsFloat(const int8_t* p) {
  typedef int8_t Bytes __attribute__((vector_size(kNativeLanes)));
  I16 v;
  WITHY_EACH_PART {
    Bytes bytes;
    std::memcpy(&bytes, p + i * kNativeLanes, sizeof bytes);
    v.part[i] = __builtin_convertvector(bytes, NativeI);
  }
  return ToFloat(v);
}

// 16 outputs of column r of B.
WITHY_INLINE F16 LowRankColumn(const LowRankOutputs& b, int r, int o) {
  return LoadBytesAsFloat(b.quants(r) + o) * Splat(b.scales(r)[o / kQuantBlock]);
}

inline void AddLowRankToRow(const LowRankOutputs& b, const float* a, int begin, int end, float* y) {
  for (int o = begin; o < end; o += kQuantBlock, y += kQuantBlock) {
    const int n = end - o < kQuantBlock ? end - o : kQuantBlock;
    F16 lo = LoadN(y, n);
    F16 hi = n > 16 ? LoadN(y + 16, n - 16) : Zero();
    for (int r = 0; r < b.rank; ++r) {
      const F16 factor = Splat(a[r]);
      lo = MulAdd(factor, LowRankColumn(b, r, o), lo);
      hi = MulAdd(factor, LowRankColumn(b, r, o + 16), hi);
    }
    StoreN(lo, y, n);
    if (n > 16) StoreN(hi, y + 16, n - 16);
  }
}

// Many rows share an unpacked block of B: kRanks of its columns at a time.
inline void AddLowRank(const LowRankOutputs& b, const LowRankRows& rows, int begin, int end) {
  constexpr int kRanks = 8;
  if (rows.rows == 1) return AddLowRankToRow(b, rows.a, begin, end, rows.y);
  for (int o = begin; o < end; o += kQuantBlock) {
    const int n = end - o < kQuantBlock ? end - o : kQuantBlock;
    for (int first = 0; first < b.rank; first += kRanks) {
      const int ranks = b.rank - first < kRanks ? b.rank - first : kRanks;
      alignas(64) float block[kRanks * kQuantBlock];
      for (int r = 0; r < ranks; ++r) {
        Store(LowRankColumn(b, first + r, o), block + r * kQuantBlock);
        Store(LowRankColumn(b, first + r, o + 16), block + r * kQuantBlock + 16);
      }
      for (int row = 0; row < rows.rows; ++row) {
        const float* a = rows.a + row * rows.a_stride + first;
        float* y = rows.y + row * rows.y_stride + (o - begin);
        F16 lo = LoadN(y, n);
        F16 hi = n > 16 ? LoadN(y + 16, n - 16) : Zero();
        for (int r = 0; r < ranks; ++r) {
          const F16 factor = Splat(a[r]);
          lo = MulAdd(factor, Load(block + r * kQuantBlock), lo);
          hi = MulAdd(factor, Load(block + r * kQuantBlock + 16), hi);
        }
        StoreN(lo, y, n);
        if (n > 16) StoreN(hi, y + 16, n - 16);
      }
    }
  }
}

inline void Softmax(const float* x, int n, float inv_temperature, float* out) {
  const F16 lowest = Splat(-3.0e38f);
  F16 m = lowest;
  for (int i = 0; i < n; i += 16) {
    m = Max(m, Select(LanesBelow(n - i), LoadN(x + i, n - i) * Splat(inv_temperature), lowest));
  }
  const float max = MaxLane(m);
  F16 total = Zero();
  for (int i = 0; i < n; i += 16) {
    F16 e = Exp(LoadN(x + i, n - i) * Splat(inv_temperature) - Splat(max));
    e = Select(LanesBelow(n - i), e, Zero());
    total = total + e;
    StoreN(e, out + i, n - i);
  }
  const float inverse = 1.0f / Sum(total);
  for (int i = 0; i < n; i += 16) StoreN(LoadN(out + i, n - i) * Splat(inverse), out + i, n - i);
}

}  // namespace withy::engine::WITHY_TARGET
