// Which chunks of a context always keep 8 bits. context_store does so with idle contexts, and
// measurements of formats do as it does.
#pragma once

#include <cstdint>

namespace withy::engine {

// At either end: the first ones, which all later tokens attend to, and the latest ones.
inline constexpr int32_t kExactChunks = 2;

}  // namespace withy::engine
