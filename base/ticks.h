// The processor's counter, the cheapest clock there is: the TSC on x86, CNTVCT_EL0 on aarch64. Its
// ticks have no unit here; telemetry/tick_converter.h turns them into nanoseconds of steady_clock.
// Neighbour: clock.h is the clock of decisions.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string_view>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace withy {

// Nanoseconds of steady_clock (CLOCK_MONOTONIC).
inline int64_t SteadyNowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// The counter; nanoseconds of steady_clock where the processor has none that we know. It does not
// wait for earlier instructions: it may be off by a few nanoseconds.
inline int64_t ReadCounter() {
#if defined(__x86_64__)
  return static_cast<int64_t>(__rdtsc());
#elif defined(__aarch64__)
  int64_t ticks;
  asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
  return ticks;
#else
  return SteadyNowNs();
#endif
}

// Name of the counter: "tsc", "cntvct", or "steady_clock" where there is none.
constexpr std::string_view CounterName() {
#if defined(__x86_64__)
  return "tsc";
#elif defined(__aarch64__)
  return "cntvct";
#else
  return "steady_clock";
#endif
}

// What makes the counter useless as a clock. Stored in ring files: values do not change.
enum class CounterFault : uint8_t {
  kNone = 0,
  kNotInvariant = 1,  // its rate follows the core's frequency, or it stops in sleep states
  kStandsStill = 2,   // it did not move, or moved backwards
  kCoresDiffer = 3,   // cores disagree by more than kCounterToleranceNs
};
std::string_view CounterFaultName(CounterFault fault);

// The counter and steady_clock at one moment.
struct ClockPair {
  int64_t ticks = 0;
  int64_t steady_ns = 0;
};

// Reads both, the counter in the middle of two reads of the clock; the closest of several tries.
ClockPair ReadClockPair();

inline constexpr int64_t kCounterToleranceNs = 20'000;

// Judges readings made on several cores, one after the other; the first and the last were made on
// the same core and give the rate.
CounterFault JudgeCounter(std::span<const ClockPair> readings);

// Whether the counter can serve as clock on this machine: asks the processor, and reads it on each
// core that the process may use. Takes milliseconds the first time, then the result is known.
CounterFault CheckCounter();

// Reads either clock. A value; freely copied.
class TickClock {
 public:
  // steady_clock; its ticks are nanoseconds.
  constexpr TickClock() = default;
  static constexpr TickClock Counter() { return TickClock(true); }

  bool is_counter() const { return counter_; }
  int64_t Now() const { return counter_ ? ReadCounter() : SteadyNowNs(); }

 private:
  explicit constexpr TickClock(bool counter) : counter_(counter) {}
  bool counter_ = false;
};

}  // namespace withy
