// Kernels for AVX2 with FMA and F16C. Byte products use maddubs, which saturates at 16 bits. One
// operand is the absolute weight (at most 128), the other the activation with the weight's sign (at
// most 127), so no pair exceeds 32,512. Compiled with AVX2 flags; nothing here runs before
// Avx2Kernels() has checked the CPU.
#include <immintrin.h>

#define WITHY_TARGET avx2
#define WITHY_INLINE inline __attribute__((always_inline))
#define WITHY_PAIR_SUMS  // for attention

namespace withy::engine::avx2 {

typedef float NativeF __attribute__((vector_size(32)));
WITHY_INLINE NativeF NativeMulAdd(NativeF a, NativeF b, NativeF c) {
  return _mm256_fmadd_ps(a, b, c);
}
WITHY_INLINE NativeF NativeMax(NativeF a, NativeF b) { return _mm256_max_ps(a, b); }

}  // namespace withy::engine::avx2

// clang-format off
#include "engine/cpu/vec-inl.h"
#include "engine/cpu/fold-inl.h"
// clang-format on
#include "engine/cpu/kernels.h"
#include "engine/cpu/targets.h"

namespace withy::engine::avx2 {

inline constexpr int32_t kInitBias = 0;
inline constexpr bool kQ8Signed = true;
inline constexpr int kFloatRows = 4;
inline constexpr int kFloatTiles = 1;
inline constexpr int kKvOffset = 0;
inline constexpr int kScoreQueries = 4;
inline constexpr int kValueQueries = 2;
inline constexpr int kLastValueQueries = 3;
inline constexpr int kValueTiles = 1;

struct Bytes64 {
  __m256i part[2];
};

WITHY_INLINE __m256i LoadBytes(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
WITHY_INLINE F16 LoadHalves(const uint16_t* p) {
  return F16{{_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
              _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))}};
}
WITHY_INLINE F16 LoadBf16(const uint16_t* p) {
  F16 v;
  for (int i = 0; i < 2; ++i) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i));
    v.part[i] = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
  }
  return v;
}
WITHY_INLINE I16 WidenBytes(const int8_t* p) {
  I16 v;
  WITHY_EACH_PART {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * kNativeLanes));
    v.part[i] = (NativeI)_mm256_cvtepi8_epi32(bytes);
  }
  return v;
}
WITHY_INLINE void StoreBytes(I16 v, int8_t* out) {
  const __m256i crossed = _mm256_packs_epi32((__m256i)v.part[0], (__m256i)v.part[1]);
  const __m256i halves = _mm256_permute4x64_epi64(crossed, 0xd8);
  const __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), bytes);
}
WITHY_INLINE __m256i Quad(const void* p) {
  int32_t quad;
  std::memcpy(&quad, p, sizeof quad);
  return _mm256_set1_epi32(quad);
}

WITHY_INLINE Bytes64 LoadQ8(const uint8_t* p) {
  const __m256i offset = _mm256_set1_epi8(static_cast<char>(0x80));
  return {{_mm256_xor_si256(LoadBytes(p), offset), _mm256_xor_si256(LoadBytes(p + 32), offset)}};
}
WITHY_INLINE void LoadNibbles(const uint8_t* p, Bytes64* lo, Bytes64* hi) {
  const __m256i low = _mm256_set1_epi8(15);
  for (int i = 0; i < 2; ++i) {
    const __m256i w = LoadBytes(p + 32 * i);
    lo->part[i] = _mm256_and_si256(w, low);
    hi->part[i] = _mm256_and_si256(_mm256_srli_epi16(w, 4), low);
  }
}
template <WeightType kType>
WITHY_INLINE void LoadTable(const uint8_t* p, Bytes64* lo, Bytes64* hi) {
  const __m256i values = _mm256_broadcastsi128_si256(
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(TableOf(kType))));
  LoadNibbles(p, lo, hi);
  for (int i = 0; i < 2; ++i) {
    lo->part[i] = _mm256_shuffle_epi8(values, lo->part[i]);
    hi->part[i] = _mm256_shuffle_epi8(values, hi->part[i]);
  }
}

// Adds four products of signed bytes to each lane of acc.
WITHY_INLINE NativeI DotSigned(NativeI acc, __m256i w, __m256i a) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
  return acc + (NativeI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
WITHY_INLINE I16 DotQ8(I16 acc, const Bytes64& w, const int8_t* a) {
  const __m256i quad = Quad(a);
  for (int i = 0; i < 2; ++i) acc.part[i] = DotSigned(acc.part[i], w.part[i], quad);
  return acc;
}
// The sum of a block's eight pairs of products fits into 16 bits: 8 * 2 * 15 * 127 = 30,480.
using Q4Sums = Bytes64;
WITHY_INLINE Q4Sums DotQ4(Q4Sums sums, const Bytes64& w, const int8_t* a) {
  const __m256i quad = Quad(a);
  for (int i = 0; i < 2; ++i) {
    sums.part[i] = _mm256_add_epi16(sums.part[i], _mm256_maddubs_epi16(w.part[i], quad));
  }
  return sums;
}
WITHY_INLINE I16 Widen(const Q4Sums& sums) {
  I16 wide;
  for (int i = 0; i < 2; ++i) {
    wide.part[i] = (NativeI)_mm256_madd_epi16(sums.part[i], _mm256_set1_epi16(1));
  }
  return wide;
}
WITHY_INLINE I16 DotKv(I16 acc, const uint8_t* k, const int8_t* q) {
  return DotQ8(acc, LoadQ8(k), q);
}
WITHY_INLINE I16 DotVp(I16 acc, const int8_t* v, const uint8_t* p) {
  const __m256i quad = Quad(p);
  for (int i = 0; i < 2; ++i) {
    const __m256i pairs = _mm256_maddubs_epi16(quad, LoadBytes(v + 32 * i));  // p < 128
    acc.part[i] = acc.part[i] + (NativeI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  return acc;
}
// Sums of pairs of tokens: part i has dimensions 4 * i to 4 * i + 3, two sums each. maddubs would
// need two 7-bit halves of the probabilities, and so twice as many products.
struct PairSums {
  __m256i part[4];
};
template <int T>
WITHY_INLINE void DotPairs(PairSums (&sums)[T], const int8_t* v, const int16_t* p,
                           ptrdiff_t p_stride) {
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m256i w =
        _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(v + 16 * i)));
#pragma GCC unroll 4
    for (int t = 0; t < T; ++t) {
      int64_t quad;
      std::memcpy(&quad, p + t * p_stride, sizeof quad);
      sums[t].part[i] =
          _mm256_add_epi32(sums[t].part[i], _mm256_madd_epi16(w, _mm256_set1_epi64x(quad)));
    }
  }
}
WITHY_INLINE I16 AddPairs(const PairSums& sums) {
  I16 all;
  for (int i = 0; i < 2; ++i) {
    const __m256i crossed = _mm256_hadd_epi32(sums.part[2 * i], sums.part[2 * i + 1]);
    all.part[i] = (NativeI)_mm256_permute4x64_epi64(crossed, 0xd8);
  }
  return all;
}
// Lanes below 2^15.
WITHY_INLINE void StoreShorts(I16 v, int16_t* out) {
  const __m256i crossed = _mm256_packs_epi32((__m256i)v.part[0], (__m256i)v.part[1]);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm256_permute4x64_epi64(crossed, 0xd8));
}
// Sums of 16 bits hold eight pairs of products, as those of DotQ4.
inline constexpr bool kNarrowSums = true;
using FieldSums = Bytes64;
WITHY_INLINE FieldSums DotFields(FieldSums sums, const B64& w, const void* quad) {
  const __m256i a = Quad(quad);
  for (int i = 0; i < 2; ++i) {
    sums.part[i] = _mm256_add_epi16(sums.part[i], _mm256_maddubs_epi16((__m256i)w.part[i], a));
  }
  return sums;
}

inline constexpr int kPeakChains = 5;
using PeakBytes = Bytes64;
WITHY_INLINE PeakBytes LoadPeak(const int32_t* p) { return {{LoadBytes(p), LoadBytes(p + 8)}}; }
WITHY_INLINE I16 PeakStep(I16 acc, const PeakBytes& w) {
  for (int i = 0; i < 2; ++i) {
    // The accumulator is an operand, so that the product cannot be hoisted out of the loop.
    const __m256i pairs = _mm256_maddubs_epi16(w.part[i], (__m256i)acc.part[i]);
    acc.part[i] = acc.part[i] + (NativeI)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
  return acc;
}

}  // namespace withy::engine::avx2

// clang-format off
#include "engine/cpu/quant_strip-inl.h"
#include "engine/cpu/rotate-inl.h"
#include "engine/cpu/elementwise-inl.h"
#include "engine/cpu/matmul-inl.h"
#include "engine/cpu/attention-inl.h"
#include "engine/cpu/ceilings-inl.h"
// clang-format on

namespace withy::engine {

const Kernels* Avx2Kernels() {
  static constexpr Kernels kTable = {Target::kAvx2, "avx2",          avx2::Prepare,
                                     avx2::MatMul,  avx2::Attention, avx2::MergeAttention,
                                     avx2::WriteKv, avx2::RmsNorm,   avx2::Rope,
                                     avx2::SwiGlu,  avx2::GeGlu,     avx2::ClampedSwiGlu,
                                     avx2::SoftCap, avx2::Add,       avx2::AddScaled,
                                     avx2::Dot,     avx2::CutOff,    avx2::AddLowRank,
                                     avx2::Softmax, avx2::PeakLoop,  avx2::ReadLoop};
  // Every CPU with AVX2 and FMA has F16C.
  static const bool kSupported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return kSupported ? &kTable : nullptr;
}

}  // namespace withy::engine
