// The CUDA body of device-inl.cuh.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#define WITHY_GPU gpu
#define WITHY_DEVICE __device__ __forceinline__
#define WITHY_GLOBAL __global__
#define WITHY_THREADS(n) __launch_bounds__(n, 1)
// Registers for at least `blocks` thread blocks on a multiprocessor.
#define WITHY_BLOCKS(threads, blocks) __launch_bounds__(threads, blocks)

namespace withy::engine::gpu {

struct alignas(16) Words4 {
  uint32_t w[4];
};
struct alignas(8) Words2 {
  uint32_t w[2];
};

WITHY_DEVICE int ThreadX() { return static_cast<int>(threadIdx.x); }
WITHY_DEVICE int BlockX() { return static_cast<int>(blockIdx.x); }
WITHY_DEVICE int BlockY() { return static_cast<int>(blockIdx.y); }
WITHY_DEVICE int BlockZ() { return static_cast<int>(blockIdx.z); }

// The next kernel of the stream may start its blocks beside this one's. Called first by kernels
// that are launched early (launch.h).
WITHY_DEVICE void LetNextStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// Returns once the kernel before this one has ended and what it wrote can be read. Before it a
// kernel reads weights and pass data only.
WITHY_DEVICE void WaitForPrior() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Nanoseconds of a clock that runs on while the GPU is idle; it moves in steps.
WITHY_DEVICE uint64_t GlobalTimer() {
  uint64_t ns;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
  return ns;
}

WITHY_DEVICE void SyncBlock() { __syncthreads(); }
WITHY_DEVICE void SyncWarp() { __syncwarp(); }

WITHY_DEVICE uint8_t* SharedMemory() {
  extern __shared__ __align__(128) uint8_t withy_shared[];
  return withy_shared;
}
template <typename T>
WITHY_DEVICE T LoadShared(const T* p) {
  return *p;
}
template <typename T>
WITHY_DEVICE void StoreShared(T* p, T v) {
  *p = v;
}

// Global memory. LoadConst: not written while the kernel runs. No ld.global.nc for it: a kernel
// that starts early may read there what the kernel before it writes. LoadStream: weights, read
// once.
template <typename T>
WITHY_DEVICE T Load(const T* p) {
  // The compiler makes several loads of the structs. Volatile: none moves to before WaitForPrior.
  if constexpr (std::is_same_v<T, Words4>) {
    Words4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
                 : "l"(p));
    return v;
  } else if constexpr (std::is_same_v<T, Words2>) {
    Words2 v;
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.w[0]), "=r"(v.w[1]) : "l"(p));
    return v;
  } else {
    return *p;
  }
}
template <typename T>
WITHY_DEVICE T LoadConst(const T* p) {
  return Load(p);
}
WITHY_DEVICE Words4 LoadStream(const Words4* p) {
  Words4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.w[0]), "=r"(v.w[1]), "=r"(v.w[2]), "=r"(v.w[3])
               : "l"(p));
  return v;
}
// Has the second-level cache load the line of p.
WITHY_DEVICE void Prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
template <typename T>
WITHY_DEVICE void Store(T* p, T v) {
  if constexpr (std::is_same_v<T, Words4>) {  // the compiler makes several stores of it
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(p), "r"(v.w[0]), "r"(v.w[1]), "r"(v.w[2]), "r"(v.w[3])
                 : "memory");
  } else if constexpr (std::is_same_v<T, Words2>) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};"
                 :
                 : "l"(p), "r"(v.w[0]), "r"(v.w[1])
                 : "memory");
  } else {
    *p = v;
  }
}

template <typename T>
WITHY_DEVICE T Shuffle(T v, int lane) {
  return __shfl_sync(0xffffffffu, v, lane);
}
template <typename T>
WITHY_DEVICE T ShuffleXor(T v, int distance) {
  return __shfl_xor_sync(0xffffffffu, v, distance);
}
WITHY_DEVICE uint32_t Ballot(bool v) { return __ballot_sync(0xffffffffu, v); }

// c + the sum of four products of signed bytes.
WITHY_DEVICE int32_t Dp4a(uint32_t a, uint32_t b, int32_t c) {
  return __dp4a(static_cast<int>(a), static_cast<int>(b), c);
}
// c += A * B, A [16, 32] and B [32, 8] of signed bytes, in the fragments of mma.m16n8k32.s8.
WITHY_DEVICE void MmaS8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

WITHY_DEVICE float Fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
WITHY_DEVICE float Divide(float a, float b) { return __fdiv_rn(a, b); }
WITHY_DEVICE float SquareRoot(float a) { return __fsqrt_rn(a); }
WITHY_DEVICE float Max(float a, float b) { return a > b ? a : b; }
WITHY_DEVICE float Abs(float a) { return fabsf(a); }
WITHY_DEVICE int32_t FloatBits(float v) { return __float_as_int(v); }
WITHY_DEVICE float BitsFloat(int32_t v) { return __int_as_float(v); }
WITHY_DEVICE float HalfFloat(uint16_t v) { return __half2float(__ushort_as_half(v)); }
WITHY_DEVICE uint16_t FloatHalf(float v) { return __half_as_ushort(__float2half_rn(v)); }
// Two of them, `low` in the low half.
WITHY_DEVICE uint32_t HalfPair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

// Sum and maximum over a warp, in all lanes. Order of the additions: lanes 16 apart first.
WITHY_DEVICE float WarpSum(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += ShuffleXor(v, d);
  return v;
}
WITHY_DEVICE int32_t WarpSum(int32_t v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v += ShuffleXor(v, d);
  return v;
}
WITHY_DEVICE float WarpMax(float v) {
#pragma unroll
  for (int d = 16; d > 0; d /= 2) v = Max(v, ShuffleXor(v, d));
  return v;
}

}  // namespace withy::engine::gpu
