#include "policy/board/speed_fit.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "policy/constants.h"

namespace withy::policy {
namespace {

constexpr double kShortMs = 2;
constexpr double kBaseMs = 4.5;
constexpr double kDepthMs = 1.4e-3;  // a token

Work At(double depth) { return {kBaseMs, kDepthMs * depth}; }

// A board that takes what its calibration says, times these.
struct Truth {
  double base = 1;
  double depth = 1;
  double constant_ms = 0;
  double Ms(double tokens) const {
    return constant_ms + base * kBaseMs + depth * kDepthMs * tokens;
  }
};

class SpeedFitTest : public testing::Test {
 protected:
  // `calls` of them, each at one of `depths`.
  void See(SpeedFit* fit, const Truth& truth, int calls, const std::vector<double>& depths,
           double noise = 0) {
    std::lognormal_distribution<double> luck(0, noise);
    for (int i = 0; i < calls; ++i) {
      const double depth = depths[random_() % depths.size()];
      const double ms = truth.Ms(depth) * (noise > 0 ? luck(random_) : 1);
      fit->Learn(At(depth), ms, kShortMs, kFitWeight);
    }
  }
  // Predicted by measured.
  static double Share(const SpeedFit& fit, const Truth& truth, double depth) {
    return fit.Ms(At(depth)) / truth.Ms(depth);
  }

  const unsigned seed_ = TestSeed();
  std::mt19937 random_{seed_};
  const testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
};

TEST_F(SpeedFitTest, BeginsWithTheCalibration) {
  const SpeedFit fit;
  EXPECT_DOUBLE_EQ(fit.Ms(At(0)), kBaseMs);
  EXPECT_DOUBLE_EQ(fit.Ms(At(1000)), kBaseMs + 1.4);
}

TEST_F(SpeedFitTest, OneObservationMovesItsOwnPredictionByAFifthOfTheWay) {
  for (const double depth : {0, 100, 2000}) {
    SpeedFit fit;
    See(&fit, {1.2, 1.2}, 1, {depth});
    EXPECT_NEAR(Share(fit, {1.2, 1.2}, depth), (1 + 0.2 * 0.2) / 1.2, 0.002) << depth;
  }
}

// The kind of fault that this is for: a calibration that knows too little of depth.
TEST_F(SpeedFitTest, LongCallsDoNotSpoilShortOnesNorShortOnesLongOnes) {
  for (const double slope : {0.7, 1.3}) {
    const Truth truth{1, slope};
    SpeedFit longs;
    See(&longs, truth, 8, {1900});
    EXPECT_NEAR(Share(longs, truth, 1900), 1, 0.03) << slope;
    EXPECT_NEAR(Share(longs, truth, 14), 1, 0.11) << slope;
    // Once short calls are known, long ones are not their fault.
    SpeedFit both;
    See(&both, truth, 40, {14});
    See(&both, truth, 40, {1900});
    EXPECT_NEAR(Share(both, truth, 14), 1, 0.07) << slope;
    EXPECT_NEAR(Share(both, truth, 1900), 1, 0.01) << slope;
    See(&both, truth, 40, {14});
    EXPECT_NEAR(Share(both, truth, 1900), 1, 0.08) << slope << ": nor forgotten for short ones";
  }
}

TEST_F(SpeedFitTest, ASlowBoardIsSlowAtAllDepths) {
  const Truth truth{1.5, 1.5};
  SpeedFit shorts;
  See(&shorts, truth, 30, {14});
  EXPECT_NEAR(Share(shorts, truth, 1900), 1, 0.06);
  SpeedFit longs;
  See(&longs, truth, 30, {1900});
  EXPECT_GT(Share(longs, truth, 14), 0.8);
}

TEST_F(SpeedFitTest, TellsAllThreeApartFromAMixWithNoise) {
  for (int round = 0; round < 50; ++round) {
    std::uniform_real_distribution<double> ratio(0.7, 1.6);
    const Truth truth{ratio(random_), ratio(random_), ratio(random_) - 0.7};
    SpeedFit fit;
    See(&fit, truth, 150, {14, 200, 900, 1900}, 0.08);
    for (const double depth : {14, 200, 900, 1900}) {
      EXPECT_NEAR(Share(fit, truth, depth), 1, 0.2)
          << "at " << depth << " of " << truth.base << ", " << truth.depth << ", "
          << truth.constant_ms;
    }
  }
}

// Whatever it is told, nothing of it is negative, infinite or beyond the limits, and deeper never
// is faster.
TEST_F(SpeedFitTest, StaysWithinItsLimits) {
  const std::vector<double> measured = {1e-9,
                                        1,
                                        5,
                                        1e12,
                                        0,
                                        -3,
                                        std::numeric_limits<double>::infinity(),
                                        std::numeric_limits<double>::quiet_NaN()};
  for (int round = 0; round < 300; ++round) {
    SpeedFit fit;
    for (int i = 0; i < 200; ++i) {
      const Work work{static_cast<double>(random_() % 50) / 10,
                      static_cast<double>(random_() % 100) / 10};
      fit.Learn(work, measured[random_() % measured.size()], kShortMs,
                random_() % 2 == 0 ? kFitWeight : 0.5);
      for (const double value : {fit.ratio(), fit.depth_ratio()}) {
        ASSERT_GE(value, 1 / kMaxRatio);
        ASSERT_LE(value, kMaxRatio);
      }
      ASSERT_TRUE(fit.constant_ms() >= 0 && std::isfinite(fit.constant_ms()));
      ASSERT_GE(fit.Ms({1, 2}), fit.Ms({1, 1}));
    }
  }
}

TEST_F(SpeedFitTest, ANeighbourThatHasGoneIsForgottenWithinTwoDozenCalls) {
  SpeedFit fit;
  See(&fit, {10, 10}, 60, {14, 1900});
  EXPECT_GT(fit.Ms(At(14)), 30);
  See(&fit, {}, 24, {14, 1900});
  EXPECT_NEAR(Share(fit, {}, 14), 1, 0.5);
  EXPECT_NEAR(Share(fit, {}, 1900), 1, 0.5);
}

}  // namespace
}  // namespace withy::policy
