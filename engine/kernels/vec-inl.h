// Vectors of 16 lanes as compiler vector extensions, compiled once for each target with that
// target's flags. Included by kernels_*.cc only, which define WITHY_TARGET to the target's
// namespace; dot-product primitives stay in those files.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/kernels/types.h"

namespace withy::engine::WITHY_TARGET {

#define WITHY_INLINE inline __attribute__((always_inline))

typedef float F16 __attribute__((vector_size(64)));
typedef int32_t I16 __attribute__((vector_size(64)));
typedef uint32_t U16 __attribute__((vector_size(64)));

WITHY_INLINE F16 Load(const float* p) {
  F16 v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
WITHY_INLINE void Store(F16 v, float* p) { std::memcpy(p, &v, sizeof v); }
WITHY_INLINE F16 Splat(float x) { return F16{} + x; }
WITHY_INLINE I16 SplatI(int32_t x) { return I16{} + x; }
WITHY_INLINE F16 ToFloat(I16 v) { return __builtin_convertvector(v, F16); }

// The first n (0..16) floats at p, other lanes zero.
WITHY_INLINE F16 LoadN(const float* p, int n) {
  if (n >= 16) return Load(p);
  F16 v{};
  std::memcpy(&v, p, sizeof(float) * static_cast<size_t>(n));
  return v;
}
WITHY_INLINE void StoreN(F16 v, float* p, int n) {
  if (n >= 16) return Store(v, p);
  std::memcpy(p, &v, sizeof(float) * static_cast<size_t>(n));
}

// a where the mask is set (all ones), else b.
WITHY_INLINE F16 Select(I16 mask, F16 a, F16 b) {
  return (F16)((mask & (I16)a) | (~mask & (I16)b));
}
WITHY_INLINE F16 Max(F16 a, F16 b) { return Select(a > b, a, b); }
WITHY_INLINE F16 Abs(F16 a) { return (F16)((I16)a & 0x7fffffff); }
WITHY_INLINE I16 LanesBelow(int n) {
  const I16 index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return index < SplatI(n);
}

// Horizontal reductions in one fixed order: halves folded onto each other.
WITHY_INLINE float Sum(F16 v) {
  float a[16];
  std::memcpy(a, &v, sizeof a);
  float b[4];
  for (int i = 0; i < 4; ++i) b[i] = (a[i] + a[i + 8]) + (a[i + 4] + a[i + 12]);
  return (b[0] + b[2]) + (b[1] + b[3]);
}
WITHY_INLINE float MaxLane(F16 v) {
  float a[16];
  std::memcpy(a, &v, sizeof a);
  for (int i = 0; i < 8; ++i) a[i] = a[i] > a[i + 8] ? a[i] : a[i + 8];
  for (int i = 0; i < 4; ++i) a[i] = a[i] > a[i + 4] ? a[i] : a[i + 4];
  for (int i = 0; i < 2; ++i) a[i] = a[i] > a[i + 2] ? a[i] : a[i + 2];
  return a[0] > a[1] ? a[0] : a[1];
}

// Nearest integer (ties to even) of |x| < 2^22, as int lanes.
WITHY_INLINE I16 RoundToInt(F16 x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23
  return (I16)(x + magic) - static_cast<int32_t>(0x4b400000);
}

// e^x, relative error below 2e-7; exactly 1 at 0, exactly 0 below -87; x is at most 88. Lanes of
// -infinity give 0.
WITHY_INLINE F16 Exp(F16 x) {
  const I16 live = x >= Splat(-87.0f);
  const F16 y = Select(live, x, Splat(0.0f));
  const I16 n = RoundToInt(y * 1.44269504088896341f);
  const F16 nf = ToFloat(n);
  const F16 r = (y - nf * 0.693359375f) + nf * 2.12194440e-4f;
  F16 p = Splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  const F16 scaled = p * (F16)((n + 127) << 23);
  return Select(live, scaled, Splat(0.0f));
}

// 16 halves at p as floats.
WITHY_INLINE F16 LoadF16Lanes(const uint16_t* p);

WITHY_INLINE F16 LoadBf16Lanes(const uint16_t* p) {
  U16 v;
  for (int i = 0; i < 16; ++i) v[i] = static_cast<uint32_t>(p[i]) << 16;
  return (F16)v;
}

}  // namespace withy::engine::WITHY_TARGET
