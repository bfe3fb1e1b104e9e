#include "wire/call_targets.h"

#include "gtest/gtest.h"

namespace withy::wire {
namespace {

TEST(CallTargetsWireTest, TargetsComeThrough) {
  const policy::CallTargets targets{.ttft_ms = 120.5,
                                    .tpot_ms = 12,
                                    .end_to_end_ms = 900,
                                    .ramp_ms = 7,
                                    .growth_ms = 0.01,
                                    .answer_tokens = 9,
                                    .arrived_ns = 123'456'789'012'345};
  const policy::CallTargets back = TargetsFromWire(ToWire(targets));
  EXPECT_EQ(back.FirstTokenByNs(), targets.FirstTokenByNs());
  EXPECT_EQ(back.EndByNs(), targets.EndByNs());
  EXPECT_EQ(back.TokenMs(), targets.TokenMs());
  for (const double tokens : {2.0, 9.0, 80.0}) {
    EXPECT_EQ(back.TpotMs(tokens), targets.TpotMs(tokens));
  }
}

TEST(CallTargetsWireTest, NoLimitIsNothingOnTheWire) {
  policy::CallTargets targets;
  targets.arrived_ns = 5;
  EXPECT_EQ(ToWire(targets).ByteSizeLong(), 0u);
  EXPECT_FALSE(TargetsFromWire({}).any());
  targets.ttft_ms = 20;
  const policy::CallTargets back = TargetsFromWire(ToWire(targets));
  EXPECT_EQ(back.TokenMs(), policy::kNoLimit);
  EXPECT_EQ(back.EndByNs(), 0);
}

TEST(CallTargetsWireTest, ATurnComesThrough) {
  v1::RunRequest run;
  TurnToWire({.deadline_ns = 17, .priority = -3, .arrived_ns = 5, .id = 9}, &run);
  const policy::Turn turn = TurnFromWire(run);
  EXPECT_EQ(turn.deadline_ns, 17);
  EXPECT_EQ(turn.priority, -3);
  EXPECT_EQ(turn.id, 0u) << "the worker's own";
}

}  // namespace
}  // namespace withy::wire
