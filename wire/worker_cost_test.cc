#include "wire/worker_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "engine/model/testing.h"
#include "wire/calibration.h"

namespace withy::engine {
namespace {

using testing::HasSubstr;

class WorkerCostTest : public testing::Test {
 protected:
  WorkerCostTest() {
    SynthShape shape = TinyShape();
    shape.levels = {40};
    model_path_ = WriteTiny(folder_, shape, GgmlType::kQ8_0);
    model_ = OpenTiny(folder_, model_path_);
    path_ = CalibrationPath(model_path_, folder_.path());
    record_.set_format(kCalibrationFormat);
    *record_.mutable_key() =
        MakeCalibrationKey(model_->info().id, model_->target(), model_->threads(), board_);
    for (const uint32_t level : {40u, 100u}) {
      Add(v1::CALIBRATION_KIND_PREFILL, level, 64, 0, level * 640);
      Add(v1::CALIBRATION_KIND_DECODE, level, 1, 0, level * 30);
      Add(v1::CALIBRATION_KIND_DECODE, level, 4, 0, level * 30 + 3 * 7);
      Add(v1::CALIBRATION_KIND_DECODE, level, 1, 500, level * 30 + 1000);
    }
    record_.set_complete(true);
  }

  void Add(v1::CalibrationKind kind, uint32_t level, uint32_t rows, uint32_t depth, double us) {
    v1::CalibrationPoint& point = *record_.add_points();
    point.set_kind(kind);
    point.set_level_percent(level);
    point.set_rows(rows);
    point.set_depth(depth);
    point.add_sample_us(us);
  }
  void Write() { ASSERT_TRUE(WriteCalibration(record_, path_).ok()); }
  WorkerCost Find() {
    const auto cost = FindWorkerCost(*model_, model_path_, folder_.path(), board_, Clock::Real());
    EXPECT_TRUE(cost.ok()) << cost.status();
    return *cost;
  }
  // Expects that the model was measured and that the message gives the reason.
  void ExpectRefused(absl::StatusCode code, const std::string& why) {
    const WorkerCost cost = Find();
    EXPECT_FALSE(cost.calibrated());
    EXPECT_GT(cost.step.decode_us, 0);
    EXPECT_NE(cost.step.decode_us, 3000) << "measured, not read";
    EXPECT_EQ(cost.calibration.code(), code);
    EXPECT_THAT(std::string(cost.calibration.message()), HasSubstr(why));
    EXPECT_THAT(std::string(cost.calibration.message()), HasSubstr("withyctl calibrate"));
    EXPECT_THAT(Describe(cost), HasSubstr("refused"));
  }

  const TestFolder folder_;
  const BoardInfo board_{.processor = "CPU A", .cores = 2};
  std::string model_path_;
  std::string path_;
  std::unique_ptr<Model> model_;
  v1::Calibration record_;
};

TEST_F(WorkerCostTest, WithoutACalibrationTheModelIsMeasured) {
  const WorkerCost cost = Find();
  EXPECT_FALSE(cost.calibrated());
  EXPECT_TRUE(absl::IsNotFound(cost.calibration));
  EXPECT_EQ(Describe(cost), "not calibrated");
  const v1::CostModel wire = ToWire(cost, model_->info());
  EXPECT_EQ(wire.source(), v1::COST_SOURCE_PROBE);
  EXPECT_GT(wire.decode_us_per_token(), 0);
  ASSERT_EQ(wire.levels_size(), 2);
  EXPECT_GT(wire.levels(0).weight_bytes(), 0u);
  EXPECT_EQ(wire.levels(0).decode_us(), 0);
  EXPECT_TRUE(wire.levels(0).prefill().empty());
  EXPECT_GT(wire.levels(0).decode_us_per_context_token(), 0) << "depth is measured";
  EXPECT_GT(wire.levels(0).prefill_us_per_context_token(), 0);
  EXPECT_EQ(wire.levels(1).decode_us(), wire.decode_us_per_token());
  EXPECT_EQ(wire.levels(1).decode_us_per_context_token(), wire.decode_us_per_context_token());
  EXPECT_EQ(wire.levels(1).prefill_us_per_context_token(), wire.prefill_us_per_context_token());
  EXPECT_GT(wire.decode_us_per_context_token(), 0);
  EXPECT_FALSE(wire.levels(1).prefill().empty());
}

TEST_F(WorkerCostTest, ACalibrationThatFitsIsTaken) {
  Write();
  const WorkerCost cost = Find();
  ASSERT_TRUE(cost.calibrated()) << cost.calibration;
  EXPECT_EQ(Describe(cost), "calibrated");
  const v1::CostModel wire = ToWire(cost, model_->info());
  EXPECT_EQ(wire.source(), v1::COST_SOURCE_CALIBRATION);
  EXPECT_EQ(wire.prefill_us_per_token(), 1000);
  EXPECT_EQ(wire.decode_us_per_token(), 3000);
  EXPECT_DOUBLE_EQ(wire.decode_us_per_extra_row(), 7);
  ASSERT_EQ(wire.levels_size(), 2);
  EXPECT_EQ(wire.levels(0).percent(), 40u);
  ASSERT_EQ(wire.levels(0).prefill_size(), 1);
  EXPECT_EQ(wire.levels(0).prefill(0).tokens(), 64u);
  EXPECT_EQ(wire.levels(0).prefill(0).us(), 40 * 640);
  EXPECT_EQ(wire.levels(0).decode_us(), 1200);
  EXPECT_DOUBLE_EQ(wire.levels(0).decode_us_per_context_token(), 2);
  EXPECT_GT(wire.levels(0).weight_bytes(), 0u);
}

TEST_F(WorkerCostTest, TheStoreIsToldWhatKvCosts) {
  const std::vector<KvFormatError> errors = {{KvFormat::kQ8, 0.5}, {KvFormat::kQ2, 20}};
  SetKvErrors(errors, &record_);
  // 2 ms, 100 us a token, and 0.02 us a token for each one before it.
  for (const uint32_t tokens : {16u, 256u, 1024u}) {
    Add(v1::CALIBRATION_KIND_PREFILL, 100, tokens, 0, 2000 + 100 * tokens + 0.01 * tokens * tokens);
  }
  record_.mutable_points(4)->set_rows(32);  // the full level's first prefill
  record_.mutable_points(4)->set_sample_us(0, 2000 + 3200 + 10.24);
  Write();
  const v1::KvCosts costs = KvCostsOf(Find());
  EXPECT_NEAR(costs.recompute_fixed_ms(), 2, 0.1);
  EXPECT_NEAR(costs.recompute_chunk_ms(), 1.6, 0.02);
  EXPECT_NEAR(costs.recompute_position_ms(), 16 * 16 * 0.02e-3, 1e-4);
  ASSERT_EQ(costs.errors_size(), 2);
  EXPECT_EQ(costs.errors(1).format(), v1::KV_FORMAT_Q2);
  EXPECT_EQ(costs.errors(1).divergence(), 20);
}

TEST_F(WorkerCostTest, WithoutACalibrationTheStoreIsToldOfRecomputingOnly) {
  const v1::KvCosts costs = KvCostsOf(Find());
  EXPECT_GT(costs.recompute_chunk_ms(), 0);
  EXPECT_EQ(costs.errors_size(), 0);
}

TEST_F(WorkerCostTest, AStaleOneIsRefusedAndTheModelMeasured) {
  record_.mutable_key()->set_model_id("another");
  Write();
  ExpectRefused(absl::StatusCode::kFailedPrecondition, "another model (another; here ");
  record_.mutable_key()->set_model_id(model_->info().id);
  record_.mutable_key()->set_threads(64);
  Write();
  ExpectRefused(absl::StatusCode::kFailedPrecondition, "another number of threads (64; here 2)");
}

TEST_F(WorkerCostTest, ADamagedOneOrOneWithoutALevelToo) {
  std::ofstream(path_) << "format: 1 complete: perhaps";
  ExpectRefused(absl::StatusCode::kDataLoss, "damaged");
  record_.mutable_points()->DeleteSubrange(0, 4);
  Write();
  ExpectRefused(absl::StatusCode::kDataLoss, "lacks times of level 40 %");
}

}  // namespace
}  // namespace withy::engine
