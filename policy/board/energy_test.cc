// Energy of calls and the heat limit.
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "policy/board/energy_ledger.h"
#include "policy/board/thermal_limit.h"
#include "policy/constants.h"

namespace withy::policy {
namespace {

constexpr int64_t kSecond = kNanosPerSecond;

TEST(EnergyLedgerTest, ACallIsChargedWithWhatTheBoardDrawsMeanwhile) {
  EnergyLedger ledger;
  ledger.Read(100, 1 * kSecond);
  ledger.Begin(1, 105, 2 * kSecond);
  EXPECT_DOUBLE_EQ(ledger.watts(), 5);
  EXPECT_DOUBLE_EQ(ledger.busy_watts(), 5) << "idle power, as long as nothing better is known";
  ledger.Read(125, 3 * kSecond);
  EXPECT_DOUBLE_EQ(ledger.End(1, 145, 4 * kSecond), 40);
  EXPECT_DOUBLE_EQ(ledger.busy_watts(), 20);
  EXPECT_DOUBLE_EQ(ledger.End(1, 150, 5 * kSecond), 0) << "has ended";
}

TEST(EnergyLedgerTest, TheSumOfAllChargesIsWhatWasDrawnWhileCallsRan) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  EnergyLedger ledger;
  std::set<uint64_t> running;
  double joules = 0, busy = 0, charged = 0;
  int64_t now = kSecond;
  ledger.Read(joules, now);
  for (uint64_t step = 1; step <= 2000; ++step) {
    const double grown = static_cast<double>(random() % 1000) / 100;
    joules += grown;
    now += 1 + random() % kSecond;
    if (!running.empty()) busy += grown;
    const bool begins = running.empty() || random() % 2 == 0;
    if (begins) {
      ledger.Begin(step, joules, now);
      running.insert(step);
    } else {
      charged += ledger.End(*running.begin(), joules, now);
      running.erase(running.begin());
    }
  }
  for (const uint64_t call : running) charged += ledger.End(call, joules, now);
  EXPECT_NEAR(charged, busy, 1e-6 * busy);
}

TEST(EnergyLedgerTest, ACallThatYieldsIsChargedWhileNoOtherRuns) {
  EnergyLedger ledger;
  ledger.Begin(1, 100, 1 * kSecond, /*yields=*/true);
  ledger.Begin(2, 110, 2 * kSecond);
  EXPECT_DOUBLE_EQ(ledger.End(2, 150, 3 * kSecond), 40) << "all of it: the other computed nothing";
  ledger.Begin(3, 153, 4 * kSecond, /*yields=*/true);
  EXPECT_DOUBLE_EQ(ledger.End(1, 163, 5 * kSecond), 10 + 3 + 5);
  EXPECT_DOUBLE_EQ(ledger.End(3, 163, 6 * kSecond), 5);
}

TEST(EnergyLedgerTest, AMeterThatFallsChargesNothing) {
  EnergyLedger ledger;
  ledger.Begin(1, 50, kSecond);
  ledger.Read(10, 2 * kSecond);
  EXPECT_DOUBLE_EQ(ledger.End(1, 51, 3 * kSecond), 1);
}

TEST(ThermalLimitTest, StepsDownNearTheTripPointAndBackWhenItIsCooler) {
  const std::vector<uint32_t> levels = {40, 60, 80, 100};
  ThermalLimit limit;
  limit.Observe(std::numeric_limits<double>::infinity(), 1);
  EXPECT_EQ(limit.MostLevel(levels), 100u);
  int64_t now = kSecond;
  limit.Observe(kThermalMarginCelsius - 1, now);
  EXPECT_EQ(limit.MostLevel(levels), 80u) << "at once";
  limit.Observe(kThermalMarginCelsius - 2, now + kThermalStepNs - 1);
  EXPECT_EQ(limit.MostLevel(levels), 80u) << "the step has to show first";
  for (int i = 0; i < 40; ++i) limit.Observe(1, now += kThermalStepNs);
  EXPECT_EQ(limit.MostLevel(levels), 40u) << "the lowest is always left";
  EXPECT_EQ(limit.MostLevel({100}), 100u);
  const uint32_t steps = limit.steps();
  limit.Observe(kThermalMarginCelsius + 1, now += kThermalStepNs);
  EXPECT_EQ(limit.steps(), steps) << "hysteresis";
  for (uint32_t i = 0; i < steps; ++i) limit.Observe(30, now += kThermalStepNs);
  EXPECT_EQ(limit.MostLevel(levels), 100u);
}

}  // namespace
}  // namespace withy::policy
