// Kernels for aarch64 with products of byte matrices (FEAT_I8MM) beside dot products. Two or four
// rows multiply quantised weights, and as many queries multiply keys at 8 bits, as matrices; one or
// three use dot products. Weights and keys are the unsigned operand, rows and queries the signed
// one. Compiled with both extensions; nothing here runs before NeonI8mmKernels() has checked the
// CPU.
#include <arm_neon.h>
#include <sys/auxv.h>

#define WITHY_TARGET neon_i8mm
#define WITHY_MATRIX_SUMS  // for matrix products and attention

namespace withy::engine::neon_i8mm {

inline constexpr bool kQ8Signed = false;
using Bytes = uint8x16_t;
inline __attribute__((always_inline)) int32x4_t DotWeights(int32x4_t acc, Bytes w, int8x16_t a) {
  return vusdotq_s32(acc, w, a);
}

}  // namespace withy::engine::neon_i8mm

// clang-format off
#include "engine/cpu/neon/neon-inl.h"
// clang-format on
#include "engine/cpu/kernels.h"
#include "engine/cpu/targets.h"

namespace withy::engine::neon_i8mm {

// Sums of 16 outputs and T rows as the instruction has them: vector n of a pair of rows holds
// outputs 2n and 2n + 1, [of the first row, of the second, of the first, of the second].
template <int T>
struct MatrixSums {
  int32x4_t of[T / 2][8];

  WITHY_INLINE explicit MatrixSums(const I16* rows) {
#pragma GCC unroll 4
    for (int pair = 0; pair < T / 2; ++pair) {
      WITHY_EACH_PART {
        const int32x4_t first = (int32x4_t)rows[2 * pair].part[i];
        const int32x4_t second = (int32x4_t)rows[2 * pair + 1].part[i];
        of[pair][2 * i] = vzip1q_s32(first, second);
        of[pair][2 * i + 1] = vzip2q_s32(first, second);
      }
    }
  }
  WITHY_INLINE void Store(I16* rows) const {
#pragma GCC unroll 4
    for (int pair = 0; pair < T / 2; ++pair) {
      WITHY_EACH_PART {
        const int32x4_t low = of[pair][2 * i];
        const int32x4_t high = of[pair][2 * i + 1];
        rows[2 * pair].part[i] = (NativeI)vuzp1q_s32(low, high);
        rows[2 * pair + 1].part[i] = (NativeI)vuzp2q_s32(low, high);
      }
    }
  }
  // Adds the products of eight inputs of outputs 2n and 2n + 1.
  WITHY_INLINE void Add(int n, Bytes w, const int8x16_t (&a)[T / 2]) {
#pragma GCC unroll 4
    for (int pair = 0; pair < T / 2; ++pair) {
      of[pair][n] = vusmmlaq_s32(of[pair][n], w, a[pair]);
    }
  }
};

// Eight inputs, from input `at` on, of each pair of rows.
template <int T>
struct RowPairs {
  int8x16_t of[T / 2];

  WITHY_INLINE RowPairs(const int8_t* const* a, int at) {
#pragma GCC unroll 4
    for (int pair = 0; pair < T / 2; ++pair) {
      of[pair] = vcombine_s8(vld1_s8(a[2 * pair] + at), vld1_s8(a[2 * pair + 1] + at));
    }
  }
};

// Part i of two lines, which have four inputs of each output: outputs 4i and 4i + 1, then 4i + 2
// and 4i + 3, with the inputs of both lines.
struct OutputPairs {
  uint8x16_t of[2];

  WITHY_INLINE OutputPairs(const uint8_t* lines, int i) {
    const uint32x4_t first = vreinterpretq_u32_u8(vld1q_u8(lines + 16 * i));
    const uint32x4_t second = vreinterpretq_u32_u8(vld1q_u8(lines + 64 + 16 * i));
    of[0] = vreinterpretq_u8_u32(vzip1q_u32(first, second));
    of[1] = vreinterpretq_u8_u32(vzip2q_u32(first, second));
  }
};

// Adds the products of `inputs` bytes (a multiple of 8) of 16 outputs, four inputs a line, and T
// rows.
template <int T>
WITHY_INLINE void AddQ8(const uint8_t* w, const int8_t* const* a, int inputs, I16* rows) {
  MatrixSums<T> sums(rows);
#pragma GCC unroll 4
  for (int at = 0; at < inputs; at += 8) {
    const RowPairs<T> x(a, at);
    WITHY_EACH_PART {
      const OutputPairs pairs(w + 16 * at, i);
      sums.Add(2 * i, pairs.of[0], x.of);
      sums.Add(2 * i + 1, pairs.of[1], x.of);
    }
  }
  sums.Store(rows);
}

// The same of a block of nibbles, whose line j has inputs 4j to 4j + 3 in the lower ones and the
// inputs that are 16 further on in the upper ones.
template <WeightType kType, int T>
WITHY_INLINE void AddNibbles(const uint8_t* w, const int8_t* const* a, I16* rows) {
  MatrixSums<T> sums(rows);
#pragma GCC unroll 2
  for (int at = 0; at < 16; at += 8) {
    const RowPairs<T> x(a, at);
    const RowPairs<T> further(a, at + 16);
    WITHY_EACH_PART {
      const OutputPairs pairs(w + 16 * at, i);
      sums.Add(2 * i, Low<kType>(pairs.of[0]), x.of);
      sums.Add(2 * i + 1, Low<kType>(pairs.of[1]), x.of);
      sums.Add(2 * i, High<kType>(pairs.of[0]), further.of);
      sums.Add(2 * i + 1, High<kType>(pairs.of[1]), further.of);
    }
  }
  sums.Store(rows);
}

// Two matrix products have the 64 multiply-adds of a step; the other lanes are not used.
inline constexpr int kPeakChains = 12;
WITHY_INLINE I16 PeakStep(I16 acc, const PeakBytes& w) {
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    acc.part[i] =
        (NativeI)vusmmlaq_s32((int32x4_t)acc.part[i], w.part[i], vreinterpretq_s8_u8(w.part[i]));
  }
  return acc;
}

}  // namespace withy::engine::neon_i8mm

// clang-format off
#include "engine/cpu/quant_strip-inl.h"
#include "engine/cpu/rotate-inl.h"
#include "engine/cpu/elementwise-inl.h"
#include "engine/cpu/matmul-inl.h"
#include "engine/cpu/attention-inl.h"
#include "engine/cpu/ceilings-inl.h"
// clang-format on

namespace withy::engine {

const Kernels* NeonI8mmKernels() {
  static constexpr Kernels kTable = {
      Target::kNeonI8mm,  "neon-i8mm",          neon_i8mm::Prepare,
      neon_i8mm::MatMul,  neon_i8mm::Attention, neon_i8mm::MergeAttention,
      neon_i8mm::WriteKv, neon_i8mm::RmsNorm,   neon_i8mm::Rope,
      neon_i8mm::SwiGlu,  neon_i8mm::GeGlu,     neon_i8mm::ClampedSwiGlu,
      neon_i8mm::SoftCap, neon_i8mm::Add,       neon_i8mm::AddScaled,
      neon_i8mm::Dot,     neon_i8mm::CutOff,    neon_i8mm::AddLowRank,
      neon_i8mm::Softmax, neon_i8mm::PeakLoop,  neon_i8mm::ReadLoop};
  static const bool kSupported =
      (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
  return kSupported ? &kTable : nullptr;
}

}  // namespace withy::engine
