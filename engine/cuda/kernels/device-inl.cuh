// What kernels use of the machine: indices, memory, barriers, shuffles, integer dot products. One
// header with two bodies: CUDA, and the runner of on_cpu/ for tests. Kernels touch memory only by
// these functions, so that the runner sees every access; but for the descriptions of what they do
// (args.h). Included by kernels-inl.cuh.
//
// Arithmetic: nothing is contracted (-fmad=false, -ffp-contract=off); Fma is the one fused
// operation. So both bodies compute the same bits.
#pragma once

#if defined(__CUDACC__)
#include "engine/cuda/kernels/device_cuda-inl.cuh"
#else
#include "engine/cuda/on_cpu/device-inl.h"
#endif

namespace withy::engine::WITHY_GPU {

// Nearest integer (ties to even) of |x| < 2^22.
WITHY_DEVICE int32_t RoundToInt(float x) { return FloatBits(x + 12582912.0f) - 0x4b400000; }

// e^x for x <= 88, relative error below 3e-7; exactly 1 at 0, exactly 0 below -87. As
// cpu/vec-inl.h.
WITHY_DEVICE float Exp(float x) {
  const float shifted = Fma(x, 1.44269504088896341f, 12582912.0f);
  const float n = shifted - 12582912.0f;
  float r = Fma(n, -0.693359375f, x);
  r = Fma(n, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = Fma(p, r, 1.3981999507e-3f);
  p = Fma(p, r, 8.3334519073e-3f);
  p = Fma(p, r, 4.1665795894e-2f);
  p = Fma(p, r, 1.6666665459e-1f);
  p = Fma(p, r, 5.0000001201e-1f);
  p = Fma(p * r, r, r) + 1.0f;
  const uint32_t bits =
      static_cast<uint32_t>(FloatBits(p)) + (static_cast<uint32_t>(FloatBits(shifted)) << 23);
  return x >= -87.0f ? BitsFloat(static_cast<int32_t>(bits)) : 0.0f;
}

}  // namespace withy::engine::WITHY_GPU
