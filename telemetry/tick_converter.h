// Turns ticks of the processor's counter into nanoseconds of steady_clock. It is told both clocks
// now and then and interpolates between, so that a counter whose rate drifts against steady_clock
// does no harm. A counter that jumps, stops or runs at another speed is noticed: what lies between
// the two readings cannot be converted. Pure. Neighbours: base/ticks.h reads the clocks,
// ring_file.h converts spans.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "base/ticks.h"

namespace withy::telemetry {

// Not thread-safe.
class TickConverter {
 public:
  // steady_clock is corrected by at most 500 ppm; more is a fault of the counter.
  static constexpr double kRateTolerance = 0.002;
  // Readings kept. At one every 50 ms they reach back 50 s; earlier times are extrapolated.
  static constexpr size_t kMaxReadings = 1024;

  // Both clocks now, or when the spans began. Readings must be told in the order of time. Returns a
  // description of a fault of the counter since the reading before, if there was one.
  std::optional<std::string> Add(const ClockPair& reading);

  // `ticks` as nanoseconds of steady_clock; none: the counter had a fault at that time, or nothing
  // is known yet.
  std::optional<int64_t> Nanos(int64_t ticks) const;

  uint64_t faults() const { return faults_; }

 private:
  // Readings at least this far apart tell the counter's rate.
  static constexpr int64_t kRateNs = 10'000'000;
  // How far two readings may be off together.
  static constexpr double kReadingErrorNs = 20'000;

  struct Reading {
    ClockPair clocks;
    bool after_fault;  // nothing is known of the time since the reading before
  };

  void Restart(const ClockPair& reading, bool keep);
  void Thin();

  std::deque<Reading> readings_;
  double ns_per_tick_ = 0;  // 0: not known yet
  uint64_t faults_ = 0;
};

}  // namespace withy::telemetry
