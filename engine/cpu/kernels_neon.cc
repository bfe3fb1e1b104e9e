// Kernels for aarch64 with the dot-product extension (FEAT_DotProd). Weights become signed bytes
// when they are loaded. Compiled with that extension; nothing here runs before NeonDotKernels() has
// checked the CPU.
#include <arm_neon.h>
#include <sys/auxv.h>

#define WITHY_TARGET neon
#define WITHY_INLINE inline __attribute__((always_inline))

namespace withy::engine::neon {

typedef float NativeF __attribute__((vector_size(16)));
WITHY_INLINE NativeF NativeMulAdd(NativeF a, NativeF b, NativeF c) {
  return (NativeF)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
WITHY_INLINE NativeF NativeMax(NativeF a, NativeF b) { return a > b ? a : b; }

}  // namespace withy::engine::neon

// clang-format off
#include "engine/cpu/vec-inl.h"
#include "engine/cpu/fold-inl.h"
// clang-format on
#include "engine/cpu/kernels.h"
#include "engine/cpu/targets.h"

namespace withy::engine::neon {

inline constexpr int32_t kInitBias = 0;
inline constexpr bool kQ8Signed = true;
inline constexpr int kFloatRows = 1;
inline constexpr int kFloatTiles = 1;
inline constexpr int kKvOffset = 0;
inline constexpr int kScoreQueries = 4;
inline constexpr int kValueQueries = 2;
inline constexpr int kLastValueQueries = 2;
inline constexpr int kValueTiles = 1;

struct Bytes64 {
  int8x16_t part[4];
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
    w.part[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(0x80)));
  }
  return w;
}
WITHY_INLINE void LoadNibbles(const uint8_t* p, Bytes64* lo, Bytes64* hi) {
  WITHY_EACH_PART {
    const uint8x16_t w = vld1q_u8(p + 16 * i);
    lo->part[i] = vreinterpretq_s8_u8(vandq_u8(w, vdupq_n_u8(15)));
    hi->part[i] = vreinterpretq_s8_u8(vshrq_n_u8(w, 4));
  }
}
template <WeightType kType>
WITHY_INLINE void LoadTable(const uint8_t* p, Bytes64* lo, Bytes64* hi) {
  const int8x16_t values = vld1q_s8(TableOf(kType));
  LoadNibbles(p, lo, hi);
  WITHY_EACH_PART {
    lo->part[i] = vqtbl1q_s8(values, vreinterpretq_u8_s8(lo->part[i]));
    hi->part[i] = vqtbl1q_s8(values, vreinterpretq_u8_s8(hi->part[i]));
  }
}
WITHY_INLINE NativeI Dot(NativeI acc, int8x16_t w, int8x16_t a) {
  return (NativeI)vdotq_s32((int32x4_t)acc, w, a);
}
WITHY_INLINE I16 DotQ8(I16 acc, const Bytes64& w, const int8_t* a) {
  const int8x16_t quad = Quad(a);
  WITHY_EACH_PART acc.part[i] = Dot(acc.part[i], w.part[i], quad);
  return acc;
}
using Q4Sums = I16;
WITHY_INLINE I16 DotQ4(I16 acc, const Bytes64& w, const int8_t* a) { return DotQ8(acc, w, a); }
WITHY_INLINE I16 Widen(I16 sums) { return sums; }

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

inline constexpr int kPeakChains = 6;
using PeakBytes = Bytes64;
WITHY_INLINE PeakBytes LoadPeak(const int32_t* p) {
  return LoadQ8(reinterpret_cast<const uint8_t*>(p));
}
WITHY_INLINE I16 PeakStep(I16 acc, const PeakBytes& w) {
  WITHY_EACH_PART acc.part[i] = Dot(acc.part[i], w.part[i], w.part[i]);
  return acc;
}

}  // namespace withy::engine::neon

// clang-format off
#include "engine/cpu/quant_strip-inl.h"
#include "engine/cpu/rotate-inl.h"
#include "engine/cpu/elementwise-inl.h"
#include "engine/cpu/matmul-inl.h"
#include "engine/cpu/attention-inl.h"
#include "engine/cpu/ceilings-inl.h"
// clang-format on

namespace withy::engine {

const Kernels* NeonDotKernels() {
  static constexpr Kernels kTable = {
      Target::kNeonDot,     "neon-dotprod",      neon::Prepare, neon::MatMul, neon::Attention,
      neon::MergeAttention, neon::WriteKv,       neon::RmsNorm, neon::Rope,   neon::SwiGlu,
      neon::GeGlu,          neon::ClampedSwiGlu, neon::SoftCap, neon::Add,    neon::AddLowRank,
      neon::Softmax,        neon::PeakLoop,      neon::ReadLoop};
  static const bool kSupported = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return kSupported ? &kTable : nullptr;
}

}  // namespace withy::engine
