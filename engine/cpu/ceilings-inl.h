// The loops behind ceilings.h, in a target's own instructions. Included by kernels_*.cc after the
// dot primitives. PeakStep(acc, w) is the target's cheapest 16-lane 8-bit dot step; kPeakChains
// is the number of independent chains that hides its latency.

namespace withy::engine::WITHY_TARGET {

inline int32_t SumInt(I16 v) {
  const I4 lanes = SumLanes({v, v, v, v});
  return lanes[0];
}

// Runs rounds * kPeakChains steps of 64 multiply-adds. Returns the number of operations, two per
// multiply-add.
inline double PeakLoop(int rounds, int32_t* sink) {
  I16 acc[kPeakChains];
#pragma GCC unroll 16
  for (int c = 0; c < kPeakChains; ++c) acc[c] = SplatI(c + sink[0]);
  const PeakBytes w = LoadPeak(sink);
  for (int i = 0; i < rounds; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kPeakChains; ++c) acc[c] = PeakStep(acc[c], w);
  }
  I16 total = acc[0];
#pragma GCC unroll 16
  for (int c = 1; c < kPeakChains; ++c) total = total + acc[c];
  sink[1] = SumInt(total);
  return 128.0 * kPeakChains * rounds;
}

// Reads `bytes` (a multiple of 512) at `p`, which is 64-byte aligned, and requests each cache line
// `ahead` bytes before it is read; 0: leaves that to the processor. Returns a value that depends on
// all bytes, so that the reads are not optimised away.
inline int32_t ReadLoop(const std::byte* p, size_t bytes, size_t ahead) {
  typedef NativeI UnalignedI __attribute__((aligned(4), may_alias));
  constexpr size_t kLine = 64;
  constexpr int kVectors = static_cast<int>(kLine / sizeof(NativeI));  // of a line
  NativeI acc[kVectors] = {};
  for (size_t at = 0; at < bytes; at += 4 * kLine) {
#pragma GCC unroll 4
    for (size_t line = at; line < at + 4 * kLine; line += kLine) {
      if (ahead != 0) __builtin_prefetch(p + line + ahead);
#pragma GCC unroll 4
      for (int i = 0; i < kVectors; ++i) {
        acc[i] |= reinterpret_cast<const UnalignedI*>(p + line)[i];
      }
    }
  }
  int32_t all = 0;
  for (const NativeI& vector : acc) {
    for (int lane = 0; lane < kNativeLanes; ++lane) all |= vector[lane];
  }
  return all;
}

}  // namespace withy::engine::WITHY_TARGET
