#include "wire/cost_model.h"

#include <vector>

#include "gtest/gtest.h"

namespace withy::wire {
namespace {

using policy::CostOfLevel;
using policy::LevelCost;
using policy::PrefillUs;

TEST(CostModelWireTest, TimesOfLevelsComeFromTheWorker) {
  v1::CostModel cost;
  cost.set_prefill_us_per_token(1000);
  cost.set_decode_us_per_token(20'000);
  cost.set_decode_us_per_extra_row(2'000);
  for (const uint32_t percent : {40u, 100u}) {
    v1::LevelCost& level = *cost.add_levels();
    level.set_percent(percent);
    level.set_weight_bytes(percent);
  }
  EXPECT_FALSE(LevelsFromWire(cost)[0].measured.has_value()) << "a probe knows the full model only";
  EXPECT_EQ(CostFromWire(cost).decode_us_per_token, 20'000);
  EXPECT_TRUE(CostFromWire(cost).prefill.empty());
  cost.set_decode_us_per_context_token(2);
  cost.set_prefill_us_per_context_token(1);
  EXPECT_EQ(CostFromWire(cost).decode_us_per_context_token, 2);
  EXPECT_EQ(CostFromWire(cost).prefill_us_per_context_token, 1);
  EXPECT_EQ(CostOfLevel(CostFromWire(cost), LevelsFromWire(cost), 40).decode_us_per_context_token,
            0.8);
  cost.mutable_levels(0)->set_decode_us_per_context_token(1.7);
  cost.mutable_levels(0)->set_prefill_us_per_context_token(0.6);
  EXPECT_EQ(CostOfLevel(CostFromWire(cost), LevelsFromWire(cost), 40).decode_us_per_context_token,
            1.7)
      << "depth is known of levels that are not measured otherwise";
  EXPECT_EQ(CostOfLevel(CostFromWire(cost), LevelsFromWire(cost), 40).prefill_us_per_context_token,
            0.6);
  for (v1::LevelCost& level : *cost.mutable_levels()) {
    level.set_decode_us(level.percent() * 100);
    level.set_decode_us_per_context_token(3);
    level.set_decode_us_per_extra_row(5);
    for (const uint32_t tokens : {16u, 64u}) {
      v1::PrefillTime& time = *level.add_prefill();
      time.set_tokens(tokens);
      time.set_us(tokens * level.percent());
    }
  }
  const std::vector<LevelCost> levels = LevelsFromWire(cost);
  ASSERT_TRUE(levels[0].measured.has_value());
  EXPECT_EQ(levels[0].measured->decode_us_per_token, 4000);
  EXPECT_EQ(levels[0].measured->decode_us_per_extra_row, 5);
  EXPECT_EQ(PrefillUs(*levels[0].measured, 64), 64 * 40);
  EXPECT_EQ(CostFromWire(cost).decode_us_per_token, 10'000);
  EXPECT_EQ(CostFromWire(cost).decode_us_per_context_token, 3);
  EXPECT_EQ(PrefillUs(CostFromWire(cost), 16), 1600);
}

}  // namespace
}  // namespace withy::wire
