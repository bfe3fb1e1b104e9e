// The encoder in plain C++, for every machine.
#define WITHY_TARGET kv_portable
#define WITHY_INLINE inline __attribute__((always_inline))

namespace withy::engine::kv_portable {

typedef float NativeF __attribute__((vector_size(16)));
WITHY_INLINE NativeF NativeMulAdd(NativeF a, NativeF b, NativeF c) { return a * b + c; }
WITHY_INLINE NativeF NativeMax(NativeF a, NativeF b) { return a > b ? a : b; }
WITHY_INLINE NativeF NativeMin(NativeF a, NativeF b) { return a < b ? a : b; }

}  // namespace withy::engine::kv_portable

// clang-format off
#include "engine/cpu/vec-inl.h"
#include "engine/kv/encode-inl.h"
// clang-format on
#include "engine/kv/encode_targets.h"

namespace withy::engine {

EncodeHeadFn PortableEncodeHead() { return kv_portable::EncodeHead; }

}  // namespace withy::engine
