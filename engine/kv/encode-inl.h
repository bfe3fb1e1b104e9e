// Encodes one head of a KV block. Included by encode_*.cc after cpu/vec-inl.h and NativeMin.
//
// The numbers of a head are vectors of 16 lanes. A vector of K holds one dimension of the 16
// tokens. V lies in words of four tokens, so it is taken in four parts: part i has the tokens 4 *
// quad + i, and a vector of it holds lane 4 * quad + j for dimension 4 * vector + j. The four lanes
// of a token then share what was found for it.
#include <cmath>
#include <cstring>

#include "engine/kv/block.h"

namespace withy::engine::WITHY_TARGET {

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

inline void LoadK(const std::byte* k, F16 scale, int head_dim, KvPart* part) {
  part->vectors = head_dim;
  const F16 offset = Splat(128.0f);
  for (int d = 0; d < head_dim; d += 4, k += 64) {
    const I16 words = LoadWords(k);
    part->x[d] = (ToFloat(words & SplatI(255)) - offset) * scale;
    part->x[d + 1] = (ToFloat(ShiftRight<8>(words) & SplatI(255)) - offset) * scale;
    part->x[d + 2] = (ToFloat(ShiftRight<16>(words) & SplatI(255)) - offset) * scale;
    part->x[d + 3] = (ToFloat(ShiftRight<24>(words) & SplatI(255)) - offset) * scale;
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

// scale[i]: of the tokens of part i, in its order of lanes.
inline void LoadV(const std::byte* v, const F16 (&scale)[4], int head_dim, KvPart* parts) {
  const int vectors = head_dim / 4;
  for (int i = 0; i < 4; ++i) parts[i].vectors = vectors;
  const size_t quad_bytes = static_cast<size_t>(head_dim) * 4;
  for (int n = 0; n < vectors; ++n, v += 16) {
    const I16 words = LoadQuarters(v, quad_bytes);
    parts[0].x[n] = ToFloat(ShiftRight<24>(ShiftLeft<24>(words))) * scale[0];
    parts[1].x[n] = ToFloat(ShiftRight<24>(ShiftLeft<16>(words))) * scale[1];
    parts[2].x[n] = ToFloat(ShiftRight<24>(ShiftLeft<8>(words))) * scale[2];
    parts[3].x[n] = ToFloat(ShiftRight<24>(words)) * scale[3];
  }
}

// Scales and zeros of the 16 tokens of a head in a lower format, of K or of V: a field u stands for
// scale * (u - zero).
struct FieldSteps {
  alignas(64) float scale[16];
  alignas(64) float zero[16];
};

inline FieldSteps LoadSteps(const std::byte* scales, const std::byte* zeros, bool is_v, int bits,
                            float unit) {
  FieldSteps steps;
  for (int t = 0; t < kChunkTokens; ++t) {
    const int both = static_cast<int>(zeros[t]);
    steps.scale[t] = unit * static_cast<float>(scales[t]);
    steps.zero[t] = static_cast<float>(KvZero(bits, is_v ? both >> 4 : both & 15)) / kKvZeroUnits;
  }
  return steps;
}

// Fields of one byte each, laid out as K (or V) at 8 bits.
struct KvFields {
  alignas(64) std::byte byte[kMaxHeadDim * kChunkTokens];
};

inline void SpreadK(const std::byte* k, int bits, int head_dim, KvFields* fields) {
  const int rows = 8 / bits;
  const auto mask = static_cast<std::byte>((1 << bits) - 1);
  std::byte* to = fields->byte;
  for (int d = 0; d < head_dim; d += 4 * rows, k += 64) {
    for (int row = 0; row < rows; ++row, to += 64) {
      for (int i = 0; i < 64; ++i) to[i] = (k[i] >> (bits * row)) & mask;
    }
  }
}

inline void SpreadV(const std::byte* v, int bits, int head_dim, KvFields* fields) {
  const int quads = 8 / bits;
  const auto mask = static_cast<std::byte>((1 << bits) - 1);
  for (int d = 0; d < head_dim; d += 16) {
    for (int quad = 0; quad < 4; ++quad) {
      const std::byte* line = v + (d / 16 * (4 / quads) + quad / quads) * 64;
      std::byte* to = fields->byte + (quad * head_dim + d) * 4;
      for (int i = 0; i < 64; ++i) to[i] = (line[i] >> (bits * (quad % quads))) & mask;
    }
  }
}

// The K of a head in a lower format.
inline void LoadKFields(const KvOffsets& at, const std::byte* block, int bits, const KvUnits& units,
                        int head_dim, KvPart* part) {
  KvFields fields;
  SpreadK(block + at.k, bits, head_dim, &fields);
  const FieldSteps steps =
      LoadSteps(block + at.k_scale, block + at.zero, /*is_v=*/false, bits, units.k_scale);
  const F16 scale = Load(steps.scale);
  const F16 zero = Load(steps.zero);
  const std::byte* means = block + at.k_mean;
  part->vectors = head_dim;
  const std::byte* k = fields.byte;
  for (int d = 0; d < head_dim; d += 4, k += 64) {
    const I16 words = LoadWords(k);
    const I16 column[4] = {words & SplatI(255), ShiftRight<8>(words) & SplatI(255),
                           ShiftRight<16>(words) & SplatI(255), ShiftRight<24>(words)};
    for (int i = 0; i < 4; ++i) {
      const int mean = static_cast<int>(means[d / 8 * 4 + i] >> (d % 8)) & 15;
      part->x[d + i] = MulAdd(ToFloat(column[i]) - zero, scale,
                              Splat(units.k_mean * static_cast<float>(mean - kKvMeanZero)));
    }
  }
}

// Stores the means of K's dimensions over the tokens, and subtracts what is stored. Returns their
// unit.
inline float TakeMeans(int head_dim, KvPart* part, std::byte* to) {
  alignas(64) float mean[kMaxHeadDim];
  F16 most = Zero();
  for (int d = 0; d < head_dim; ++d) {
    F16 sum = part->x[d];
    sum = sum + SwapLanes<8>(sum);
    sum = sum + SwapLanes<4>(sum);
    sum = sum + SwapLanes<2>(sum);
    sum = sum + SwapLanes<1>(sum);
    const F16 of_all = sum * Splat(1.0f / kChunkTokens);
    most = Max(most, Abs(of_all));
    mean[d] = of_all.part[0][0];
  }
  const float unit = most.part[0][0] / (kKvMeanZero - 1);
  const F16 inverse = Splat(unit > 1e-30f ? 1.0f / unit : 0.0f);
  alignas(64) int32_t fields[kMaxHeadDim];
  for (int d = 0; d < head_dim; d += 16) {
    const I16 rounded = RoundToInt(Load(mean + d) * inverse);
    StoreWords(rounded + SplatI(kKvMeanZero), reinterpret_cast<std::byte*>(fields + d));
    Store(ToFloat(rounded) * Splat(unit), mean + d);
  }
  for (int d = 0; d < head_dim; ++d) part->x[d] = part->x[d] - Splat(mean[d]);
  for (int d = 0; d < head_dim; d += 8, to += 4) {
    for (int i = 0; i < 4; ++i) {
      to[i] = static_cast<std::byte>(fields[d + i] | fields[d + 4 + i] << 4);
    }
  }
  return unit;
}

// Finds the zero and the size of a step for each token, one in each lane.
template <int kBits, bool kIsV>
inline void ChooseRule(const KvPart& part, F16* zero, F16* size) {
  constexpr float kTop = (1 << kBits) - 1;
  // Shares of the range that are tried. At 4 bits the best one is seldom far from the whole range,
  // at 2 bits it is near 0.6 for normally distributed numbers.
  constexpr float kShares[] = {1.0f, 0.9f, 0.8f, 0.7f, 0.62f, 0.54f};
  constexpr int kCandidates = kBits == 4 ? 3 : 6;
  // How far the zero may be from the middle, in its units: not near the first or last field.
  constexpr float kFarthest = kBits == 4 ? 7 : 4;
  F16 low = Zero();
  F16 high = Zero();
  for (int n = 0; n < part.vectors; ++n) {
    low = Min(low, part.x[n]);
    high = Max(high, part.x[n]);
  }
  low = Negate(low);
  if constexpr (kIsV) {
    low = FoldQuads(low, [](F16 a, F16 b) { return Max(a, b); });
    high = FoldQuads(high, [](F16 a, F16 b) { return Max(a, b); });
  }
  const F16 shift = (low - high) / Max(low + high, Splat(1e-30f)) * Splat(kTop * kKvZeroUnits / 2);
  const F16 units = ToFloat(RoundToInt(Max(Min(shift, Splat(kFarthest)), Splat(-kFarthest))));
  const F16 middle = MulAdd(units, Splat(1.0f / kKvZeroUnits), Splat(kTop / 2));
  const F16 whole = Max(Max(low / middle, high / (Splat(kTop) - middle)), Splat(1e-30f));
  F16 least = Splat(3.0e38f);
  F16 best = Zero();
#pragma GCC unroll 1
  for (int c = 0; c < kCandidates; ++c) {
    const F16 step = whole * Splat(kShares[c]);
    const F16 inverse = Splat(1.0f) / step;
    F16 error = Zero();
    for (int n = 0; n < part.vectors; ++n) {
      const F16 exact = MulAdd(part.x[n], inverse, middle);
      const F16 magic = Splat(12582912.0f);
      const F16 field = (Min(Max(exact, Zero()), Splat(kTop)) + magic) - magic;
      const F16 off = exact - field;
      error = MulAdd(off, off, error);
    }
    if constexpr (kIsV) error = FoldQuads(error, [](F16 a, F16 b) { return a + b; });
    error = error * step * step;
    const I16 keep = AtLeast(error, least);
    least = Select(keep, least, error);
    best = Select(keep, best, step);
  }
  *zero = middle;
  *size = best;
}

// The stored z of lane `lane` of a rule's zeros.
template <int kBits>
WITHY_INLINE int StoredZero(const float* zeros, int lane) {
  return static_cast<int>(zeros[lane] * kKvZeroUnits) - KvZero(kBits, 0);
}

// Stores the steps of the 16 tokens as scales of one byte, and replaces them by the inverse of what
// is stored. Returns the scales' unit.
inline float StoreScales(float* step, std::byte* scales) {
  float most = 0;
  for (int t = 0; t < kChunkTokens; ++t) most = step[t] > most ? step[t] : most;
  const float unit = most / 255.0f;
  const float inverse = unit > 1e-30f ? 1.0f / unit : 0.0f;
  for (int t = 0; t < kChunkTokens; ++t) {
    const auto scale = static_cast<int>(std::lround(step[t] * inverse));
    scales[t] = static_cast<std::byte>(scale);
    step[t] = scale > 0 ? 1.0f / (unit * static_cast<float>(scale)) : 0.0f;
  }
  return unit;
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

template <int kBits>
inline void EncodeK(const KvGeometry& g, const KvOffsets& at, KvPart* part, KvUnits* units,
                    std::byte* block) {
  const int head_dim = g.head_dim;
  units->k_mean = TakeMeans(head_dim, part, block + at.k_mean);
  FieldRule rule;
  F16 size;
  ChooseRule<kBits, false>(*part, &rule.zero, &size);
  alignas(64) float step[16];
  Store(size, step);
  units->k_scale = StoreScales(step, block + at.k_scale);
  alignas(64) float zero[16];
  Store(rule.zero, zero);
  for (int t = 0; t < kChunkTokens; ++t) {
    block[at.zero + static_cast<size_t>(t)] = static_cast<std::byte>(StoredZero<kBits>(zero, t));
  }
  rule.inverse = Load(step);
  const FieldRule rules[4] = {rule, rule, rule, rule};
  std::byte* out = block + at.k;
  constexpr int kRows = 8 / kBits;
  for (int d = 0; d < head_dim; d += 4 * kRows, out += 64) {
    I16 words = SplatI(0);
#pragma GCC unroll 4
    for (int row = kRows - 1; row >= 0; --row) {
      const F16* x = part->x + d + 4 * row;
      words = ShiftLeft<kBits>(words) | FieldWords<kBits>({x[0], x[1], x[2], x[3]}, rules);
    }
    StoreWords(words, out);
  }
}

// Lanes of part i of V, from one number for each token.
WITHY_INLINE F16 LanesOfPart(const float* of_token, int i) {
  alignas(64) float lane[16];
  for (int n = 0; n < 16; ++n) lane[n] = of_token[n / 4 * 4 + i];
  return Load(lane);
}

// The V of a head in a lower format.
inline void LoadVFields(const KvOffsets& at, const std::byte* block, int bits, const KvUnits& units,
                        int head_dim, KvPart* parts) {
  KvFields fields;
  SpreadV(block + at.v, bits, head_dim, &fields);
  const FieldSteps steps =
      LoadSteps(block + at.v_scale, block + at.zero, /*is_v=*/true, bits, units.v_scale);
  F16 scale[4];
  for (int i = 0; i < 4; ++i) scale[i] = LanesOfPart(steps.scale, i);
  LoadV(fields.byte, scale, head_dim, parts);
  for (int i = 0; i < 4; ++i) {
    const F16 less = LanesOfPart(steps.zero, i) * scale[i];
    for (int n = 0; n < parts[i].vectors; ++n) parts[i].x[n] = parts[i].x[n] - less;
  }
}

// After EncodeK, which stores the other half of the zeros.
template <int kBits>
inline void EncodeV(const KvGeometry& g, const KvOffsets& at, const KvPart* part, KvUnits* units,
                    std::byte* block) {
  const int head_dim = g.head_dim;
  FieldRule rules[4];
  alignas(64) float step[16];
  for (int i = 0; i < 4; ++i) {
    F16 size;
    ChooseRule<kBits, true>(part[i], &rules[i].zero, &size);
    alignas(64) float zero[16];
    alignas(64) float sizes[16];
    Store(rules[i].zero, zero);
    Store(size, sizes);
    for (int quad = 0; quad < 4; ++quad) {
      step[quad * 4 + i] = sizes[quad * 4];
      block[at.zero + static_cast<size_t>(quad * 4 + i)] |=
          static_cast<std::byte>(StoredZero<kBits>(zero, quad * 4) << 4);
    }
  }
  units->v_scale = StoreScales(step, block + at.v_scale);
  for (int i = 0; i < 4; ++i) rules[i].inverse = LanesOfPart(step, i);
  std::byte* out = block + at.v;
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

// Loads the 16 scales at p; those that are no number count as 0.
WITHY_INLINE void LoadQ8Scales(const std::byte* p, float* scales) {
  const F16 stored = Load(reinterpret_cast<const float*>(p));
  Store(Select(AtLeast(Splat(3.0e38f), Abs(stored)), stored, Zero()), scales);
}

// The K of a head, in any format but kF16.
inline void LoadHeadK(const KvGeometry& g, const KvOffsets& at, const std::byte* block,
                      KvFormat format, const KvUnits& units, KvPart* part) {
  if (format != KvFormat::kQ8) {
    return LoadKFields(at, block, KBits(format), units, g.head_dim, part);
  }
  alignas(64) float scales[16];
  LoadQ8Scales(block + at.k_scale, scales);
  LoadK(block + at.k, Load(scales), g.head_dim, part);
}

inline void LoadHeadV(const KvGeometry& g, const KvOffsets& at, const std::byte* block,
                      KvFormat format, const KvUnits& units, KvPart* parts) {
  if (format != KvFormat::kQ8) {
    return LoadVFields(at, block, VBits(format), units, g.head_dim, parts);
  }
  alignas(64) float scales[16];
  LoadQ8Scales(block + at.v_scale, scales);
  const F16 lanes[4] = {LanesOfPart(scales, 0), LanesOfPart(scales, 1), LanesOfPart(scales, 2),
                        LanesOfPart(scales, 3)};
  LoadV(block + at.v, lanes, g.head_dim, parts);
}

// Copies K as it is, with the low half of the zeros.
inline void CopyHeadK(const KvGeometry& g, const KvOffsets& from, const std::byte* in, int bits,
                      const KvOffsets& at, std::byte* out) {
  const auto head_dim = static_cast<size_t>(g.head_dim);
  std::memcpy(out + at.k_scale, in + from.k_scale, kChunkTokens);
  std::memcpy(out + at.k_mean, in + from.k_mean, head_dim / 2);
  std::memcpy(out + at.k, in + from.k, head_dim * kChunkTokens * static_cast<size_t>(bits) / 8);
  for (size_t t = 0; t < kChunkTokens; ++t) {
    out[at.zero + t] = in[from.zero + t] & std::byte{15};
  }
}

// Copies V as it is, with the high half of the zeros. After K.
inline void CopyHeadV(const KvGeometry& g, const KvOffsets& from, const std::byte* in, int bits,
                      const KvOffsets& at, std::byte* out) {
  const auto head_dim = static_cast<size_t>(g.head_dim);
  std::memcpy(out + at.v_scale, in + from.v_scale, kChunkTokens);
  std::memcpy(out + at.v, in + from.v, head_dim * kChunkTokens * static_cast<size_t>(bits) / 8);
  for (size_t t = 0; t < kChunkTokens; ++t) {
    out[at.zero + t] |= in[from.zero + t] & std::byte{0xf0};
  }
}

inline void EncodeHead(const KvGeometry& g, int head, const std::byte* in, KvFormat from,
                       KvFormat to, std::byte* out) {
  const KvOffsets in_at = g.Offsets(from, head);
  const KvOffsets at = g.Offsets(to, head);
  KvUnits before = {};
  if (from != KvFormat::kQ8) std::memcpy(&before, in + in_at.units, sizeof before);
  KvUnits units = {};
  KvPart part[4];
  if (KBits(from) == KBits(to)) {
    CopyHeadK(g, in_at, in, KBits(to), at, out);
    units.k_scale = before.k_scale;
    units.k_mean = before.k_mean;
  } else {
    LoadHeadK(g, in_at, in, from, before, part);
    const auto encode_k = KBits(to) == 4 ? EncodeK<4> : EncodeK<2>;
    encode_k(g, at, part, &units, out);
  }
  if (VBits(from) == VBits(to)) {
    CopyHeadV(g, in_at, in, VBits(to), at, out);
    units.v_scale = before.v_scale;
  } else {
    LoadHeadV(g, in_at, in, from, before, part);
    const auto encode_v = VBits(to) == 4 ? EncodeV<4> : EncodeV<2>;
    encode_v(g, at, part, &units, out);
  }
  std::memcpy(out + at.units, &units, sizeof units);
}

}  // namespace withy::engine::WITHY_TARGET
