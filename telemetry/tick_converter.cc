#include "telemetry/tick_converter.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"

namespace withy::telemetry {

std::optional<std::string> TickConverter::Add(const ClockPair& reading) {
  if (readings_.empty()) {
    Restart(reading, /*keep=*/false);
    return std::nullopt;
  }
  const ClockPair& last = readings_.back().clocks;
  const auto ticks = static_cast<double>(reading.ticks - last.ticks);
  const auto ns = static_cast<double>(reading.steady_ns - last.steady_ns);
  if (ns < 0) return std::nullopt;  // not in the order of time
  const double expected = ns_per_tick_ > 0 ? ns / ns_per_tick_ : 0;
  const double tolerance =
      ns_per_tick_ > 0 ? (kReadingErrorNs + kRateTolerance * ns) / ns_per_tick_ : 0;
  const bool backwards = ticks < 0 || (ticks == 0 && ns > kReadingErrorNs);
  if (backwards || (ns_per_tick_ > 0 && std::abs(ticks - expected) > tolerance)) {
    ++faults_;
    // Ticks that were used before would be ambiguous.
    Restart(reading, /*keep=*/ticks >= 0);
    return absl::StrFormat("the processor's counter moved by %.0f ticks in %.3f ms, expected %.0f",
                           ticks, ns * 1e-6, expected);
  }
  readings_.push_back({reading, false});
  Thin();
  const size_t n = readings_.size();
  const Reading& before = readings_[n - 2];
  const int64_t apart_ns = reading.steady_ns - before.clocks.steady_ns;
  if (apart_ns >= kRateNs && reading.ticks > before.clocks.ticks) {
    ns_per_tick_ =
        static_cast<double>(apart_ns) / static_cast<double>(reading.ticks - before.clocks.ticks);
  }
  return std::nullopt;
}

void TickConverter::Restart(const ClockPair& reading, bool keep) {
  const bool after_fault = !readings_.empty();
  if (!keep) readings_.clear();
  readings_.push_back({reading, after_fault});
  ns_per_tick_ = 0;  // the rate may be another one
}

// Leaves out the reading before the last where it is close to the one before it.
void TickConverter::Thin() {
  const size_t n = readings_.size();
  if (n >= 3 && !readings_[n - 2].after_fault &&
      readings_[n - 2].clocks.steady_ns - readings_[n - 3].clocks.steady_ns < kRateNs) {
    readings_.erase(readings_.end() - 2);
  }
  if (readings_.size() > kMaxReadings) readings_.pop_front();
}

std::optional<int64_t> TickConverter::Nanos(int64_t ticks) const {
  if (readings_.size() < 2) return std::nullopt;
  // Most times lie behind the reading before the last.
  auto after = readings_.end() - 1;
  if (ticks < (after - 1)->clocks.ticks) {
    after = std::upper_bound(
        readings_.begin(), readings_.end(), ticks,
        [](int64_t value, const Reading& reading) { return value < reading.clocks.ticks; });
  } else if (ticks >= after->clocks.ticks) {
    after = readings_.end();
  }
  const bool before_all = after == readings_.begin();
  if (after == readings_.end() || before_all) {
    after = before_all ? readings_.begin() + 1 : readings_.end() - 1;
  }
  if (after->after_fault || (before_all && readings_.front().after_fault)) return std::nullopt;
  const ClockPair& from = (after - 1)->clocks;
  const ClockPair& to = after->clocks;
  if (to.ticks == from.ticks) return from.steady_ns;
  const double ns_per_tick = static_cast<double>(to.steady_ns - from.steady_ns) /
                             static_cast<double>(to.ticks - from.ticks);
  return from.steady_ns + std::llround(static_cast<double>(ticks - from.ticks) * ns_per_tick);
}

}  // namespace withy::telemetry
