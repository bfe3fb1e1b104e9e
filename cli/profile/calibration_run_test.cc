#include "cli/profile/calibration_run.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "cli/profile/calibration_report.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A board with known times, on which time passes only during measurements.
class CalibrationRunTest : public testing::Test {
 protected:
  void Add(v1::CalibrationKind kind, uint32_t level, uint32_t rows, uint32_t depth = 0) {
    v1::CalibrationPoint& point = *record_.add_points();
    point.set_kind(kind);
    point.set_level_percent(level);
    point.set_rows(rows);
    point.set_depth(depth);
  }

  absl::Status Run(const CalibrationOptions& options) {
    const CalibrationHooks hooks{
        .sample = [this](const v1::CalibrationPoint& point) -> absl::StatusOr<double> {
          if (static_cast<int>(sampled_.size()) == stop_after_) return absl::CancelledError("stop");
          if (point.depth() > 1000) return absl::ResourceExhaustedError("too deep");
          const double us = us_per_row_ * point.rows() + static_cast<double>(sampled_.size());
          clock_.Advance(std::llround(us * 1e3));
          sampled_.push_back(PointName(point));
          return us;
        },
        .save =
            [this](const v1::Calibration& record) {
              saved_.push_back(record);
              return save_status_;
            },
        .progress =
            [this](double done, std::string_view what) {
              progress_.push_back(done);
              last_what_ = what;
            }};
    return RunCalibration(options, hooks, clock_, &record_);
  }

  FakeClock clock_;
  v1::Calibration record_;
  double us_per_row_ = 1000;
  int stop_after_ = -1;
  absl::Status save_status_;
  std::vector<std::string> sampled_;
  std::vector<v1::Calibration> saved_;
  std::vector<double> progress_;
  std::string last_what_;
};

TEST_F(CalibrationRunTest, RoundsGoOverAllPoints) {
  Add(v1::CALIBRATION_KIND_PREFILL, 50, 16);
  Add(v1::CALIBRATION_KIND_DECODE, 100, 1, 512);
  ASSERT_TRUE(Run({.rounds = 2}).ok());
  EXPECT_THAT(
      sampled_,
      ElementsAre("level 50 %, prefill of 16 tokens", "level 100 %, decode of 1 at depth 512",
                  "level 50 %, prefill of 16 tokens", "level 100 %, decode of 1 at depth 512"));
  EXPECT_TRUE(record_.complete());
  EXPECT_GT(record_.measured_unix_s(), 0);
  EXPECT_THAT(record_.points(0).sample_us(), ElementsAre(16'000, 16'002));
  EXPECT_TRUE(saved_.back().complete());
  EXPECT_EQ(progress_.front(), 0);
  EXPECT_TRUE(std::is_sorted(progress_.begin(), progress_.end()));
  EXPECT_LT(progress_.back(), 1);
  EXPECT_EQ(last_what_, "round 2 of 2, level 100 %, decode of 1 at depth 512");
}

TEST_F(CalibrationRunTest, AnInterruptedRunGoesOnWhereItStopped) {
  for (const uint32_t rows : {16u, 17u, 18u}) Add(v1::CALIBRATION_KIND_PREFILL, 100, rows);
  stop_after_ = 4;
  EXPECT_TRUE(absl::IsCancelled(Run({.rounds = 3})));
  EXPECT_FALSE(record_.complete());
  ASSERT_FALSE(saved_.empty());
  const v1::Calibration kept = saved_.back();
  EXPECT_EQ(kept.points(0).sample_us_size(), 2);
  EXPECT_EQ(kept.points(1).sample_us_size(), 1);

  record_ = kept;
  stop_after_ = -1;
  progress_.clear();
  ASSERT_TRUE(Run({.rounds = 3}).ok());
  EXPECT_EQ(sampled_.size(), 9u) << "none is taken twice";
  EXPECT_EQ(sampled_[4], "level 100 %, prefill of 17 tokens") << "those that lack one come first";
  EXPECT_EQ(record_.points(0).sample_us(0), kept.points(0).sample_us(0));
  for (const auto& point : record_.points()) EXPECT_EQ(point.sample_us_size(), 3);
  EXPECT_EQ(progress_.front(), 0) << "of what was left";
  EXPECT_TRUE(record_.complete());
}

TEST_F(CalibrationRunTest, WhatWouldTakeTooLongIsLeftOutAndSaidSo) {
  for (const uint32_t rows : {16u, 64u, 256u, 1024u}) {
    Add(v1::CALIBRATION_KIND_PREFILL, 100, rows);
  }
  us_per_row_ = 10'000;  // 160 ms, 640 ms, 2.6 s, 10 s
  ASSERT_TRUE(Run({.rounds = 5, .point_seconds = 10}).ok());
  EXPECT_EQ(record_.points(0).sample_us_size(), 5);
  EXPECT_EQ(record_.points(1).sample_us_size(), 5);
  EXPECT_EQ(record_.points(2).sample_us_size(), 3) << "a fourth would go beyond ten seconds";
  EXPECT_TRUE(record_.points(3).sample_us().empty());
  EXPECT_THAT(record_.points(3).left_out(),
              HasSubstr("3 times about 10.2 s are more than the 10 s"));
  EXPECT_TRUE(record_.complete());
}

TEST_F(CalibrationRunTest, WhatCannotBeMeasuredHereIsLeftOut) {
  Add(v1::CALIBRATION_KIND_DECODE, 100, 1, 2048);
  Add(v1::CALIBRATION_KIND_DECODE, 100, 1, 0);
  ASSERT_TRUE(Run({.rounds = 2}).ok());
  EXPECT_EQ(record_.points(0).left_out(), "too deep");
  EXPECT_EQ(record_.points(1).sample_us_size(), 2);
  EXPECT_TRUE(record_.complete());
}

TEST_F(CalibrationRunTest, IsSavedEverySecondAndAtTheEnd) {
  Add(v1::CALIBRATION_KIND_PREFILL, 100, 600);  // 0.6 s
  ASSERT_TRUE(Run({.rounds = 4}).ok());
  ASSERT_EQ(saved_.size(), 3u);
  EXPECT_EQ(saved_[0].points(0).sample_us_size(), 2);
  EXPECT_FALSE(saved_[0].complete());
  EXPECT_EQ(saved_[1].points(0).sample_us_size(), 4);
  EXPECT_TRUE(saved_[2].complete());
}

TEST_F(CalibrationRunTest, ADiskThatIsFullIsAnError) {
  Add(v1::CALIBRATION_KIND_PREFILL, 100, 16);
  save_status_ = absl::ResourceExhaustedError("disk full");
  EXPECT_EQ(Run({.rounds = 2}), save_status_);
}

TEST_F(CalibrationRunTest, TheReportShowsEveryTimeAndWhatIsMissing) {
  for (const uint32_t level : {50u, 100u}) {
    Add(v1::CALIBRATION_KIND_PREFILL, level, 16);
    Add(v1::CALIBRATION_KIND_PREFILL, level, 64);
    for (const uint32_t rows : {1u, 4u}) Add(v1::CALIBRATION_KIND_DECODE, level, rows);
    Add(v1::CALIBRATION_KIND_DECODE, level, 1, 512);
    Add(v1::CALIBRATION_KIND_DECODE, level, 1, 2048);
    Add(v1::CALIBRATION_KIND_SWITCH, level, 1);
  }
  Add(v1::CALIBRATION_KIND_RESUME, 100, 1, 512);
  ASSERT_TRUE(Run({.rounds = 1}).ok());
  v1::KvFormatError& error = *record_.add_kv_errors();
  error.set_format(v1::KV_FORMAT_Q4);
  error.set_divergence(0.0125);
  CalibrationReport report;
  report.model = {
      .name = "m", .path = "/p/m.calibration.textproto", .record = record_, .measured_now = true};
  const std::string text = ReportText(report, 0);
  EXPECT_THAT(text, HasSubstr("LEVEL %  PREFILL 16  PREFILL 64  STEP AT 0  STEP AT 512  "
                              "STEP AT 2048  STEP OF 4  SWITCH\n"));
  EXPECT_THAT(text, HasSubstr("\n50       16          64          1"));
  EXPECT_THAT(text, HasSubstr("left out: level 50 %, decode of 1 at depth 2048: too deep\n"));
  EXPECT_THAT(text, HasSubstr("a context of 512 tokens: first step 1.01 ms with its KV resident, "
                              "about 512 ms more to recompute it"));
  EXPECT_THAT(text, HasSubstr("of 16 bits, in nats: q4 0.013\n"));
  EXPECT_THAT(text, HasSubstr("kept in /p/m.calibration.textproto"));
  const std::string json = ReportJson(report);
  EXPECT_THAT(json, HasSubstr("\"path\":\"/p/m.calibration.textproto\""));
  EXPECT_THAT(json, HasSubstr("\"left_out\":\"too deep\""));
  EXPECT_THAT(json, ::testing::Not(HasSubstr("\"tlm\"")));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("load average")));
  report.model.measured_now = false;
  report.model.record.set_load_average(3.5);
  EXPECT_THAT(ReportText(report, 0), HasSubstr("measured already"));
  EXPECT_THAT(ReportText(report, 0), HasSubstr("under a load average of 3.5"));
}

TEST_F(CalibrationRunTest, TheReportTellsADisturbedBoardFromAQuietOne) {
  Add(v1::CALIBRATION_KIND_PREFILL, 100, 16);
  CalibrationReport report;
  report.model.record = record_;
  const auto text_of = [&](double first_us, double second_us) {
    v1::CalibrationPoint& point = *report.model.record.mutable_points(0);
    point.clear_sample_us();
    point.add_sample_us(first_us);
    point.add_sample_us(second_us);
    return ReportText(report, 0);
  };
  EXPECT_THAT(text_of(1000, 1100),
              HasSubstr("samples lie 10 % apart in the median, 10 % at most (level 100 %, prefill "
                        "of 16 tokens)\n"));
  EXPECT_THAT(text_of(1000, 1100), ::testing::Not(HasSubstr("not quiet")));
  EXPECT_THAT(text_of(1000, 2000), HasSubstr("the board was not quiet"));
}

}  // namespace
}  // namespace withy::cli
