// Kernels for aarch64 with the dot-product extension (FEAT_DotProd). Weights become signed bytes
// when they are loaded. Compiled with that extension; nothing here runs before NeonDotKernels() has
// checked the CPU.
#include <arm_neon.h>
#include <sys/auxv.h>

#define WITHY_TARGET neon

namespace withy::engine::neon {

inline constexpr bool kQ8Signed = true;
using Bytes = int8x16_t;
inline __attribute__((always_inline)) int32x4_t DotWeights(int32x4_t acc, Bytes w, int8x16_t a) {
  return vdotq_s32(acc, w, a);
}

}  // namespace withy::engine::neon

// clang-format off
#include "engine/cpu/neon/neon-inl.h"
// clang-format on
#include "engine/cpu/kernels.h"
#include "engine/cpu/targets.h"

namespace withy::engine::neon {

inline constexpr int kPeakChains = 6;
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
  static constexpr Kernels kTable = {Target::kNeonDot, "neon-dotprod",  neon::Prepare,
                                     neon::MatMul,     neon::Attention, neon::MergeAttention,
                                     neon::WriteKv,    neon::RmsNorm,   neon::Rope,
                                     neon::SwiGlu,     neon::GeGlu,     neon::ClampedSwiGlu,
                                     neon::SoftCap,    neon::Add,       neon::AddScaled,
                                     neon::Dot,        neon::CutOff,    neon::AddLowRank,
                                     neon::Softmax,    neon::PeakLoop,  neon::ReadLoop};
  static const bool kSupported = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return kSupported ? &kTable : nullptr;
}

}  // namespace withy::engine
