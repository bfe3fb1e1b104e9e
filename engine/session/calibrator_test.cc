#include "engine/session/calibrator.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "engine/model/testing.h"
#include "engine/session/testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

constexpr int32_t kVocab = 300;

// A board on which time is a simple function of the batch.
class CalibratorTest : public testing::Test {
 protected:
  CalibratorTest() {
    model_.on_forward = [this](const Batch& batch) {
      clock_.Advance(std::llround(batch_us_ * 1e3));
      for (const Row& row : batch.rows)
        clock_.Advance(std::llround((row_us_ + row.position * token_us_) * 1e3));
      ++forwards_;
    };
  }

  CalibratorLimits Limits() {
    CalibratorLimits limits;
    limits.rest = [this] { ++rests_; };
    return limits;
  }

  int rests_ = 0;
  double batch_us_ = 1000;
  double row_us_ = 10;
  double token_us_ = 0.5;
  int forwards_ = 0;
  std::vector<std::vector<int32_t>> histories_;
  FakeClock clock_;
  FakeModel model_{kVocab, 4096, [this](const std::vector<int32_t>& history) {
                     histories_.push_back(history);
                     return 1;
                   }};
};

TEST(PlanTimesTest, EveryLevelLengthDepthAndBatch) {
  ModelInfo info;
  info.levels = {{.percent = 20}, {.percent = 60}, {.percent = 100}};
  const auto plan = PlanTimes(info, 4096);
  EXPECT_EQ(plan.size(), 3u * (kPrefillTokens.size() + 9 + 1) + 2u + kTreeRows.size());
  EXPECT_THAT(plan, testing::Contains(TimedPoint{TimedKind::kTree, 100, 8, 0}));
  EXPECT_THAT(plan, testing::Contains(TimedPoint{TimedKind::kPrefill, 60, 1024, 0}));
  EXPECT_THAT(plan, testing::Contains(TimedPoint{TimedKind::kDecode, 20, 4, 2048}));
  EXPECT_THAT(plan, testing::Contains(TimedPoint{TimedKind::kSwitch, 100, 1, 0}));
  EXPECT_THAT(plan, testing::Contains(TimedPoint{TimedKind::kResume, 100, 1, 512}));
}

TEST(PlanTimesTest, EndsAtTheWindow) {
  ModelInfo info;
  info.levels = {{.percent = 100}};
  std::set<int32_t> lengths, depths;
  for (const TimedPoint& point : PlanTimes(info, 200)) {
    if (point.kind == TimedKind::kPrefill) lengths.insert(point.rows);
    depths.insert(point.depth);
    EXPECT_NE(point.kind, TimedKind::kSwitch) << "there is only one level";
  }
  EXPECT_THAT(lengths, testing::ElementsAre(16, 32, 64, 128, 200));
  EXPECT_THAT(depths, testing::ElementsAre(0, 199));
}

TEST_F(CalibratorTest, SamplesAreTheTimesOfWhatTheyName) {
  token_us_ = 0;
  Calibrator calibrator(model_, clock_, 4096, Limits());
  EXPECT_DOUBLE_EQ(*calibrator.Sample({TimedKind::kPrefill, 100, 64, 0}, nullptr), 1640);
  // Two pieces of 128 rows, as a worker cuts them.
  EXPECT_DOUBLE_EQ(*calibrator.Sample({TimedKind::kPrefill, 100, 256, 0}, nullptr), 2000 + 2560);
  EXPECT_DOUBLE_EQ(*calibrator.Sample({TimedKind::kDecode, 100, 1, 0}, nullptr), 1010);
  EXPECT_DOUBLE_EQ(*calibrator.Sample({TimedKind::kDecode, 100, 4, 0}, nullptr), 1040);
  EXPECT_DOUBLE_EQ(*calibrator.Sample({TimedKind::kTree, 100, 8, 0}, nullptr), 1080);
  token_us_ = 0.5;
  EXPECT_DOUBLE_EQ(*calibrator.Sample({TimedKind::kDecode, 100, 2, 512}, nullptr),
                   1000 + 2 * (10 + 256));
  EXPECT_DOUBLE_EQ(*calibrator.Sample({TimedKind::kResume, 100, 1, 512}, nullptr), 1266);
}

TEST_F(CalibratorTest, ContextsHoldWhatTheModelWrote) {
  Calibrator calibrator(model_, clock_, 4096, Limits());
  ASSERT_TRUE(calibrator.Sample({TimedKind::kDecode, 100, 4, 40}, nullptr).ok());
  histories_.clear();
  ASSERT_TRUE(calibrator.Sample({TimedKind::kDecode, 100, 4, 100}, nullptr).ok());
  ASSERT_GE(histories_.size(), 4u);
  // The row written at depth 40 was replaced by the text that fills contexts.
  for (const auto& history : histories_) {
    ASSERT_EQ(history.size(), 101u);
    for (int32_t i = 0; i < 100; ++i)
      EXPECT_EQ(history[static_cast<size_t>(i)], i) << "token " << i;
  }
}

TEST_F(CalibratorTest, ShortTimesAreTakenSeveralTimes) {
  batch_us_ = 100;
  Calibrator calibrator(model_, clock_, 4096, Limits());
  ASSERT_TRUE(calibrator.Sample({TimedKind::kDecode, 100, 1, 0}, nullptr).ok());
  EXPECT_EQ(forwards_, 8);
  forwards_ = 0;
  batch_us_ = 30'000;
  ASSERT_TRUE(calibrator.Sample({TimedKind::kDecode, 100, 1, 0}, nullptr).ok());
  EXPECT_EQ(forwards_, 1);
}

TEST_F(CalibratorTest, TheBoardIdlesBeforeAPromptAndNotBeforeAStep) {
  batch_us_ = 30'000;
  Calibrator calibrator(model_, clock_, 4096, Limits());
  ASSERT_TRUE(calibrator.Sample({TimedKind::kPrefill, 100, 256, 0}, nullptr).ok());
  EXPECT_EQ(rests_, 1) << "not between the pieces of a prompt";
  ASSERT_TRUE(calibrator.Sample({TimedKind::kDecode, 100, 4, 512}, nullptr).ok());
  EXPECT_EQ(rests_, 1);
}

TEST_F(CalibratorTest, WhatIsTooLargeOrTooSlowIsSaid) {
  const int64_t token_bytes = static_cast<int64_t>(model_.info().kv.block_bytes) *
                              model_.info().kv.layers / model_.info().kv.chunk_tokens;
  Calibrator small(model_, clock_, 4096, {.kv_bytes = 4 * 600 * token_bytes});
  EXPECT_TRUE(small.Sample({TimedKind::kDecode, 100, 4, 512}, nullptr).ok());
  const auto large = small.Sample({TimedKind::kDecode, 100, 1, 2048}, nullptr);
  EXPECT_EQ(large.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(large.status().message()), HasSubstr("4 contexts of 2048 tokens"));

  batch_us_ = 10e6;
  Calibrator slow(model_, clock_, 4096);
  const auto late = slow.Sample({TimedKind::kDecode, 100, 1, 2048}, nullptr);
  EXPECT_EQ(late.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("filling a context of 2048 tokens"));
}

TEST_F(CalibratorTest, CanBeStopped) {
  Calibrator calibrator(model_, clock_, 4096, Limits());
  const std::atomic<bool> stop{true};
  EXPECT_TRUE(
      absl::IsCancelled(calibrator.Sample({TimedKind::kPrefill, 100, 64, 0}, &stop).status()));
}

TEST(RealModelTest, EveryPointOfAnElasticModelCanBeMeasured) {
  const TestFolder folder;
  SynthShape shape = TinyShape();
  shape.levels = {20, 60};
  const auto model = OpenTiny(folder, WriteTiny(folder, shape, GgmlType::kQ8_0));
  Calibrator calibrator(*model, Clock::Real(), 512, {.sample_ns = 0});
  for (const TimedPoint& point : PlanTimes(model->info(), 512)) {
    const auto us = calibrator.Sample(point, nullptr);
    ASSERT_TRUE(us.ok()) << us.status();
    EXPECT_TRUE(std::isfinite(*us));
    if (point.kind != TimedKind::kSwitch) {
      EXPECT_GT(*us, 0);
    }
  }
  EXPECT_EQ(calibrator.Sample({TimedKind::kDecode, 33, 1, 0}, nullptr).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace withy::engine
