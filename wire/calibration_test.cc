#include "wire/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "engine/model/testing.h"

namespace withy::engine {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const BoardInfo& SomeBoard() {
  static const auto& board = *new BoardInfo{
      .processor = "CPU A", .cores = 4, .governor = "performance", .max_khz = 1'800'000};
  return board;
}

v1::CalibrationKey SomeKey() { return MakeCalibrationKey("abc", "avx2", 2, SomeBoard()); }

v1::CalibrationPoint Point(v1::CalibrationKind kind, uint32_t level, uint32_t rows, uint32_t depth,
                           const std::vector<double>& samples) {
  v1::CalibrationPoint point;
  point.set_kind(kind);
  point.set_level_percent(level);
  point.set_rows(rows);
  point.set_depth(depth);
  point.mutable_sample_us()->Assign(samples.begin(), samples.end());
  return point;
}

v1::Calibration SomeRecord() {
  v1::Calibration record;
  record.set_format(kCalibrationFormat);
  *record.mutable_key() = SomeKey();
  *record.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 100, 16, 0, {900, 1000, 5000});
  *record.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 100, 64, 0, {3000});
  *record.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 100, 256, 0, {16'000});
  *record.add_points() = Point(v1::CALIBRATION_KIND_DECODE, 100, 1, 0, {800, 700, 900});
  *record.add_points() = Point(v1::CALIBRATION_KIND_DECODE, 100, 2, 0, {810});
  *record.add_points() = Point(v1::CALIBRATION_KIND_DECODE, 100, 4, 0, {950});
  *record.add_points() = Point(v1::CALIBRATION_KIND_DECODE, 100, 1, 512, {900});
  *record.add_points() = Point(v1::CALIBRATION_KIND_DECODE, 100, 1, 2048, {1312});
  *record.add_points() = Point(v1::CALIBRATION_KIND_SWITCH, 100, 1, 0, {-3});
  const std::vector<KvFormatError> errors = {
      {KvFormat::kQ8, 0.25}, {KvFormat::kQ4, 1.5}, {KvFormat::kQ4Q2, 4.5}, {KvFormat::kQ2, 20}};
  SetKvErrors(errors, &record);
  record.set_complete(true);
  return record;
}

class CalibrationFileTest : public testing::Test {
 protected:
  std::string Text() const {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }
  void SetText(const std::string& text) const { std::ofstream(path_) << text; }
  // Replaces the only occurrence of `from`.
  void Edit(const std::string& from, const std::string& to) const {
    std::string text = Text();
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << text;
    SetText(text.replace(at, from.size(), to));
  }
  absl::Status Use() const { return UsableCalibration(path_, SomeKey()).status(); }
  void ExpectDamaged(const std::string& what) const {
    const absl::Status status = Use();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    EXPECT_THAT(std::string(status.message()), HasSubstr("withyctl calibrate"));
  }

  const TestFolder folder_;
  const std::string path_ = folder_ / "sub/model.calibration.textproto";
};

TEST_F(CalibrationFileTest, IsReadAsItWasWritten) {
  EXPECT_TRUE(absl::IsNotFound(Use()));
  ASSERT_TRUE(WriteCalibration(SomeRecord(), path_).ok());
  const auto read = UsableCalibration(path_, SomeKey());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->SerializeAsString(), SomeRecord().SerializeAsString());
  EXPECT_THAT(KvErrorsOf(*read), testing::Contains(KvFormatError{KvFormat::kQ4Q2, 4.5}));
  const auto files = std::filesystem::directory_iterator(folder_ / "sub");
  EXPECT_EQ(std::distance(begin(files), end(files)), 1) << "nothing is left beside it";
}

TEST_F(CalibrationFileTest, EveryDifferenceIsRefusedByName) {
  const std::vector<std::pair<std::function<void(v1::CalibrationKey*)>, std::string>> changes = {
      {[](auto* key) { key->set_model_id("xyz"); }, "another model (xyz; here abc)"},
      {[](auto* key) { key->set_processor("CPU B"); }, "another processor (CPU B; here CPU A)"},
      {[](auto* key) { key->set_cores(8); }, "another number of cores (8; here 4)"},
      {[](auto* key) { key->set_threads(3); }, "another number of threads (3; here 2)"},
      {[](auto* key) { key->set_kernel_target("portable"); },
       "another kernel target (portable; here avx2)"},
      {[](auto* key) { key->set_governor("powersave"); },
       "another power mode (powersave up to 1800 MHz; here performance up to 1800 MHz)"},
      {[](auto* key) { key->set_max_khz(900'000); },
       "another power mode (performance up to 900 MHz; here"},
  };
  for (const auto& [change, message] : changes) {
    v1::Calibration record = SomeRecord();
    change(record.mutable_key());
    ASSERT_TRUE(WriteCalibration(record, path_).ok());
    const absl::Status status = Use();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
    EXPECT_THAT(std::string(status.message()), HasSubstr("withyctl calibrate"));
  }
  v1::CalibrationKey several = SomeKey();
  several.set_threads(3);
  several.set_model_id("xyz");
  EXPECT_EQ(KeyDifference(several, SomeKey()),
            "another model (xyz; here abc), another number of threads (3; here 2)");
  EXPECT_EQ(KeyDifference(SomeKey(), SomeKey()), "");
}

TEST_F(CalibrationFileTest, AnInterruptedOneIsReadButNotUsed) {
  v1::Calibration record = SomeRecord();
  record.set_complete(false);
  ASSERT_TRUE(WriteCalibration(record, path_).ok());
  EXPECT_TRUE(ReadCalibration(path_).ok());
  EXPECT_EQ(Use().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Use().message()), HasSubstr("not complete"));
}

TEST_F(CalibrationFileTest, OtherFormatsAreRefusedWhateverTheyHold) {
  ASSERT_TRUE(WriteCalibration(SomeRecord(), path_).ok());
  Edit("format: 2", "format: 99 warp_factor: 7");
  EXPECT_EQ(Use().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(Use().message()), HasSubstr("a later format (99"));
}

TEST_F(CalibrationFileTest, DamageIsSaid) {
  const auto fresh = [&] { ASSERT_TRUE(WriteCalibration(SomeRecord(), path_).ok()); };
  fresh();
  SetText(Text().substr(0, Text().size() / 2));
  ExpectDamaged("damaged");
  SetText("\x01\x02garbage");
  ExpectDamaged("damaged");
  SetText("");
  ExpectDamaged("no format number");
  fresh();
  Edit("complete: true", "complete: true warp_factor: 7");
  ExpectDamaged("warp_factor");
  fresh();
  Edit("sample_us: 3000", "sample_us: -1");
  ExpectDamaged("PREFILL of -1 us");
  fresh();
  Edit("sample_us: 3000", "sample_us: nan");
  ExpectDamaged("PREFILL of nan us");
  fresh();
  Edit("rows: 64", "rows: 0");
  ExpectDamaged("PREFILL of nothing");
  fresh();
  Edit("level_percent: 100", "level_percent: 101");
  ExpectDamaged("level 101");
  fresh();
  Edit("divergence: 1.5", "divergence: -1.5");
  ExpectDamaged("error of KV_FORMAT_Q4 of -1.5");
  fresh();
  Edit("divergence: 1.5", "divergence: inf");
  ExpectDamaged("error of KV_FORMAT_Q4 of inf");
}

TEST_F(CalibrationFileTest, LiesBesideThePackedModel) {
  const std::string one = CalibrationPath("models/a.gguf", folder_.path());
  EXPECT_THAT(one, HasSubstr(folder_.path() + "/a-"));
  EXPECT_THAT(one, testing::EndsWith(".calibration.textproto"));
  EXPECT_NE(one, CalibrationPath("other/a.gguf", folder_.path()));
  EXPECT_EQ(one, CalibrationPath("models/../models/a.gguf", folder_.path()));
}

TEST_F(CalibrationFileTest, ATlmIsKnownByItsBytes) {
  const std::string path = folder_ / "tlm.gguf";
  std::ofstream(path) << "weights";
  const auto key = [&] { return MakeTlmKey(path, "avx2", 2, SomeBoard()); };
  const auto first = key();
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(KeyDifference(*first, *key()), "");
  std::ofstream(path) << "Weights";
  EXPECT_THAT(KeyDifference(*first, *key()), HasSubstr("another model"));
  std::filesystem::remove(path);
  EXPECT_TRUE(absl::IsNotFound(key().status()));
}

TEST(MergeSamplesTest, KeepsWhatIsPlannedAndKnown) {
  const auto plan = [](uint32_t rows) {
    return Point(v1::CALIBRATION_KIND_PREFILL, 100, rows, 0, {});
  };
  v1::Calibration recorded;
  *recorded.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 100, 64, 0, {5, 6});
  *recorded.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 50, 16, 0, {7});
  *recorded.add_points() = Point(v1::CALIBRATION_KIND_DECODE, 100, 16, 0, {8});
  *recorded.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 100, 256, 0, {});
  recorded.mutable_points(3)->set_left_out("too long");
  const auto points =
      MergeSamples(std::vector<v1::CalibrationPoint>{plan(16), plan(64), plan(256)}, recorded);
  ASSERT_EQ(points.size(), 3u);
  EXPECT_THAT(points[0].sample_us(), testing::IsEmpty());
  EXPECT_THAT(points[1].sample_us(), ElementsAre(5, 6));
  EXPECT_EQ(points[2].left_out(), "too long");
}

TEST(SummaryTest, MediansSlopesAndOrder) {
  v1::Calibration record = SomeRecord();
  // A disturbed short prefill must not take longer than a longer one.
  *record.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 40, 16, 0, {2000});
  *record.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 40, 64, 0, {1500});
  *record.add_points() = Point(v1::CALIBRATION_KIND_DECODE, 40, 1, 0, {400});
  *record.add_points() = Point(v1::CALIBRATION_KIND_DECODE, 40, 4, 0, {390});
  *record.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 10, 16, 0, {100});
  const std::vector<LevelTimes> levels = LevelTimesOf(record);
  ASSERT_EQ(levels.size(), 2u) << "no decode time of level 10";
  EXPECT_EQ(levels[0].percent, 40);
  EXPECT_THAT(levels[0].prefill, ElementsAre(PrefillTime{16, 2000}, PrefillTime{64, 2000}));
  EXPECT_EQ(levels[0].decode_us_per_extra_row, 0) << "not below nothing";
  EXPECT_EQ(levels[0].decode_us_per_context_token, 0) << "not measured";
  EXPECT_EQ(levels[1].percent, 100);
  EXPECT_THAT(levels[1].prefill,
              ElementsAre(PrefillTime{16, 1000}, PrefillTime{64, 3000}, PrefillTime{256, 16'000}));
  EXPECT_EQ(levels[1].decode_us, 800);
  EXPECT_DOUBLE_EQ(levels[1].decode_us_per_extra_row, 50);
  EXPECT_DOUBLE_EQ(levels[1].decode_us_per_context_token, 0.25);
  const StepCost cost = FullStepCost(levels);
  EXPECT_DOUBLE_EQ(cost.prefill_us_per_token, 3000.0 / 64);
  EXPECT_EQ(cost.decode_us, 800);
  EXPECT_EQ(cost.decode_us_per_extra, 50);
}

// Prefill of n tokens takes 1 ms, 2 us per token and 0.01 us per pair of a token and an earlier
// one.
TEST(SummaryTest, HowMuchDearerLongPromptsAreTellsWhatDepthAdds) {
  v1::Calibration record;
  for (const uint32_t tokens : {16u, 32u, 64u, 128u, 256u, 512u, 1024u}) {
    *record.add_points() = Point(v1::CALIBRATION_KIND_PREFILL, 100, tokens, 0,
                                 {1000 + 2.0 * tokens + 0.01 * tokens * tokens / 2});
  }
  *record.add_points() = Point(v1::CALIBRATION_KIND_DECODE, 100, 1, 0, {900});
  const std::vector<LevelTimes> levels = LevelTimesOf(record);
  ASSERT_EQ(levels.size(), 1u);
  EXPECT_NEAR(levels[0].prefill_us_per_context_token, 0.01, 1e-6);
  EXPECT_NEAR(FullStepCost(levels).depth.prefill_us, 0.01, 1e-6);
}

TEST(SummaryTest, ReadingTimesBecomeOneRate) {
  v1::Calibration record;
  EXPECT_EQ(ReadUsPerByte(record), 0);
  for (const auto& [bytes, us] :
       {std::pair(256, 512.0), std::pair(1024, 1024.0), std::pair(4096, 6144.0)}) {
    v1::CalibrationPoint& point = *record.add_points();
    point.set_kind(v1::CALIBRATION_KIND_READ);
    point.set_text_bytes(static_cast<uint32_t>(bytes));
    point.add_sample_us(us);
  }
  EXPECT_DOUBLE_EQ(ReadUsPerByte(record), 1.5);
}

}  // namespace
}  // namespace withy::engine
