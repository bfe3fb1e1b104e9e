#include "base/ticks.h"

#include <sched.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace withy {
namespace {

// The rate is measured over at least this time; both readings are exact to tens of nanoseconds.
constexpr int64_t kRateNs = 2'000'000;

bool CounterIsInvariant() {
#if defined(__x86_64__)
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(0x80000007, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1u << 8)) != 0) return true;
  // A hypervisor may hide the flag; a kernel that keeps time by the counter has checked it.
  std::ifstream source("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string name;
  return static_cast<bool>(source >> name) && name == "tsc";
#elif defined(__aarch64__)
  return true;  // by the architecture
#else
  return false;
#endif
}

// Readings on each core that the process may use, the first core again last.
std::vector<ClockPair> ReadOnAllCores() {
  std::vector<ClockPair> readings;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const bool known = sched_getaffinity(0, sizeof allowed, &allowed) == 0;
  const auto read_on = [&](int core) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<size_t>(core), &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0) readings.push_back(ReadClockPair());
  };
  int first = -1;
  for (int core = 0; known && core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(static_cast<size_t>(core), &allowed)) continue;
    if (first < 0) first = core;
    read_on(core);
  }
  if (readings.empty()) readings.push_back(ReadClockPair());
  while (SteadyNowNs() - readings.front().steady_ns < kRateNs) std::this_thread::yield();
  if (first >= 0) {
    read_on(first);
  } else {
    readings.push_back(ReadClockPair());
  }
  return readings;
}

}  // namespace

std::string_view CounterFaultName(CounterFault fault) {
  switch (fault) {
    case CounterFault::kNone:
      return "none";
    case CounterFault::kNotInvariant:
      return "not invariant";
    case CounterFault::kStandsStill:
      return "stands still";
    case CounterFault::kCoresDiffer:
      return "cores differ";
  }
  return "unknown";
}

ClockPair ReadClockPair() {
  constexpr int kTries = 8;
  ClockPair best;
  int64_t closest = INT64_MAX;
  for (int i = 0; i < kTries; ++i) {
    const int64_t before = SteadyNowNs();
    const int64_t ticks = ReadCounter();
    const int64_t after = SteadyNowNs();
    if (after - before >= closest) continue;
    closest = after - before;
    best = {ticks, before + (after - before) / 2};
  }
  return best;
}

CounterFault JudgeCounter(std::span<const ClockPair> readings) {
  if (readings.size() < 2) return CounterFault::kStandsStill;
  const ClockPair& first = readings.front();
  const ClockPair& last = readings.back();
  if (last.ticks <= first.ticks || last.steady_ns <= first.steady_ns) {
    return CounterFault::kStandsStill;
  }
  const double ns_per_tick = static_cast<double>(last.steady_ns - first.steady_ns) /
                             static_cast<double>(last.ticks - first.ticks);
  for (const ClockPair& reading : readings) {
    const double ns = static_cast<double>(reading.ticks - first.ticks) * ns_per_tick;
    const double off = ns - static_cast<double>(reading.steady_ns - first.steady_ns);
    if (off > kCounterToleranceNs || off < -kCounterToleranceNs) return CounterFault::kCoresDiffer;
  }
  return CounterFault::kNone;
}

CounterFault CheckCounter() {
  static const CounterFault fault = [] {
    if (!CounterIsInvariant()) return CounterFault::kNotInvariant;
    CounterFault judged = CounterFault::kStandsStill;
    // On a thread of its own, which moves from core to core. A reading that was interrupted looks
    // like a core that differs, so a fault is looked at twice.
    std::thread([&judged] {
      for (int i = 0; i < 2 && judged != CounterFault::kNone; ++i) {
        judged = JudgeCounter(ReadOnAllCores());
      }
    }).join();
    return judged;
  }();
  return fault;
}

}  // namespace withy
