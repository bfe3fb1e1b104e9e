// The rotation of heads (kv/rotation.h). Included by kernels_*.cc after vec-inl.h. The order of the
// additions is fixed by head_dim.
#include "engine/kv/block.h"
#include "engine/kv/rotation.h"

namespace withy::engine::WITHY_TARGET {

// Replaces lanes i and i + kDistance by their sum and their difference.
template <int kDistance>
WITHY_INLINE F16 Butterfly(F16 v) {
  alignas(64) static constexpr float kSigns[4][16] = {
      {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
      {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
      {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
      {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1}};
  constexpr int kRow = kDistance == 8 ? 3 : kDistance / 2;
  return MulAdd(v, Load(kSigns[kRow]), SwapLanes<kDistance>(v));
}

// The stages that combine whole vectors, from vectors kStride apart on.
template <int kVectors, int kStride>
WITHY_INLINE void CombineVectors(F16 (&v)[kVectors]) {
  if constexpr (kStride < kVectors) {
#pragma GCC unroll 16
    for (int i = 0; i < kVectors; ++i) {
      if ((i & kStride) != 0) continue;
      const F16 a = v[i];
      const F16 b = v[i + kStride];
      v[i] = a + b;
      v[i + kStride] = a - b;
    }
    CombineVectors<kVectors, 2 * kStride>(v);
  }
}

// Rotates one block of kVectors * 16 dimensions.
template <int kVectors>
WITHY_INLINE void RotateBlock(const float* x, float* out) {
  constexpr float kNorm = kVectors == 1   ? 0.25f
                          : kVectors == 2 ? 0.17677669529663687f
                          : kVectors == 4 ? 0.125f
                          : kVectors == 8 ? 0.08838834764831845f
                                          : 0.0625f;
  F16 v[kVectors];
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) {
    v[i] = Butterfly<8>(Butterfly<4>(Butterfly<2>(Butterfly<1>(Load(x + i * 16)))));
  }
  CombineVectors<kVectors, 1>(v);
#pragma GCC unroll 16
  for (int i = 0; i < kVectors; ++i) Store(v[i] * Splat(kNorm), out + i * 16);
}

template <int kVectors>
inline void RotateBlocks(const float* x, int head_dim, float* out) {
  for (int d = 0; d < head_dim; d += kVectors * 16) RotateBlock<kVectors>(x + d, out + d);
}

// Rotates x[head_dim] into `out`, which may be x.
inline void RotateHead(const float* x, int head_dim, float* out) {
  switch (RotationBlock(head_dim)) {
    case 16:
      return RotateBlocks<1>(x, head_dim, out);
    case 32:
      return RotateBlocks<2>(x, head_dim, out);
    case 64:
      return RotateBlocks<4>(x, head_dim, out);
    case 128:
      return RotateBlocks<8>(x, head_dim, out);
    default:
      return RotateBlocks<16>(x, head_dim, out);
  }
}

}  // namespace withy::engine::WITHY_TARGET
