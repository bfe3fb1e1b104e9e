// How often an app is told how its answer goes on. A message passes three processes, which takes
// about as long as a small model's token and takes it from the cores that compute.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace withy {

// What follows a delta within so long may come with the next one: text that grows thirty times a
// second is not seen to stop.
inline constexpr int64_t kDeltaIntervalNs = 33 * kNanosPerMilli;

}  // namespace withy
