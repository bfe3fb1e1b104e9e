// CLOCK_MONOTONIC_RAW, which neither spans nor decisions use: it checks them.
#pragma once

#include <time.h>

#include <cstdint>

namespace withy::bench {

inline int64_t RawNanos() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_RAW, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

}  // namespace withy::bench
