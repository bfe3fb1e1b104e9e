// The encoder for AVX2 with FMA. Compiled with those flags; nothing here runs before
// Avx2EncodeHead() has checked the CPU.
#include <immintrin.h>

#define WITHY_TARGET kv_avx2
#define WITHY_INLINE inline __attribute__((always_inline))

namespace withy::engine::kv_avx2 {

typedef float NativeF __attribute__((vector_size(32)));
WITHY_INLINE NativeF NativeMulAdd(NativeF a, NativeF b, NativeF c) {
  return _mm256_fmadd_ps(a, b, c);
}
WITHY_INLINE NativeF NativeMax(NativeF a, NativeF b) { return _mm256_max_ps(a, b); }
WITHY_INLINE NativeF NativeMin(NativeF a, NativeF b) { return _mm256_min_ps(a, b); }

}  // namespace withy::engine::kv_avx2

// clang-format off
#include "engine/cpu/vec-inl.h"
#include "engine/kv/encode-inl.h"
// clang-format on
#include "engine/kv/encode_targets.h"

namespace withy::engine {

EncodeHeadFn Avx2EncodeHead() {
  static const bool kSupported = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return kSupported ? kv_avx2::EncodeHead : nullptr;
}

}  // namespace withy::engine
