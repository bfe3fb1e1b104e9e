#include "base/clock.h"

#include <ctime>

namespace withy {
namespace {

int64_t Read(clockid_t id) {
  timespec now{};
  clock_gettime(id, &now);
  return now.tv_sec * kNanosPerSecond + now.tv_nsec;
}

class RealClock final : public Clock {
 public:
  int64_t SteadyNanos() const override { return Read(CLOCK_MONOTONIC); }
  int64_t UnixNanos() const override { return Read(CLOCK_REALTIME); }
};

}  // namespace

Clock& Clock::Real() {
  static RealClock clock;
  return clock;
}

}  // namespace withy
