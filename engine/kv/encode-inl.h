// Encodes one head of a KV block. Included by encode_*.cc after cpu/vec-inl.h and NativeMin.
//
// The numbers of a head are vectors of 16 lanes. A vector of K holds one dimension of the 16
// tokens. V lies in words of four tokens, so it is taken in four parts: part i has the tokens 4 *
// quad + i, and a vector of it holds lane 4 * quad + j for dimension 4 * vector + j. The four lanes
// of a token then share what was found for it.
#include <cstring>

#include "engine/kv/block.h"

namespace withy::engine::WITHY_TARGET {

// Numbers in steps of the 8-bit block, each token with its own.
struct KvPart {
  F16 x[kMaxHeadDim];
  int vectors;
};

// u = x * inverse + zero, before it is rounded.
struct FieldRule {
  F16 inverse;
  F16 zero;
};

WITHY_INLINE F16 Min(F16 a, F16 b) {
  WITHY_EACH_PART a.part[i] = NativeMin(a.part[i], b.part[i]);
  return a;
}

template <int kBits>
WITHY_INLINE I16 ShiftLeft(I16 v) {
  WITHY_EACH_PART v.part[i] <<= kBits;
  return v;
}

// Combines the four lanes of a token in V's order of lanes.
template <typename Op>
WITHY_INLINE F16 FoldQuads(F16 v, Op op) {
  v = op(v, SwapLanes<1>(v));
  return op(v, SwapLanes<2>(v));
}

WITHY_INLINE I16 LoadWords(const std::byte* p) {
  return AsInt(Load(reinterpret_cast<const float*>(p)));
}
WITHY_INLINE void StoreWords(I16 v, std::byte* p) {
  Store(AsFloat(v), reinterpret_cast<float*>(p));
}

inline void LoadK(const std::byte* k, int head_dim, KvPart* part) {
  part->vectors = head_dim;
  const F16 offset = Splat(128.0f);
  for (int d = 0; d < head_dim; d += 4, k += 64) {
    const I16 words = LoadWords(k);
    part->x[d] = ToFloat(words & SplatI(255)) - offset;
    part->x[d + 1] = ToFloat(ShiftRight<8>(words) & SplatI(255)) - offset;
    part->x[d + 2] = ToFloat(ShiftRight<16>(words) & SplatI(255)) - offset;
    part->x[d + 3] = ToFloat(ShiftRight<24>(words) & SplatI(255)) - offset;
  }
}

typedef I4 UnalignedI4 __attribute__((aligned(4), may_alias));

// A native vector of 4 lanes, or one of 8 and its halves.
template <typename V>
WITHY_INLINE V Joined(I4 low, I4 high) {
  if constexpr (sizeof(V) == sizeof(I4)) {
    return (V)low;
  } else {
    return (V)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  }
}
template <typename V>
WITHY_INLINE I4 Half(V v, bool high) {
  if constexpr (sizeof(V) == sizeof(I4)) {
    return (I4)v;
  } else {
    return high ? (I4)__builtin_shufflevector(v, v, 4, 5, 6, 7)
                : (I4)__builtin_shufflevector(v, v, 0, 1, 2, 3);
  }
}
inline constexpr int kQuartersOfPart = kNativeLanes / 4;

// Lanes 4 * n to 4 * n + 3.
WITHY_INLINE I4 Quarter(I16 v, int n) {
  return Half(v.part[n / kQuartersOfPart], n % kQuartersOfPart != 0);
}
// Loads lanes 4 * n to 4 * n + 3 from p + n * stride.
WITHY_INLINE I16 LoadQuarters(const std::byte* p, size_t stride) {
  const auto quarter = [&](int n) {
    return *reinterpret_cast<const UnalignedI4*>(p + static_cast<size_t>(n) * stride);
  };
  I16 v;
  WITHY_EACH_PART {
    const int n = i * kQuartersOfPart;
    v.part[i] = Joined<NativeI>(quarter(n), quarter(n + kQuartersOfPart - 1));
  }
  return v;
}

inline void LoadV(const std::byte* v, int head_dim, KvPart* parts) {
  const int vectors = head_dim / 4;
  for (int i = 0; i < 4; ++i) parts[i].vectors = vectors;
  const size_t quad_bytes = static_cast<size_t>(head_dim) * 4;
  for (int n = 0; n < vectors; ++n, v += 16) {
    const I16 words = LoadQuarters(v, quad_bytes);
    parts[0].x[n] = ToFloat(ShiftRight<24>(ShiftLeft<24>(words)));
    parts[1].x[n] = ToFloat(ShiftRight<24>(ShiftLeft<16>(words)));
    parts[2].x[n] = ToFloat(ShiftRight<24>(ShiftLeft<8>(words)));
    parts[3].x[n] = ToFloat(ShiftRight<24>(words));
  }
}

// Finds the fields' rule for each token. Zeros and scales go to zero[16] (bytes, one in each lane)
// and step[16], the latter in steps of the 8-bit block.
template <int kBits, bool kQuads>
inline void ChooseRule(const KvPart& part, FieldRule* rule, float* step) {
  constexpr float kTop = (1 << kBits) - 1;
  // Shares of the range that are tried. At 4 bits the best one is seldom far from the whole range,
  // at 2 bits it is near 0.6 for normally distributed numbers.
  constexpr float kShares[] = {1.0f, 0.9f, 0.8f, 0.7f, 0.62f, 0.54f};
  constexpr int kCandidates = kBits == 4 ? 3 : 6;
  F16 low = Zero();
  F16 high = Zero();
  for (int n = 0; n < part.vectors; ++n) {
    low = Min(low, part.x[n]);
    high = Max(high, part.x[n]);
  }
  low = Negate(low);
  if constexpr (kQuads) {
    low = FoldQuads(low, [](F16 a, F16 b) { return Max(a, b); });
    high = FoldQuads(high, [](F16 a, F16 b) { return Max(a, b); });
  }
  const F16 range = Max(low + high, Splat(1.0f));  // 8-bit numbers are 0 or at least 1
  constexpr float kUnit = 1.0f / kKvZeroUnits;
  const I16 units = RoundToInt(low * Splat(kTop * kKvZeroUnits) / range);
  const F16 zero = ToFloat(units) * Splat(kUnit);
  F16 least = Splat(3.0e38f);
  F16 best = Zero();
#pragma GCC unroll 1
  for (int c = 0; c < kCandidates; ++c) {
    const F16 size = range * Splat(kShares[c] / kTop);
    const F16 inverse = Splat(1.0f) / size;
    F16 error = Zero();
    for (int n = 0; n < part.vectors; ++n) {
      const F16 exact = MulAdd(part.x[n], inverse, zero);
      const F16 magic = Splat(12582912.0f);
      const F16 field = (Min(Max(exact, Zero()), Splat(kTop)) + magic) - magic;
      const F16 off = exact - field;
      error = MulAdd(off, off, error);
    }
    if constexpr (kQuads) error = FoldQuads(error, [](F16 a, F16 b) { return a + b; });
    error = error * size * size;
    const I16 keep = AtLeast(error, least);
    least = Select(keep, least, error);
    best = Select(keep, best, size);
  }
  rule->zero = zero;
  Store(best, step);
}

// Stores the scale that makes a step of step * q8_scale, and returns the fields for one step of the
// 8-bit block with that scale.
WITHY_INLINE float StoreScale(float step, float q8_scale, std::byte* to) {
  const float scale = step * q8_scale;
  const uint16_t half = F32ToF16(scale < 65504.0f ? scale : 65504.0f);
  std::memcpy(to, &half, sizeof half);
  const float stored = F16ToF32(half);
  return stored > 0.0f ? q8_scale / stored : 0.0f;
}

template <int kBits>
WITHY_INLINE I16 FieldOf(F16 x, const FieldRule& rule) {
  constexpr float kTop = (1 << kBits) - 1;
  return RoundToInt(Min(Max(MulAdd(x, rule.inverse, rule.zero), Zero()), Splat(kTop)));
}

// The fields of four dimensions of K, or of four tokens of V, as the bytes of words.
template <int kBits>
WITHY_INLINE I16 FieldWords(const F16 (&x)[4], const FieldRule (&rule)[4]) {
  return FieldOf<kBits>(x[0], rule[0]) | ShiftLeft<8>(FieldOf<kBits>(x[1], rule[1])) |
         ShiftLeft<16>(FieldOf<kBits>(x[2], rule[2])) |
         ShiftLeft<24>(FieldOf<kBits>(x[3], rule[3]));
}

// Fills in the rule's inverse from the steps, and stores scales and zeros of the tokens.
WITHY_INLINE void FinishTokens(const float* step, const float* q8_scales, int first, int stride,
                               int lanes_of_token, std::byte* scales, std::byte* zeros,
                               FieldRule* rule) {
  alignas(64) float inverse[16];
  alignas(64) float zero[16];
  Store(rule->zero, zero);
  for (int lane = 0, token = first; lane < 16; lane += lanes_of_token, token += stride) {
    const float value = StoreScale(step[lane], q8_scales[token], scales + 2 * token);
    for (int j = 0; j < lanes_of_token; ++j) inverse[lane + j] = value;
    zeros[token] = static_cast<std::byte>(static_cast<int>(zero[lane] * kKvZeroUnits));
  }
  rule->inverse = Load(inverse);
}

template <int kBits>
inline void EncodeK(const std::byte* k, const float* q8_scales, int head_dim, std::byte* scales,
                    std::byte* zeros, std::byte* out) {
  KvPart part;
  LoadK(k, head_dim, &part);
  FieldRule rule;
  alignas(64) float step[16];
  ChooseRule<kBits, false>(part, &rule, step);
  FinishTokens(step, q8_scales, 0, 1, 1, scales, zeros, &rule);
  const FieldRule rules[4] = {rule, rule, rule, rule};
  constexpr int kRows = 8 / kBits;
  for (int d = 0; d < head_dim; d += 4 * kRows, out += 64) {
    I16 words = SplatI(0);
#pragma GCC unroll 4
    for (int row = kRows - 1; row >= 0; --row) {
      const F16* x = part.x + d + 4 * row;
      words = ShiftLeft<kBits>(words) | FieldWords<kBits>({x[0], x[1], x[2], x[3]}, rules);
    }
    StoreWords(words, out);
  }
}

template <int kBits>
inline void EncodeV(const std::byte* v, const float* q8_scales, int head_dim, std::byte* scales,
                    std::byte* zeros, std::byte* out) {
  KvPart part[4];
  LoadV(v, head_dim, part);
  FieldRule rules[4];
  for (int i = 0; i < 4; ++i) {
    alignas(64) float step[16];
    ChooseRule<kBits, true>(part[i], &rules[i], step);
    FinishTokens(step, q8_scales, i, 4, 4, scales, zeros, &rules[i]);
  }
  constexpr int kQuads = 8 / kBits;  // in 64 bytes
  constexpr int kLines = 4 / kQuads;
  for (int n = 0; n < head_dim / 4; ++n) {
    const I16 words =
        FieldWords<kBits>({part[0].x[n], part[1].x[n], part[2].x[n], part[3].x[n]}, rules);
    std::byte* to = out + n / 4 * kLines * 64 + n % 4 * 16;
#pragma GCC unroll 2
    for (int line = 0; line < kLines; ++line, to += 64) {
      I4 packed = Quarter(words, line * kQuads);
#pragma GCC unroll 4
      for (int quad = 1; quad < kQuads; ++quad) {
        packed |= Quarter(words, line * kQuads + quad) << (kBits * quad);
      }
      *reinterpret_cast<UnalignedI4*>(to) = packed;
    }
  }
}

inline void EncodeHead(const KvGeometry& g, int head, const std::byte* in, KvFormat to,
                       std::byte* out) {
  const KvOffsets from = g.Offsets(KvFormat::kQ8, head);
  const KvOffsets at = g.Offsets(to, head);
  alignas(64) float scales[16];
  std::memcpy(scales, in + from.k_scale, sizeof scales);
  const auto encode_k = KBits(to) == 4 ? EncodeK<4> : EncodeK<2>;
  encode_k(in + from.k, scales, g.head_dim, out + at.k_scale, out + at.k_zero, out + at.k);
  std::memcpy(scales, in + from.v_scale, sizeof scales);
  const auto encode_v = VBits(to) == 4 ? EncodeV<4> : EncodeV<2>;
  encode_v(in + from.v, scales, g.head_dim, out + at.v_scale, out + at.v_zero, out + at.v);
}

}  // namespace withy::engine::WITHY_TARGET
