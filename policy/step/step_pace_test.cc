#include "policy/step/step_pace.h"

#include <gtest/gtest.h>

namespace withy::policy {
namespace {

TEST(StepPaceEstimateTest, TellsWhatTheRestTakes) {
  StepPaceEstimate step;
  EXPECT_EQ(step.next_look(), 0.04);
  step.Look(0.04, 3);  // with what comes before the first layer
  EXPECT_EQ(step.WholeMs(), 0) << "not known";
  step.Look(0.08, 4);
  step.Look(0.12, 9);  // somebody had the core for 4 ms
  EXPECT_EQ(step.next_look(), 0.16);
  step.Look(0.16, 10);
  EXPECT_EQ(step.next_look(), 1);
  EXPECT_NEAR(step.WholeMs(), 25, 1e-9);
  EXPECT_NEAR(step.LeftMs(), 21, 1e-9);
}

TEST(StepPaceEstimateTest, LayersMayBeLongerThanTheSpaceBetweenLooks) {
  StepPaceEstimate step;
  step.Look(0.13, 2);
  EXPECT_EQ(step.next_look(), 0.16);
  step.Look(0.25, 3.2);
  EXPECT_EQ(step.next_look(), 1);
  EXPECT_EQ(step.WholeMs(), 0) << "one time between looks may be a moment without a core";
  StepPaceEstimate two;
  two.Look(0.07, 1);
  two.Look(0.14, 1.7);
  two.Look(0.21, 6);
  EXPECT_EQ(two.next_look(), 1);
  EXPECT_NEAR(two.WholeMs(), 10, 1e-9) << "the lower one";
  StepPaceEstimate shallow;
  shallow.Look(0.5, 2);
  EXPECT_EQ(shallow.next_look(), 1);
  EXPECT_EQ(shallow.WholeMs(), 0) << "one look tells nothing";
}

}  // namespace
}  // namespace withy::policy
