// How often an app is told how its answer goes on. A message passes three processes, which takes
// about as long as a small model's token and takes it from the cores that compute.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace withy {

// What follows a delta within so long may come with the next one. A display shows 60 pictures a
// second.
inline constexpr int64_t kDeltaIntervalNs = 16 * kNanosPerMilli;

}  // namespace withy
