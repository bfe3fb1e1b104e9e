#include "policy/call/level_pace.h"

#include "gtest/gtest.h"

namespace withy::policy {
namespace {

TEST(LevelPaceTest, OfMeasuredLengthsTheLongestCounts) {
  CostParameters cost{.prefill_us_per_token = 7,
                      .decode_us_per_token = 20'000,
                      .decode_us_per_extra_row = 700,
                      .decode_us_per_context_token = 10,
                      .prefill = {{16, 32'000}, {1000, 600'000}},
                      .prefill_us_per_context_token = 0.2};
  const LevelPace pace = LevelPaceOf(cost);
  EXPECT_DOUBLE_EQ(pace.row_ms, 0.6 - 0.0002 * 500) << "without what its own depth adds";
  EXPECT_DOUBLE_EQ(pace.RowsMs(1000, 0), 600) << "with it";
  EXPECT_DOUBLE_EQ(pace.TokenMs(100), 21);
  EXPECT_DOUBLE_EQ(pace.extra_row_ms, 0.7);
  cost.prefill_us_per_context_token = 10;
  EXPECT_DOUBLE_EQ(LevelPaceOf(cost).row_ms, 0.3) << "noise never makes rows free";
}

TEST(LevelPaceTest, WithoutMeasuredLengthsEveryTokenTakesTheSame) {
  const LevelPace pace = LevelPaceOf({.prefill_us_per_token = 500, .decode_us_per_token = 4'000});
  EXPECT_DOUBLE_EQ(pace.RowsMs(10, 1000), 5);
  EXPECT_DOUBLE_EQ(pace.TokenMs(1000), 4);
}

}  // namespace
}  // namespace withy::policy
