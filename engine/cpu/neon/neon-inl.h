// What the aarch64 targets share: vectors of 16 lanes, conversions, and the products of bytes that
// need no more than dot products (FEAT_DotProd). Included by kernels_neon*.cc, each of which first
// defines WITHY_TARGET and in that namespace
//   kQ8Signed; Bytes, a vector of 16 weights, signed if kQ8Signed is true;
//   DotWeights(acc, weights, activations).
#include <arm_neon.h>

#define WITHY_INLINE inline __attribute__((always_inline))

namespace withy::engine::WITHY_TARGET {

typedef float NativeF __attribute__((vector_size(16)));
WITHY_INLINE NativeF NativeMulAdd(NativeF a, NativeF b, NativeF c) {
  return (NativeF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
WITHY_INLINE NativeF NativeMax(NativeF a, NativeF b) { return a > b ? a : b; }

}  // namespace withy::engine::WITHY_TARGET

// clang-format off
#include "engine/cpu/vec-inl.h"
#include "engine/cpu/fold-inl.h"
// clang-format on

namespace withy::engine::WITHY_TARGET {

inline constexpr int32_t kInitBias = 0;
inline constexpr int kFloatRows = 1;
inline constexpr int kFloatTiles = 1;
inline constexpr int kKvOffset = kQ8Signed ? 0 : 128;
inline constexpr int kScoreQueries = 4;
inline constexpr int kValueQueries = 2;
inline constexpr int kLastValueQueries = 2;
inline constexpr int kValueTiles = 1;

struct Bytes64 {
  Bytes part[4];
};

WITHY_INLINE F16 LoadHalves(const uint16_t* p) {
  F16 v;
  WITHY_EACH_PART { v.part[i] = (NativeF)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); }
  return v;
}
WITHY_INLINE F16 LoadBf16(const uint16_t* p) {
  F16 v;
  WITHY_EACH_PART v.part[i] = (NativeF)vshll_n_u16(vld1_u16(p + 4 * i), 16);
  return v;
}
WITHY_INLINE I16 WidenBytes(const int8_t* p) {
  const int8x16_t bytes = vld1q_s8(p);
  const int16x8_t low = vmovl_s8(vget_low_s8(bytes));
  const int16x8_t high = vmovl_s8(vget_high_s8(bytes));
  return I16{{(NativeI)vmovl_s16(vget_low_s16(low)), (NativeI)vmovl_s16(vget_high_s16(low)),
              (NativeI)vmovl_s16(vget_low_s16(high)), (NativeI)vmovl_s16(vget_high_s16(high))}};
}
WITHY_INLINE void StoreBytes(I16 v, int8_t* out) {
  const auto halves = [&v](int i) {
    return vcombine_s16(vmovn_s32((int32x4_t)v.part[i]), vmovn_s32((int32x4_t)v.part[i + 1]));
  };
  vst1q_s8(out, vcombine_s8(vmovn_s16(halves(0)), vmovn_s16(halves(2))));
}
WITHY_INLINE int8x16_t Quad(const void* p) {
  return vreinterpretq_s8_s32(vld1q_dup_s32(static_cast<const int32_t*>(p)));
}

WITHY_INLINE Bytes64 LoadQ8(const uint8_t* p) {
  Bytes64 w;
  WITHY_EACH_PART {
    const uint8x16_t bytes = vld1q_u8(p + 16 * i);
    w.part[i] = (Bytes)(kQ8Signed ? veorq_u8(bytes, vdupq_n_u8(0x80)) : bytes);
  }
  return w;
}
// Weights of one type from their nibbles: the nibbles, or the values that they are indices of.
template <WeightType kType>
WITHY_INLINE Bytes FromNibbles(uint8x16_t nibbles) {
  if constexpr (!HasTable(kType)) return (Bytes)nibbles;
  const uint8x16_t values = vreinterpretq_u8_s8(vld1q_s8(TableOf(kType)));
  return (Bytes)vqtbl1q_u8(kQ8Signed ? values : veorq_u8(values, vdupq_n_u8(0x80)), nibbles);
}
template <WeightType kType>
WITHY_INLINE Bytes Low(uint8x16_t bytes) {
  return FromNibbles<kType>(vandq_u8(bytes, vdupq_n_u8(15)));
}
template <WeightType kType>
WITHY_INLINE Bytes High(uint8x16_t bytes) {
  return FromNibbles<kType>(vshrq_n_u8(bytes, 4));
}
template <WeightType kType>
WITHY_INLINE void LoadTable(const uint8_t* p, Bytes64* lo, Bytes64* hi) {
  WITHY_EACH_PART {
    const uint8x16_t bytes = vld1q_u8(p + 16 * i);
    lo->part[i] = Low<kType>(bytes);
    hi->part[i] = High<kType>(bytes);
  }
}
WITHY_INLINE void LoadNibbles(const uint8_t* p, Bytes64* lo, Bytes64* hi) {
  LoadTable<WeightType::kQ4>(p, lo, hi);
}
WITHY_INLINE I16 DotQ8(I16 acc, const Bytes64& w, const int8_t* a) {
  const int8x16_t quad = Quad(a);
  WITHY_EACH_PART { acc.part[i] = (NativeI)DotWeights((int32x4_t)acc.part[i], w.part[i], quad); }
  return acc;
}
using Q4Sums = I16;
WITHY_INLINE I16 DotQ4(I16 acc, const Bytes64& w, const int8_t* a) { return DotQ8(acc, w, a); }
WITHY_INLINE I16 Widen(I16 sums) { return sums; }

WITHY_INLINE NativeI Dot(NativeI acc, int8x16_t w, int8x16_t a) {
  return (NativeI)vdotq_s32((int32x4_t)acc, w, a);
}
WITHY_INLINE I16 DotKv(I16 acc, const uint8_t* k, const int8_t* q) {
  return DotQ8(acc, LoadQ8(k), q);
}
WITHY_INLINE I16 DotVp(I16 acc, const int8_t* v, const uint8_t* p) {
  const int8x16_t quad = Quad(p);  // p < 128
  WITHY_EACH_PART acc.part[i] = Dot(acc.part[i], vld1q_s8(v + 16 * i), quad);
  return acc;
}
inline constexpr bool kNarrowSums = false;
using FieldSums = I16;
WITHY_INLINE FieldSums DotFields(FieldSums sums, const B64& w, const void* quad) {
  const int8x16_t a = Quad(quad);
  WITHY_EACH_PART sums.part[i] = Dot(sums.part[i], (int8x16_t)w.part[i], a);
  return sums;
}

using PeakBytes = Bytes64;
WITHY_INLINE PeakBytes LoadPeak(const int32_t* p) {
  return LoadQ8(reinterpret_cast<const uint8_t*>(p));
}

}  // namespace withy::engine::WITHY_TARGET
