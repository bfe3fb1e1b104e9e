#include "telemetry/tick_converter.h"

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace withy::telemetry {
namespace {

constexpr double kTicksPerNs = 2.7;
constexpr int64_t kMilli = 1'000'000;

// A counter whose rate against steady_clock drifts by at most 500 ppm.
class DriftingCounter {
 public:
  explicit DriftingCounter(uint32_t seed) : random_(seed) {}
  ClockPair Advance(int64_t ns) {
    rate_ = kTicksPerNs * (1 + std::uniform_real_distribution(-5e-4, 5e-4)(random_));
    now_.ticks += std::llround(static_cast<double>(ns) * rate_);
    now_.steady_ns += ns;
    return now_;
  }
  const ClockPair& now() const { return now_; }

 private:
  std::mt19937 random_;
  double rate_ = kTicksPerNs;
  ClockPair now_{1'000'000, 5'000'000'000};
};

TEST(TickConverterTest, ADriftingCounterIsFollowed) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  DriftingCounter counter(seed);
  TickConverter converter;
  converter.Add(counter.now());
  std::vector<ClockPair> readings = {counter.now()};
  for (int i = 0; i < 300; ++i) {
    readings.push_back(counter.Advance((1 + i % 60) * kMilli));
    EXPECT_FALSE(converter.Add(readings.back()).has_value());
  }
  for (const ClockPair& reading : readings) {
    const auto ns = converter.Nanos(reading.ticks);
    ASSERT_TRUE(ns.has_value());
    // Readings closer than 10 ms were left out; between them the rate is off by at most 1,000 ppm.
    EXPECT_NEAR(static_cast<double>(*ns), static_cast<double>(reading.steady_ns), 12'000);
  }
  // Beyond the last reading the last rate goes on.
  const ClockPair later = counter.Advance(kMilli);
  EXPECT_NEAR(static_cast<double>(*converter.Nanos(later.ticks)),
              static_cast<double>(later.steady_ns), 1500);
}

TEST(TickConverterTest, DurationsAreExactBetweenTwoReadings) {
  TickConverter converter;
  converter.Add({0, 0});
  converter.Add({270'000'000, 100 * kMilli});
  EXPECT_EQ(*converter.Nanos(27'000'000) - *converter.Nanos(24'300'000), kMilli);
  EXPECT_EQ(*converter.Nanos(0), 0);
}

TEST(TickConverterTest, NothingIsKnownBeforeTwoReadings) {
  TickConverter converter;
  EXPECT_FALSE(converter.Nanos(5).has_value());
  converter.Add({0, 0});
  EXPECT_FALSE(converter.Nanos(5).has_value());
}

TEST(TickConverterTest, ACounterThatStopsIsToldAndCostsItsTimeOnly) {
  TickConverter converter;
  converter.Add({0, 0});
  converter.Add({270'000'000, 100 * kMilli});
  // It stood still for 900 ms of a second.
  const auto fault = converter.Add({540'000'000, 1100 * kMilli});
  ASSERT_TRUE(fault.has_value());
  EXPECT_NE(fault->find("moved by 270000000 ticks in 1000.000 ms, expected 2700000000"),
            std::string::npos)
      << *fault;
  EXPECT_EQ(converter.faults(), 1u);
  EXPECT_FALSE(converter.Nanos(400'000'000).has_value()) << "when within the fault?";
  EXPECT_EQ(converter.Nanos(135'000'000), 50 * kMilli) << "before it all is known";
  EXPECT_FALSE(converter.Add({810'000'000, 1200 * kMilli}).has_value());
  EXPECT_EQ(converter.Nanos(675'000'000), 1150 * kMilli) << "and after it";
}

TEST(TickConverterTest, ACounterThatJumpsForwardIsTold) {
  TickConverter converter;
  converter.Add({0, 0});
  converter.Add({270'000'000, 100 * kMilli});
  EXPECT_TRUE(converter.Add({2'700'000'000, 200 * kMilli}).has_value());
  EXPECT_FALSE(converter.Add({2'970'000'000, 300 * kMilli}).has_value());
  EXPECT_EQ(converter.faults(), 1u);
}

TEST(TickConverterTest, ACounterThatBeginsAnewForgetsWhatWasBefore) {
  TickConverter converter;
  converter.Add({500'000'000, 0});
  converter.Add({770'000'000, 100 * kMilli});
  EXPECT_TRUE(converter.Add({1000, 200 * kMilli}).has_value());
  EXPECT_FALSE(converter.Nanos(600'000'000).has_value());
  EXPECT_FALSE(converter.Add({270'001'000, 300 * kMilli}).has_value());
  EXPECT_EQ(converter.Nanos(270'001'000), 300 * kMilli);
  EXPECT_EQ(converter.Nanos(135'001'000), 250 * kMilli);
}

TEST(TickConverterTest, ReadingsAreBounded) {
  TickConverter converter;
  for (int64_t i = 0; i < 5000; ++i) converter.Add({i * 27'000'000, i * 10 * kMilli});
  EXPECT_EQ(converter.faults(), 0u);
  EXPECT_EQ(converter.Nanos(0), 0) << "extrapolated";
}

}  // namespace
}  // namespace withy::telemetry
