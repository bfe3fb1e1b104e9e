// The portable kernels: plain C++ that runs on every machine. The fallback, and a target that every
// build can test.

#include <algorithm>

#define WITHY_TARGET portable
#define WITHY_INLINE inline __attribute__((always_inline))

namespace withy::engine::portable {

typedef float NativeF __attribute__((vector_size(16)));
WITHY_INLINE NativeF NativeMulAdd(NativeF a, NativeF b, NativeF c) { return a * b + c; }
WITHY_INLINE NativeF NativeMax(NativeF a, NativeF b) { return a > b ? a : b; }

}  // namespace withy::engine::portable

// clang-format off
#include "engine/cpu/vec-inl.h"
#include "engine/cpu/fold-inl.h"
// clang-format on
#include "engine/cpu/kernels.h"
#include "engine/cpu/targets.h"

namespace withy::engine::portable {

inline constexpr int32_t kInitBias = 0;
inline constexpr bool kQ8Signed = false;
inline constexpr int kFloatRows = 2;
inline constexpr int kFloatTiles = 1;
inline constexpr int kKvOffset = 128;
inline constexpr int kScoreQueries = 2;
inline constexpr int kValueQueries = 1;
inline constexpr int kLastValueQueries = 1;
inline constexpr int kValueTiles = 1;

struct Bytes64 {
  uint8_t byte[64];
};

WITHY_INLINE F16 LoadHalves(const uint16_t* p) {
  float v[16];
  for (int i = 0; i < 16; ++i) v[i] = F16ToF32(p[i]);
  return Load(v);
}
WITHY_INLINE F16 LoadBf16(const uint16_t* p) {
  float v[16];
  for (int i = 0; i < 16; ++i) v[i] = Bf16ToF32(p[i]);
  return Load(v);
}
WITHY_INLINE I16 WidenBytes(const int8_t* p) {
  int32_t lanes[16];
  std::copy_n(p, 16, lanes);
  I16 v;
  std::memcpy(&v, lanes, sizeof v);
  return v;
}
WITHY_INLINE void StoreBytes(I16 v, int8_t* out) {
  int32_t lanes[16];
  std::memcpy(lanes, &v, sizeof lanes);
  for (int i = 0; i < 16; ++i) out[i] = static_cast<int8_t>(lanes[i]);
}

WITHY_INLINE Bytes64 LoadQ8(const uint8_t* p) {
  Bytes64 w;
  std::memcpy(&w, p, sizeof w);
  return w;
}

WITHY_INLINE void LoadNibbles(const uint8_t* p, Bytes64* lo, Bytes64* hi) {
  for (int i = 0; i < 64; ++i) {
    lo->byte[i] = p[i] & 15u;
    hi->byte[i] = static_cast<uint8_t>(p[i] >> 4);
  }
}

template <WeightType kType>
WITHY_INLINE void LoadTable(const uint8_t* p, Bytes64* lo, Bytes64* hi) {
  LoadNibbles(p, lo, hi);
  for (int i = 0; i < 64; ++i) {
    lo->byte[i] = static_cast<uint8_t>(TableOf(kType)[lo->byte[i]] + 128);
    hi->byte[i] = static_cast<uint8_t>(TableOf(kType)[hi->byte[i]] + 128);
  }
}

template <typename W, typename A>
WITHY_INLINE I16 DotAny(I16 acc, const W* w, const A* a) {
  int32_t sum[16];
  std::memcpy(sum, &acc, sizeof sum);
  for (int lane = 0; lane < 16; ++lane) {
    sum[lane] += w[4 * lane] * a[0] + w[4 * lane + 1] * a[1] + w[4 * lane + 2] * a[2] +
                 w[4 * lane + 3] * a[3];
  }
  std::memcpy(&acc, sum, sizeof sum);
  return acc;
}
WITHY_INLINE I16 DotQ8(I16 acc, const Bytes64& w, const int8_t* a) {
  return DotAny(acc, w.byte, a);
}
using Q4Sums = I16;
WITHY_INLINE I16 DotQ4(I16 acc, const Bytes64& w, const int8_t* a) {
  return DotAny(acc, w.byte, a);
}
WITHY_INLINE I16 Widen(I16 sums) { return sums; }
WITHY_INLINE I16 DotKv(I16 acc, const uint8_t* k, const int8_t* q) { return DotAny(acc, k, q); }
WITHY_INLINE I16 DotVp(I16 acc, const int8_t* v, const uint8_t* p) { return DotAny(acc, v, p); }
inline constexpr bool kNarrowSums = false;
using FieldSums = I16;
WITHY_INLINE FieldSums DotFields(FieldSums sums, const B64& w, const void* quad) {
  uint8_t bytes[64];
  std::memcpy(bytes, &w, sizeof bytes);
  return DotAny(sums, bytes, static_cast<const int8_t*>(quad));
}

inline constexpr int kPeakChains = 2;
using PeakBytes = Bytes64;
WITHY_INLINE PeakBytes LoadPeak(const int32_t* p) {
  return LoadQ8(reinterpret_cast<const uint8_t*>(p));
}
WITHY_INLINE I16 PeakStep(I16 acc, const PeakBytes& w) {
  return DotAny(acc, w.byte, reinterpret_cast<const int8_t*>(w.byte));
}

}  // namespace withy::engine::portable

// clang-format off
#include "engine/cpu/quant_strip-inl.h"
#include "engine/cpu/rotate-inl.h"
#include "engine/cpu/elementwise-inl.h"
#include "engine/cpu/matmul-inl.h"
#include "engine/cpu/attention-inl.h"
#include "engine/cpu/ceilings-inl.h"
// clang-format on

namespace withy::engine {

const Kernels* PortableKernels() {
  static constexpr Kernels kTable = {
      Target::kPortable, "portable",          portable::Prepare,
      portable::MatMul,  portable::Attention, portable::MergeAttention,
      portable::WriteKv, portable::RmsNorm,   portable::Rope,
      portable::SwiGlu,  portable::GeGlu,     portable::ClampedSwiGlu,
      portable::SoftCap, portable::Add,       portable::AddScaled,
      portable::Dot,     portable::CutOff,    portable::AddLowRank,
      portable::Softmax, portable::PeakLoop,  portable::ReadLoop};
  return &kTable;
}

}  // namespace withy::engine
