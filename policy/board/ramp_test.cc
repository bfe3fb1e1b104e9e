#include "policy/board/ramp.h"

#include "gtest/gtest.h"

namespace withy::policy {
namespace {

TEST(RampTest, AnswersOfOneLengthSayNothingOfTheirFirstSteps) {
  Ramp ramp;
  EXPECT_EQ(ramp.Steps(), 0);
  for (int i = 0; i < 100; ++i) ramp.Observe(4, 6);
  EXPECT_NEAR(ramp.Steps(), 0, 1e-9);
  for (int i = 0; i < 100; ++i) ramp.Observe(i % 2 == 0 ? 4 : 8, i % 2 == 0 ? 5 : 11);
  EXPECT_EQ(ramp.Steps(), 0) << "later ones are slower: there is no less than none";
  Ramp steep;
  for (int i = 0; i < 200; ++i) steep.Observe(i % 2 == 0 ? 1 : 2, i % 2 == 0 ? 100 : 102);
  EXPECT_EQ(steep.Steps(), 8) << "nor more than eight";
}

}  // namespace
}  // namespace withy::policy
