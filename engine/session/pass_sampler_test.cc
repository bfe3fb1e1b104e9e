#include "engine/session/pass_sampler.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"

namespace withy::engine {
namespace {

constexpr size_t kOps = 70;
constexpr double kTicksOfOp = 100;  // 7,000 ticks for the operations of a pass

TEST(PassSamplerTest, LongPassesAreAllRecorded) {
  PassSampler sampler(kTicksOfOp, 0.003);
  for (int pass = 0; pass < 100; ++pass) {
    EXPECT_EQ(sampler.Next(128), 1u);
    sampler.Took(128, kOps, 3'000'000);
  }
}

TEST(PassSamplerTest, RecordingTakesTheShareOfShortPassesThatItMay) {
  for (const int64_t ticks : {2'000, 200'000, 900'000}) {
    PassSampler sampler(kTicksOfOp, 0.003);
    double recording = 0, computing = 0;
    uint64_t stood_for = 0;
    constexpr int kPasses = 20'000;
    for (int pass = 0; pass < kPasses; ++pass) {
      const uint16_t passes = sampler.Next(1);
      stood_for += passes;
      computing += static_cast<double>(ticks);
      if (passes == 0) continue;
      recording += kOps * kTicksOfOp;
      sampler.Took(1, kOps, ticks);
    }
    if (ticks > 2'000) {
      EXPECT_LT(recording / computing, 0.0031) << ticks;
      EXPECT_GT(recording / computing, 0.0015) << "as many as it may: " << ticks;
    } else {
      EXPECT_LT(recording, 1.1 * kPasses / PassSampler::kMostPasses * kOps * kTicksOfOp);
    }
    EXPECT_NEAR(static_cast<double>(stood_for), kPasses, 2.0 * PassSampler::kMostPasses);
  }
}

// Passes whose times follow a pattern, such as the levels of a batch or drafts and verifications by
// turns: a fixed stride would meet the same place of the pattern again and again.
TEST(PassSamplerTest, TotalsAreRightWhateverThePattern) {
  for (const int period : {2, 3, 8, 12}) {
    PassSampler sampler(kTicksOfOp, 0.003);
    double truth = 0, estimate = 0;
    for (int pass = 0; pass < 60'000; ++pass) {
      const int64_t ticks = pass % period == 0 ? 600'000 : 150'000;
      truth += static_cast<double>(ticks);
      const uint16_t passes = sampler.Next(1);
      estimate += static_cast<double>(passes) * static_cast<double>(ticks);
      if (passes > 0) sampler.Took(1, kOps, ticks);
    }
    EXPECT_NEAR(estimate / truth, 1, 0.03) << period;
  }
}

TEST(PassSamplerTest, PromptsDoNotMakeDecodeStepsLookLong) {
  PassSampler sampler(kTicksOfOp, 0.003);
  int prompts = 0, steps = 0;
  for (int pass = 0; pass < 2000; ++pass) {
    if (sampler.Next(100) > 0) {
      ++prompts;
      sampler.Took(100, kOps, 10'000'000);
    }
    if (sampler.Next(1) > 0) {
      ++steps;
      sampler.Took(1, kOps, 233'000);  // 10 passes pay for one
    }
  }
  EXPECT_EQ(prompts, 2000);
  EXPECT_NEAR(steps, 182, 15);
}

TEST(PassSamplerTest, AllOrNoneWhereTheShareSaysSo) {
  PassSampler all(kTicksOfOp, 1), none(kTicksOfOp, 0);
  for (int pass = 0; pass < 50; ++pass) {
    EXPECT_EQ(all.Next(1), 1u);
    all.Took(1, kOps, 1000);
    EXPECT_EQ(none.Next(1), 0u);
  }
}

}  // namespace
}  // namespace withy::engine
