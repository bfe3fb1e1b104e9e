// Time as an object that tests can replace. Policies take times as arguments; mechanisms hold a
// Clock&.
#pragma once

#include <atomic>
#include <cstdint>

namespace withy {

// Thread-safe. Real() is never destroyed.
class Clock {
 public:
  virtual ~Clock() = default;
  // Nanoseconds of a monotonic clock (CLOCK_MONOTONIC, std::chrono::steady_clock).
  virtual int64_t SteadyNanos() const = 0;
  // Nanoseconds since the Unix epoch.
  virtual int64_t UnixNanos() const = 0;

  static Clock& Real();
};

// A clock that moves only when Advance is called.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t unix_nanos = 1'700'000'000'000'000'000) : unix_nanos_(unix_nanos) {}
  int64_t SteadyNanos() const override { return steady_nanos_.load(); }
  int64_t UnixNanos() const override { return unix_nanos_.load(); }
  void Advance(int64_t nanos) {
    steady_nanos_ += nanos;
    unix_nanos_ += nanos;
  }

 private:
  std::atomic<int64_t> steady_nanos_{1};
  std::atomic<int64_t> unix_nanos_;
};

inline constexpr int64_t kNanosPerMilli = 1'000'000;
inline constexpr int64_t kNanosPerSecond = 1'000'000'000;

inline double Millis(int64_t nanos) { return static_cast<double>(nanos) / kNanosPerMilli; }

inline double MillisUntil(int64_t then_ns, int64_t now_ns) { return Millis(then_ns - now_ns); }

}  // namespace withy
