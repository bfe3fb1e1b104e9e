#include "policy/call/agreement.h"

#include <gtest/gtest.h>

namespace withy::policy {
namespace {

TEST(AgreementTest, WhatIsKnownBeforeHoldsUntilAnswersSpeak) {
  Agreement agreement;
  EXPECT_EQ(agreement.Expect(20, 0.8, 0.9), 0.8);
  agreement.Learn(20, false);
  EXPECT_DOUBLE_EQ(agreement.Expect(20, 0.8, 0.9), 4 * 0.8 / 5);
  EXPECT_EQ(agreement.Expect(30, 0.8, 0.9), 0.8) << "of another level nothing is said";
  for (int i = 0; i < 60; ++i) agreement.Learn(30, true);
  EXPECT_NEAR(agreement.Expect(30, 0.3, 0.9), 0.9, 0.04) << "as right as the full model";
  EXPECT_EQ(agreement.Expect(30, 0, 0), 0) << "not known how often that one is right";
}

TEST(AgreementTest, OldAnswersFade) {
  Agreement agreement;
  for (int i = 0; i < 1000; ++i) agreement.Learn(20, true);
  for (int i = 0; i < 200; ++i) agreement.Learn(20, false);
  EXPECT_LT(agreement.Expect(20, 0.5, 1), 0.08);
}

}  // namespace
}  // namespace withy::policy
