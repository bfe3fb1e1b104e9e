#include "base/ticks.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace withy {
namespace {

// Readings a millisecond apart, at 3 ticks a nanosecond; `offset_ns` by core, the first again last.
std::vector<ClockPair> Readings(const std::vector<int64_t>& offset_ns) {
  std::vector<ClockPair> readings;
  int64_t steady_ns = 1'000'000'000;
  for (const int64_t offset : offset_ns) {
    readings.push_back({3 * (steady_ns + offset), steady_ns});
    steady_ns += 1'000'000;
  }
  readings.push_back({3 * (steady_ns + offset_ns.front()), steady_ns});
  return readings;
}

TEST(TicksTest, CoresThatAgreeAreFine) {
  EXPECT_EQ(JudgeCounter(Readings({0, 100, -3000, 5})), CounterFault::kNone);
  EXPECT_EQ(JudgeCounter(Readings({0})), CounterFault::kNone);
}

TEST(TicksTest, ACoreThatIsAheadOrBehindIsNoticed) {
  EXPECT_EQ(JudgeCounter(Readings({0, 0, 50'000, 0})), CounterFault::kCoresDiffer);
  EXPECT_EQ(JudgeCounter(Readings({0, -50'000})), CounterFault::kCoresDiffer);
}

TEST(TicksTest, ACounterThatStandsStillOrRunsBackwardsIsNoticed) {
  std::vector<ClockPair> readings = Readings({0, 0});
  readings.back().ticks = readings.front().ticks;
  EXPECT_EQ(JudgeCounter(readings), CounterFault::kStandsStill);
  readings.back().ticks = readings.front().ticks - 1;
  EXPECT_EQ(JudgeCounter(readings), CounterFault::kStandsStill);
  EXPECT_EQ(JudgeCounter({}), CounterFault::kStandsStill);
}

TEST(TicksTest, TheClockOfThisMachineMovesForward) {
  const TickClock clock =
      CheckCounter() == CounterFault::kNone ? TickClock::Counter() : TickClock();
  int64_t last = clock.Now();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = clock.Now();
    ASSERT_GE(now, last);
    last = now;
  }
  EXPECT_EQ(CheckCounter(), CheckCounter());
  EXPECT_FALSE(CounterFaultName(CheckCounter()).empty());
}

}  // namespace
}  // namespace withy
