#include "engine/session/cost_probe.h"

#include <cmath>
#include <memory>

#include "engine/model/testing.h"
#include "engine/session/testing.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

constexpr int32_t kProbeVocab = 300;

// A board on which time is a simple function of the batch: a cost per pass, per row, and by
// position.
class CostProbeTest : public testing::Test {
 protected:
  StepCost Measure(FakeModel& model) {
    model.on_forward = [this, &model](const Batch& batch) {
      double us = 1000;
      for (const Row& row : batch.rows) {
        const bool full = row.level < 0 || model.info().levels.size() == 1;
        deepest_ = std::max(deepest_, row.position);
        us += full ? 100 + 0.5 * row.position : 40 + 0.3 * row.position;
      }
      clock_.Advance(std::llround(us * 1e3));
    };
    const int64_t start = clock_.SteadyNanos();
    const auto cost = MeasureCost(model, clock_);
    EXPECT_TRUE(cost.ok()) << cost.status();
    took_ns_ = clock_.SteadyNanos() - start;
    return cost.value_or(StepCost{});
  }

  FakeClock clock_;
  int64_t took_ns_ = 0;
  int32_t deepest_ = 0;
};

TEST_F(CostProbeTest, TellsWhatTokensStepsAndDepthTake) {
  FakeModel model(kProbeVocab, 8192);
  const StepCost cost = Measure(model);
  EXPECT_NEAR(cost.decode_us, 1100, 0.01) << "of an empty context";
  EXPECT_NEAR(cost.decode_us_per_extra, 100, 0.01);
  EXPECT_NEAR(cost.depth.decode_us, 0.5, 1e-3);
  EXPECT_NEAR(cost.depth.prefill_us, 0.5, 1e-3);
  EXPECT_EQ(cost.lowest_level_depth.decode_us, cost.depth.decode_us);
  EXPECT_GE(deepest_, 2000);
  ASSERT_EQ(cost.prefill.size(), 3u);
  EXPECT_EQ(cost.prefill[0].tokens, 16);
  EXPECT_NEAR(cost.prefill[0].us / (1000 + 16 * 100), 1, 0.25);
  EXPECT_DOUBLE_EQ(cost.prefill[1].us, 64 * cost.prefill_us_per_token);
  EXPECT_LT(took_ns_, kNanosPerSecond);
}

TEST_F(CostProbeTest, DepthIsMeasuredAtTheLowestLevelToo) {
  FakeModel model(kProbeVocab, 4096);
  model.set_levels({20, 60, 100});
  const StepCost cost = Measure(model);
  EXPECT_NEAR(cost.depth.decode_us, 0.5, 1e-3);
  EXPECT_NEAR(cost.lowest_level_depth.decode_us, 0.3, 1e-3);
  EXPECT_NEAR(DepthCostOf(cost, 20, 60).decode_us, 0.4, 1e-3);
  EXPECT_NEAR(DepthCostOf(cost, 20, 100).prefill_us, 0.5, 1e-3);
  EXPECT_NEAR(DepthCostOf(cost, 20, 20).prefill_us, 0.3, 1e-3);
  EXPECT_EQ(DepthCostOf(cost, 100, 100).decode_us, cost.depth.decode_us) << "a plain model";
}

// The window limits the depth; without room for one the depth cost is not known.
TEST_F(CostProbeTest, FitsAnyWindow) {
  for (int32_t window = 1; window <= 512; window += window < 100 ? 1 : 103) {
    FakeModel model(kProbeVocab, window);
    deepest_ = 0;
    const StepCost cost = Measure(model);
    EXPECT_GT(cost.prefill_us_per_token, 0) << window;
    EXPECT_GT(cost.decode_us, 0) << window;
    EXPECT_LT(deepest_, window);
    if (window >= 100) {
      EXPECT_NEAR(cost.depth.decode_us, 0.5, 1e-3) << window;
    }
  }
}

TEST(RealCostProbeTest, ARealModelIsSlowerBehindAContext) {
  const TestFolder folder;
  SynthShape shape = TinyShape();
  shape.levels = {40};
  const std::unique_ptr<Model> model = OpenTiny(folder, WriteTiny(folder, shape, GgmlType::kQ8_0));
  const auto cost = MeasureCost(*model, Clock::Real());
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_GT(cost->prefill_us_per_token, 0);
  EXPECT_GT(cost->decode_us, 0);
  EXPECT_GE(cost->decode_us_per_extra, 0);
  for (const DepthCost& depth : {cost->depth, cost->lowest_level_depth}) {
    EXPECT_GT(depth.decode_us, 0);
    EXPECT_GT(depth.prefill_us, 0);
    EXPECT_LT(depth.decode_us, cost->decode_us) << "one token of context is not another step";
  }
}

}  // namespace
}  // namespace withy::engine
