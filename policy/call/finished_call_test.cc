#include "policy/call/finished_call.h"

#include "gtest/gtest.h"
#include "policy/testing.h"

namespace withy::policy {
namespace {

class FinishedCallTest : public testing::Test {
 protected:
  FinishedCallTest() {
    plan_.shape = {.prefill_tokens = 100, .max_tokens = 20};
    plan_.predicted = Predict(kCost, kNeutral, plan_.shape, Load{});
    call_ = {.app = "app",
             .measured = {.ttft_ms = 110, .tpot_ms = 20, .end_to_end_ms = 310},
             .decode_ms = 200,
             .tokens = 11,
             .prefilled_tokens = 100,
             .prefill_ms = 105,
             .overhead_ms = 5,
             .complete = true};
  }
  Observation Seen() const { return ObservationOf(plan_, call_, around_, kCost, kNeutral); }

  PlannedCall plan_;
  FinishedCall call_;
  DecodeSurroundings around_;
};

TEST_F(FinishedCallTest, TellsHowFarOffItsPredictionWas) {
  const Observation seen = Seen();
  EXPECT_EQ(seen.prefilled_tokens, 100u);
  EXPECT_EQ(seen.decoded_tokens, 10u);
  EXPECT_DOUBLE_EQ(seen.ttft_share, 1.1);
  EXPECT_DOUBLE_EQ(seen.tpot_share, 1);
  EXPECT_TRUE(seen.full_alone);
  EXPECT_TRUE(seen.complete);
}

TEST_F(FinishedCallTest, SeveralLevelsSayNothingOfOne) {
  call_.all_as_decided = false;
  Observation seen = Seen();
  EXPECT_EQ(seen.decode_ms, 0);
  EXPECT_EQ(seen.tpot_share, 0);
  EXPECT_EQ(seen.prefilled_tokens, 100u) << "its prompt was computed at the decided level";
  EXPECT_TRUE(seen.full_alone);
  call_.first_as_decided = false;
  seen = Seen();
  EXPECT_EQ(seen.prefilled_tokens, 0u);
  EXPECT_FALSE(seen.full_alone);
}

// What it teaches of the board is plain decoding.
TEST_F(FinishedCallTest, SpeculationDoesNotPassForAFasterBoard) {
  call_.speedup = 2;
  const Observation seen = Seen();
  EXPECT_EQ(seen.decode_ms, 400);
  EXPECT_EQ(seen.speedup, 2);
  EXPECT_DOUBLE_EQ(seen.tpot_share, 1) << "its prediction was right";
}

TEST_F(FinishedCallTest, OtherCallsAreNotBlamedOnIt) {
  around_ = {
      .mean_rows = 2, .other_depth_tokens = 50, .foreign_prefill_tokens = 30, .alone = false};
  const Observation seen = Seen();
  EXPECT_EQ(seen.mean_decode_rows, 2);
  EXPECT_DOUBLE_EQ(seen.foreign_prefill_ms, 30);
  EXPECT_FALSE(seen.full_alone);
}

}  // namespace
}  // namespace withy::policy
