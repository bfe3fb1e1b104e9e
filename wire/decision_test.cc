#include "wire/decision.h"

#include "gtest/gtest.h"

namespace withy::wire {
namespace {

TEST(DecisionWireTest, AnSloComesThrough) {
  v1::Slo slo;
  slo.set_ttft_ratio(0.1);
  slo.set_tpot_ratio(0.2);
  slo.set_ttft_ms(3);
  slo.set_tpot_ms(4);
  slo.set_end_to_end_ms(5);
  slo.set_strict(true);
  EXPECT_EQ(ToWire(SloFromWire(slo)).SerializeAsString(), slo.SerializeAsString());
  EXPECT_FALSE(SloFromWire({}).any());
  EXPECT_EQ(ToWire(policy::Slo{}).ByteSizeLong(), 0u);
}

TEST(DecisionWireTest, ALatencyComesThrough) {
  const policy::Latency latency{.ttft_ms = 1, .tpot_ms = 2, .end_to_end_ms = 3};
  const policy::Latency back = LatencyFromWire(ToWire(latency));
  EXPECT_EQ(back.ttft_ms, 1);
  EXPECT_EQ(back.tpot_ms, 2);
  EXPECT_EQ(back.end_to_end_ms, 3);
}

// A stored decision is judged by the same ratios again.
TEST(DecisionWireTest, TheFullModelOfADecisionComesBack) {
  policy::Decision decision;
  decision.reason = policy::DecisionReason::kTlm;
  decision.full_model.ttft_ms = 100;
  decision.full_model.tpot_ms = 12;
  decision.full_model.ramp_ms = 7;
  decision.full_model.growth_ms = 0.5;
  decision.full_model.answer_tokens = 9;
  decision.dropped_messages = 3;
  const v1::Decision wire = ToWire(decision);
  EXPECT_EQ(wire.reason(), v1::DECISION_REASON_TLM);
  EXPECT_EQ(wire.dropped_messages(), 3u);
  const policy::AnswerLatency full = FullModelFromWire(wire);
  EXPECT_EQ(full.ttft_ms, 100);
  for (const double tokens : {2.0, 5.0, 100.0}) {
    EXPECT_EQ(full.TpotMs(tokens), decision.full_model.TpotMs(tokens));
  }
  EXPECT_EQ(FullModelFromWire({}).answer_tokens, 2) << "an old record that does not say";
}

}  // namespace
}  // namespace withy::wire
