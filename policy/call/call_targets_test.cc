#include "policy/call/call_targets.h"

#include <utility>

#include "gtest/gtest.h"

namespace withy::policy {
namespace {

AnswerLatency Taken(double ttft_ms, double tpot_ms) {
  AnswerLatency made;
  made.ttft_ms = ttft_ms;
  made.tpot_ms = tpot_ms;
  made.end_to_end_ms = ttft_ms + 10 * tpot_ms;
  return made;
}

TEST(CallTargetsTest, AMeasurementIsJudgedWithTheToleranceOfItsRatio) {
  const AnswerLatency full = Taken(100, 10);
  Slo slo;
  slo.ttft_ratio = 1;
  slo.tpot_ratio = 0.5;
  const CallTargets judged = Tolerate(slo, ResolveSlo(slo, full));
  Latency measured;
  measured.ttft_ms = 104;
  measured.tpot_ms = 5.2;
  EXPECT_TRUE(Meets(judged, measured, 10));
  measured.tpot_ms = 5.3;
  EXPECT_FALSE(Meets(judged, measured, 10));
  slo = {};
  slo.ttft_ms = 100;
  EXPECT_FALSE(Meets(Tolerate(slo, ResolveSlo(slo, full)), measured, 10));
}

// The full model takes 9 ms a token, and 12 more for an answer's first ones.
TEST(CallTargetsTest, ARatioIsOfWhatTheFullModelTakesForAnAnswerAsLong) {
  AnswerLatency full = Taken(100, 12);
  full.answer_tokens = 5;
  full.ramp_ms = 12;
  Slo slo;
  slo.tpot_ratio = 0.5;
  const CallTargets targets = ResolveSlo(slo, full);
  EXPECT_DOUBLE_EQ(targets.tpot_ms, 6);
  EXPECT_DOUBLE_EQ(targets.TpotMs(5), 6);
  EXPECT_DOUBLE_EQ(targets.TpotMs(3), 4.5 + 3);
  EXPECT_DOUBLE_EQ(targets.TpotMs(101), 4.5 + 0.06);
  EXPECT_DOUBLE_EQ(targets.TokenMs(), 4.5);
  Latency measured;
  measured.tpot_ms = 7.8;
  const CallTargets judged = Tolerate(slo, targets);
  EXPECT_TRUE(Meets(judged, measured, 3)) << "within 5 % of 7.5 ms";
  EXPECT_FALSE(Meets(judged, measured, 5));
  measured.tpot_ms = 0;
  EXPECT_TRUE(Meets(judged, measured, 1)) << "one token has no TPOT";
  slo.tpot_ratio = 0;
  slo.tpot_ms = 6;
  EXPECT_DOUBLE_EQ(ResolveSlo(slo, full).TpotMs(3), 6) << "milliseconds are exact";
}

TEST(CallTargetsTest, RatiosAsTheTlmReadsThem) {
  const AnswerLatency full = Taken(100, 10);  // 200 end to end
  const auto ratios = [&](auto set) {
    Slo slo;
    set(slo);
    const SloRatios made = RatiosOf(slo, full);
    return std::pair(made.ttft, made.tpot);
  };
  EXPECT_EQ(ratios([](Slo&) {}), std::pair(1.0, 1.0));
  EXPECT_EQ(ratios([](Slo& slo) { slo.ttft_ratio = 0.4; }), std::pair(0.4, 1.0));
  EXPECT_EQ(ratios([](Slo& slo) {
              slo.ttft_ms = 30;
              slo.tpot_ms = 7;
            }),
            std::pair(0.3, 0.7));
  EXPECT_EQ(ratios([](Slo& slo) { slo.end_to_end_ms = 50; }), std::pair(0.25, 0.25));
  EXPECT_EQ(ratios([](Slo& slo) { slo.ttft_ms = 1e6; }), std::pair(1.0, 1.0));
  EXPECT_GT(ratios([](Slo& slo) { slo.tpot_ms = 1e-9; }).second, 0);
}

TEST(CallTargetsTest, AreTimesFromTheArrivalOn) {
  CallTargets targets;
  targets.arrived_ns = 7;
  EXPECT_FALSE(targets.any());
  EXPECT_EQ(targets.FirstTokenByNs(), 0) << "no limit";
  EXPECT_EQ(targets.EndByNs(), 0);
  EXPECT_EQ(targets.TokenMs(), kNoLimit);
  targets.ttft_ms = 20;
  targets.end_to_end_ms = 100;
  EXPECT_TRUE(targets.any());
  EXPECT_EQ(targets.FirstTokenByNs(), 7 + 20 * kNanosPerMilli);
  EXPECT_EQ(targets.EndByNs(), 7 + 100 * kNanosPerMilli);
}

}  // namespace
}  // namespace withy::policy
