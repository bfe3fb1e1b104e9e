// How often an answer's text is sent to its app. A message passes three processes. That takes about
// as long as a token of a small model, on the cores that compute.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace withy {

// Tokens made within this time after a delta may wait for the next one. Text that grows thirty
// times a second still looks continuous.
inline constexpr int64_t kDeltaIntervalNs = 33 * kNanosPerMilli;

}  // namespace withy
