#include "policy/draft/speculation_outlook.h"

#include <gtest/gtest.h>

namespace withy::policy {
namespace {

TEST(SpeculationOutlookTest, CountsOnWhatFourOfFiveCallsGain) {
  SpeculationOutlook outlook;
  for (const double speedup : {2.0, 2.0, 2.0}) outlook.Observe(speedup);
  EXPECT_EQ(outlook.Expected(), 1) << "too few calls";
  outlook.Observe(1.5);
  EXPECT_FLOAT_EQ(static_cast<float>(outlook.Expected()), 1.5f);
  for (int i = 0; i < 6; ++i) outlook.Observe(2);
  EXPECT_EQ(outlook.Expected(), 2) << "one of ten calls gained less";
  for (int i = 0; i < 16; ++i) outlook.Observe(1.1);
  EXPECT_FLOAT_EQ(static_cast<float>(outlook.Expected()), 1.1f) << "calls of long ago count";
}

TEST(SpeculationOutlookTest, NeverExpectsALoss) {
  SpeculationOutlook outlook;
  for (int i = 0; i < 8; ++i) outlook.Observe(0.97);
  EXPECT_EQ(outlook.Expected(), 1);
  outlook.Observe(0);
  EXPECT_EQ(outlook.Expected(), 1);
}

}  // namespace
}  // namespace withy::policy
