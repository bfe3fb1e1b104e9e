// Vectors of 16 lanes made of a target's native vectors, compiled once per target with that
// target's flags. Only kernels_*.cc include it. They define WITHY_TARGET (the target's namespace)
// and in it NativeF (its vector of floats), NativeMulAdd and NativeMax. Dot-product primitives stay
// in those files.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/cpu/types.h"

// Without these options GCC turns integer sums into trees, or delays them until all products exist.
// Either way the values no longer fit the registers.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("no-tree-reassoc", "no-tree-ter")
#endif

namespace withy::engine::WITHY_TARGET {

typedef int32_t NativeI __attribute__((vector_size(sizeof(NativeF))));
inline constexpr int kNativeLanes = sizeof(NativeF) / sizeof(float);
inline constexpr int kParts = kTileRows / kNativeLanes;

struct F16 {
  NativeF part[kParts];
};
struct I16 {
  NativeI part[kParts];
};

#define WITHY_EACH_PART _Pragma("GCC unroll 4") for (int i = 0; i < kParts; ++i)
#define WITHY_OPERATOR(Type, op)                        \
  WITHY_INLINE Type operator op(Type a, Type b) {       \
    WITHY_EACH_PART a.part[i] = a.part[i] op b.part[i]; \
    return a;                                           \
  }
WITHY_OPERATOR(F16, +)
WITHY_OPERATOR(F16, -)
WITHY_OPERATOR(F16, *)
WITHY_OPERATOR(F16, /)
WITHY_OPERATOR(I16, +)
WITHY_OPERATOR(I16, -)
WITHY_OPERATOR(I16, &)
WITHY_OPERATOR(I16, |)
#undef WITHY_OPERATOR

// Native vectors at any address. memcpy of a whole F16 may go through the stack in parts, and a
// load right after it would have to wait.
typedef NativeF UnalignedF __attribute__((aligned(4), may_alias));

WITHY_INLINE F16 Load(const float* p) {
  F16 v;
  WITHY_EACH_PART v.part[i] = reinterpret_cast<const UnalignedF*>(p)[i];
  return v;
}
WITHY_INLINE void Store(F16 v, float* p) {
  WITHY_EACH_PART reinterpret_cast<UnalignedF*>(p)[i] = v.part[i];
}
WITHY_INLINE F16 Zero() {
  F16 v;
  WITHY_EACH_PART v.part[i] = NativeF{};
  return v;
}
WITHY_INLINE F16 Splat(float x) {
  F16 v;
  // x - 0 is x for every x, so compilers drop it. 0 + x differs for -0 and costs an addition.
  WITHY_EACH_PART v.part[i] = x - NativeF{};
  return v;
}
WITHY_INLINE I16 SplatI(int32_t x) {
  I16 v;
  WITHY_EACH_PART v.part[i] = NativeI{} + x;
  return v;
}
// a * b + c, fused if the target can.
WITHY_INLINE F16 MulAdd(F16 a, F16 b, F16 c) {
  WITHY_EACH_PART c.part[i] = NativeMulAdd(a.part[i], b.part[i], c.part[i]);
  return c;
}
WITHY_INLINE F16 ToFloat(I16 v) {
  F16 f;
  WITHY_EACH_PART f.part[i] = __builtin_convertvector(v.part[i], NativeF);
  return f;
}
WITHY_INLINE I16 AsInt(F16 v) {
  I16 n;
  WITHY_EACH_PART n.part[i] = (NativeI)v.part[i];
  return n;
}
WITHY_INLINE F16 AsFloat(I16 v) {
  F16 f;
  WITHY_EACH_PART f.part[i] = (NativeF)v.part[i];
  return f;
}
template <int kBits>
WITHY_INLINE I16 ShiftRight(I16 v) {
  WITHY_EACH_PART v.part[i] >>= kBits;
  return v;
}
// a > b ? a : b; that is b if either is NaN.
WITHY_INLINE F16 Max(F16 a, F16 b) {
  WITHY_EACH_PART a.part[i] = NativeMax(a.part[i], b.part[i]);
  return a;
}
WITHY_INLINE F16 Abs(F16 a) { return AsFloat(AsInt(a) & SplatI(0x7fffffff)); }
WITHY_INLINE F16 Negate(F16 a) { return Zero() - a; }
// Exchanges lanes 2i and 2i + 1.
WITHY_INLINE F16 SwapNeighbours(F16 v) {
  typedef uint64_t Pairs __attribute__((vector_size(sizeof(NativeF))));
  WITHY_EACH_PART {
    const Pairs pairs = (Pairs)v.part[i];
    v.part[i] = (NativeF)(pairs << 32 | pairs >> 32);
  }
  return v;
}
// Exchanges lanes i and i ^ kDistance of one native vector.
template <int kDistance, typename V>
WITHY_INLINE V SwapNative(V v) {
  if constexpr (sizeof(V) == 16) {
    if constexpr (kDistance == 1) return __builtin_shufflevector(v, v, 1, 0, 3, 2);
    return __builtin_shufflevector(v, v, 2, 3, 0, 1);
  } else if constexpr (sizeof(V) == 32) {
    if constexpr (kDistance == 1) return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6);
    if constexpr (kDistance == 2) return __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5);
    return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3);
  } else {
    if constexpr (kDistance == 1) {
      return __builtin_shufflevector(v, v, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
    }
    if constexpr (kDistance == 2) {
      return __builtin_shufflevector(v, v, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    }
    if constexpr (kDistance == 4) {
      return __builtin_shufflevector(v, v, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11);
    }
    return __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7);
  }
}
// Exchanges lanes i and i ^ kDistance (1, 2, 4 or 8).
template <int kDistance>
WITHY_INLINE F16 SwapLanes(F16 v) {
  if constexpr (kDistance < kNativeLanes) {
    WITHY_EACH_PART v.part[i] = SwapNative<kDistance>(v.part[i]);
    return v;
  } else {
    F16 swapped;
    WITHY_EACH_PART swapped.part[i] = v.part[i ^ (kDistance / kNativeLanes)];
    return swapped;
  }
}

// 64 bytes, four to a lane.
typedef uint8_t NativeB __attribute__((vector_size(sizeof(NativeF))));
struct B64 {
  NativeB part[kParts];
};
WITHY_INLINE B64 LoadB64(const void* p) {
  typedef NativeB Unaligned __attribute__((aligned(1), may_alias));
  B64 v;
  WITHY_EACH_PART v.part[i] = static_cast<const Unaligned*>(p)[i];
  return v;
}
// Field n of kBits (2 or 4) of each byte, the lowest bits first.
template <int kBits>
WITHY_INLINE B64 Field(B64 v, int n) {
  typedef uint16_t Pairs __attribute__((vector_size(sizeof(NativeF))));  // x86 shifts no bytes
  WITHY_EACH_PART {
    v.part[i] =
        (NativeB)((Pairs)v.part[i] >> (kBits * n)) & (NativeB{} + uint8_t{(1 << kBits) - 1});
  }
  return v;
}

// Masks have all bits set where true.
WITHY_INLINE I16 AtLeast(F16 a, F16 b) {
  I16 m;
  WITHY_EACH_PART m.part[i] = a.part[i] >= b.part[i];
  return m;
}
WITHY_INLINE I16 LanesBelow(int n) {
  alignas(64) static constexpr int32_t kIndex[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                     8, 9, 10, 11, 12, 13, 14, 15};
  I16 index;
  std::memcpy(&index, kIndex, sizeof index);
  WITHY_EACH_PART index.part[i] = index.part[i] < n;
  return index;
}
WITHY_INLINE F16 Select(I16 mask, F16 a, F16 b) {
  WITHY_EACH_PART a.part[i] = mask.part[i] ? a.part[i] : b.part[i];
  return a;
}

// Loads n (0..16) floats; the other lanes are zero. Reads nothing beyond the n floats.
WITHY_INLINE F16 LoadN(const float* p, int n) {
  if (n >= 16) return Load(p);
  F16 v = Zero();
  std::memcpy(&v, p, sizeof(float) * static_cast<size_t>(n > 0 ? n : 0));
  return v;
}
WITHY_INLINE void StoreN(F16 v, float* p, int n) {
  if (n >= 16) return Store(v, p);
  std::memcpy(p, &v, sizeof(float) * static_cast<size_t>(n > 0 ? n : 0));
}

// Calls fn(i, lanes) for each vector of n floats. The last one may be partial; for the whole ones
// the compiler knows that `lanes` is 16.
template <typename Fn>
WITHY_INLINE void ForVectors(int n, Fn fn) {
  int i = 0;
  for (; i + 16 <= n; i += 16) fn(i, 16);
  if (i < n) fn(i, n - i);
}

// Horizontal reductions in a fixed order: one half is folded onto the other.
WITHY_INLINE float Sum(F16 v) {
  alignas(64) float a[16];
  Store(v, a);
  float b[4];
  for (int i = 0; i < 4; ++i) b[i] = (a[i] + a[i + 8]) + (a[i + 4] + a[i + 12]);
  return (b[0] + b[2]) + (b[1] + b[3]);
}
WITHY_INLINE float MaxLane(F16 v) {
  alignas(64) float a[16];
  Store(v, a);
  float b[4];
  for (int i = 0; i < 4; ++i) {
    const float x = a[i] > a[i + 8] ? a[i] : a[i + 8];
    const float y = a[i + 4] > a[i + 12] ? a[i + 4] : a[i + 12];
    b[i] = x > y ? x : y;
  }
  const float x = b[0] > b[2] ? b[0] : b[2];
  const float y = b[1] > b[3] ? b[1] : b[3];
  return x > y ? x : y;
}
typedef float F4 __attribute__((vector_size(16)));
typedef int32_t I4 __attribute__((vector_size(16)));

// Nearest integer (ties to even) of |x| < 2^22.
WITHY_INLINE I16 RoundToInt(F16 x) {
  return AsInt(x + Splat(12582912.0f)) - SplatI(0x4b400000);  // 1.5 * 2^23
}

// e^x for x <= 88, relative error below 3e-7; exactly 1 at 0, exactly 0 below -87 (and at
// -infinity).
WITHY_INLINE F16 Exp(F16 x) {
  const I16 live = AtLeast(x, Splat(-87.0f));
  const F16 y = Select(live, x, Zero());
  const F16 shifted = MulAdd(y, Splat(1.44269504088896341f), Splat(12582912.0f));
  const F16 n = shifted - Splat(12582912.0f);
  F16 r = MulAdd(n, Splat(-0.693359375f), y);
  r = MulAdd(n, Splat(2.12194440e-4f), r);
  F16 p = Splat(1.9875691500e-4f);
  p = MulAdd(p, r, Splat(1.3981999507e-3f));
  p = MulAdd(p, r, Splat(8.3334519073e-3f));
  p = MulAdd(p, r, Splat(4.1665795894e-2f));
  p = MulAdd(p, r, Splat(1.6666665459e-1f));
  p = MulAdd(p, r, Splat(5.0000001201e-1f));
  p = MulAdd(p * r, r, r) + Splat(1.0f);
  I16 power = AsInt(shifted);  // low bits hold n
  WITHY_EACH_PART power.part[i] <<= 23;
  return Select(live, AsFloat(AsInt(p) + power), Zero());
}

}  // namespace withy::engine::WITHY_TARGET
