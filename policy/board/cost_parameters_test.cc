#include "policy/board/cost_parameters.h"

#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "policy/board/latency_model.h"
#include "policy/testing.h"

namespace withy::policy {
namespace {

// A large output head, which no level cuts, makes a low level dearer than its per cent.
TEST(CostParametersTest, ALevelTakesWhatItComputesAndReads) {
  const std::vector<LevelCost> levels = {{.percent = 20, .weight_bytes = 30, .flops = 26},
                                         {.percent = 60, .weight_bytes = 70, .flops = 64},
                                         {.percent = 100, .weight_bytes = 100, .flops = 100}};
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 20).prefill, 0.26);
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 20).decode, 0.30);
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 60).decode, 0.70);
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 100).prefill, 1);
  EXPECT_DOUBLE_EQ(ShareOfLevel(levels, 100).decode, 1);
  const Prediction p = Predict(kCost, kNeutral, {100, 1, CostOfLevel(kCost, levels, 20)}, Load{});
  EXPECT_DOUBLE_EQ(p.ttft_ms, 26);
  EXPECT_DOUBLE_EQ(p.tpot_ms, 6);
  // A worker that states nothing, or levels without figures.
  EXPECT_DOUBLE_EQ(ShareOfLevel({}, 40).prefill, 0.4);
  EXPECT_DOUBLE_EQ(ShareOfLevel({}, 40).decode, 0.4);
  EXPECT_DOUBLE_EQ(ShareOfLevel(std::vector<LevelCost>{{.percent = 100}}, 100).decode, 1);
}

TEST(CostParametersTest, PrefillIsLinearBetweenMeasuredLengths) {
  EXPECT_EQ(PrefillUs(kMeasured, 0), 0);
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 1), 20'000) << "a decode step";
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 16), 32'000);
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 40), 48'000);
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 1024), 640'000);
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 1024 + 768), 640'000 + 480'000);
  EXPECT_DOUBLE_EQ(PrefillUs(kCost, 40), 40'000) << "nothing measured: every token the same";
  CostParameters one = kMeasured;
  one.prefill = {{16, 32'000}};
  EXPECT_DOUBLE_EQ(PrefillUs(one, 31), 32'000 + 15 * 800);
}

TEST(CostParametersTest, PrefillBehindAContext) {
  // As the last 64 tokens of a longer prefill, when they take more than 64 alone.
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 768, 1024), 480'000);
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 768, 0), 480'000);
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 256, 256), 160'000);
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 512, 512), 320'000);
  EXPECT_DOUBLE_EQ(PrefillUs(kMeasured, 16, 2048), 32'000) << "a small pass stays a small pass";
  EXPECT_DOUBLE_EQ(PrefillUs(kCost, 16, 2048), 16'000);
}

TEST(CostParametersTest, PrefillBehindAContextWhereItIsKnownWhatDepthAdds) {
  CostParameters cost = kMeasured;
  cost.prefill_us_per_context_token = 0.5;
  EXPECT_DOUBLE_EQ(PrefillUs(cost, 256), 160'000) << "measured with what its own tokens add";
  EXPECT_DOUBLE_EQ(PrefillUs(cost, 16, 2048), 32'000 + 0.5 * 16 * 2048);
  EXPECT_DOUBLE_EQ(PrefillUs(cost, 256, 4096), 160'000 + 0.5 * 256 * 4096);
  // Beyond the longest, whose last tokens were 640 deep on the average.
  EXPECT_DOUBLE_EQ(PrefillUs(cost, 2048), 640'000 + 1024 * 625 + 0.5 * 1024 * (1536 - 640));
  CostParameters probe = kCost;
  probe.prefill_us_per_context_token = 2;
  EXPECT_DOUBLE_EQ(PrefillUs(probe, 100, 50), 100'000 + 2 * 100 * (50 + 50));
  const Work work = PrefillWork(probe, 100, 50);
  EXPECT_DOUBLE_EQ(work.base_ms, 100);
  EXPECT_DOUBLE_EQ(work.depth_ms, 20);
}

// Noise or not, more tokens and more context never make a prefill faster.
TEST(CostParametersTest, Monotone) {
  const unsigned seed = 7;
  std::mt19937 random(seed);
  for (int round = 0; round < 1000; ++round) {
    CostParameters cost{.decode_us_per_token = 1.0 * (random() % 1000)};
    PrefillPoint point;
    for (size_t i = 0, count = 1 + random() % 5; i < count; ++i) {
      point.tokens += 1 + random() % 300;
      point.us += random() % 1000;
      cost.prefill.push_back(point);
    }
    cost.prefill_us_per_context_token = round % 2 == 0 ? 0 : 0.001 * (random() % 1000);
    const double tokens = random() % 2000;
    const double resident = random() % 2000;
    const double base = PrefillUs(cost, tokens, resident);
    EXPECT_GE(base, 0) << "seed " << seed;
    EXPECT_GE(PrefillUs(cost, tokens + 1 + random() % 50, resident), base) << "seed " << seed;
    EXPECT_GE(base, PrefillUs(cost, tokens)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace withy::policy
