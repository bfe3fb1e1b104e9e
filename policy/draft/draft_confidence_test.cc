#include "policy/draft/draft_confidence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace withy::policy {
namespace {

constexpr DraftOrigin kOrigin{DraftSourceKind::kLookup, 3};

TEST(DraftConfidenceTest, LearnsTheShareOfAcceptedTokens) {
  std::mt19937 random(1);
  for (const double truth : {0.05, 0.4, 0.95}) {
    DraftConfidence confidence;
    double sum = 0;
    for (int i = 0; i < 2000; ++i) {
      confidence.Observe(kOrigin, std::bernoulli_distribution(truth)(random));
      if (i >= 200) sum += confidence.Of(kOrigin) / 1800;
    }
    EXPECT_NEAR(sum, truth, 0.06);
    EXPECT_NE(confidence.Of({DraftSourceKind::kDraft, 3}), confidence.Of(kOrigin));
  }
}

TEST(DraftConfidenceTest, ANewContextBeginsWithWhatTheAppKnows) {
  DraftConfidence app;
  for (int i = 0; i < 200; ++i) app.Observe(kOrigin, false);
  DraftConfidence context;
  EXPECT_LT(context.Of(kOrigin, &app), 0.1);
  for (int i = 0; i < 50; ++i) context.Observe(kOrigin, true);
  EXPECT_GT(context.Of(kOrigin, &app), 0.7) << "its own tokens tell more";
}

TEST(DraftConfidenceTest, LongerMatchesAndHigherProbabilitiesAreSurer) {
  const DraftConfidence confidence;
  double before = 0;
  for (const int32_t length : {3, 4, 5, 7, 9, 13, 20, 24, 40, 50, 64}) {
    const double now =
        confidence.Of({DraftSourceKind::kLookup, DraftConfidence::LookupBin(length)});
    EXPECT_GT(now, before);
    before = now;
  }
  before = 0;
  for (const double p : {0.0, 0.15, 0.3, 0.4, 0.6, 0.8, 0.9, 0.96, 0.99, 0.998, 1.0}) {
    const double now =
        confidence.Of({DraftSourceKind::kPrefix, DraftConfidence::ProbabilityBin(p)});
    EXPECT_GT(now, before);
    before = now;
  }
}

// LLMCad eq. 3.
TEST(FallbackThresholdTest, FallsWhenAllIsRightAndRisesWithWhatIsWrong) {
  FallbackThreshold threshold;
  EXPECT_DOUBLE_EQ(threshold.alpha(), 0.01);
  threshold.OnVerified(5, 5, 0.3);
  EXPECT_DOUBLE_EQ(threshold.alpha(), 0.005);
  threshold.OnVerified(2, 4, 0.25);
  EXPECT_DOUBLE_EQ(threshold.alpha(), 0.01) << "0.005 / 0.25^(2/4)";
  for (int i = 0; i < 100; ++i) threshold.OnVerified(0, 4, 0.1);
  EXPECT_LT(threshold.alpha(), 1) << "a tree may still begin";
  for (int i = 0; i < 100; ++i) threshold.OnVerified(4, 4, 0.1);
  EXPECT_GT(threshold.alpha(), 0);
}

// Eq. 3 in the words of the paper: divided by the confidence of the tokens behind the first wrong
// one. Where all tokens are as sure as each other, that is c for each of them.
TEST(FallbackThresholdTest, DividesByTheConfidenceOfTheWrongTokens) {
  for (const double c : {0.5, 0.8, 0.95}) {
    for (int all = 1; all <= 6; ++all) {
      for (int correct = 0; correct < all; ++correct) {
        FallbackThreshold threshold;
        threshold.OnVerified(correct, all, std::pow(c, all));
        EXPECT_NEAR(threshold.alpha(), std::min(0.9, 0.01 / std::pow(c, all - correct)), 1e-12)
            << correct << " of " << all << " at " << c;
      }
    }
  }
}

}  // namespace
}  // namespace withy::policy
