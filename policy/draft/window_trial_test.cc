#include "policy/draft/window_trial.h"

#include <gtest/gtest.h>

namespace withy::policy {
namespace {

// Steps with windows of the last `count`, where a step takes `open_ms` with them and `closed_ms`
// without.
int OpenSteps(WindowTrial* trial, int count, double open_ms, double closed_ms) {
  int open = 0;
  for (int i = 0; i < count; ++i) {
    const bool was_open = trial->open();
    open += was_open ? 1 : 0;
    trial->OnStep(was_open, 3, was_open ? open_ms : closed_ms, 10);
  }
  return open;
}

TEST(WindowTrialTest, TheBetterWayIsUsedNineTimesOfTen) {
  for (const bool open_is_better : {true, false}) {
    WindowTrial trial;
    EXPECT_TRUE(trial.open()) << "windows are tried first";
    OpenSteps(&trial, 60, open_is_better ? 10 : 12, 11);
    const int open = OpenSteps(&trial, 1000, open_is_better ? 10 : 12, 11);
    EXPECT_GT(open_is_better ? open : 1000 - open, 900);
    EXPECT_LT(open_is_better ? open : 1000 - open, 1000) << "the other is tried again";
  }
}

TEST(WindowTrialTest, NoticesWhenTheOtherWayHasBecomeBetter) {
  WindowTrial trial;
  OpenSteps(&trial, 500, 10, 11);
  OpenSteps(&trial, 1500, 13, 11);
  EXPECT_LT(OpenSteps(&trial, 1000, 13, 11), 150);
}

TEST(WindowTrialTest, StepsOfUnknownTimeTellNothing) {
  WindowTrial trial;
  for (int i = 0; i < 100; ++i) trial.OnStep(true, 3, 10, 0);
  EXPECT_TRUE(trial.open());
}

}  // namespace
}  // namespace withy::policy
