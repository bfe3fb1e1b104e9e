#include "context_store/disk/read_probe.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "context_store/testing.h"

namespace withy::context_store {
namespace {

class ReadProbeTest : public ::testing::Test {
 protected:
  ReadProbeTest() {
    std::filesystem::create_directories(dir_ / "kv");
    options_.directory = dir_ / "kv";
  }

  TempDir dir_;
  KvSegmentsOptions options_;
};

TEST_F(ReadProbeTest, MeasuresASlowDisk) {
  options_.bytes_per_second = 100 << 20;
  const auto costs = MeasureReadCosts(options_, Clock::Real());
  ASSERT_TRUE(costs.ok()) << costs.status();
  // 100 MiB/s are 10 ms a MiB. The disk itself may be slower, and a busy machine, too.
  EXPECT_GT(costs->mib_ms, 8);
  EXPECT_GT(costs->fixed_ms, 0);
  EXPECT_TRUE(std::filesystem::is_empty(options_.directory)) << "nothing of the probe stays";
}

TEST_F(ReadProbeTest, IsKeptForTheDiskAndThePowerMode) {
  const auto db = RecordDb::Open({.path = dir_ / "db"});
  ASSERT_TRUE(db.ok()) << db.status();
  BoardInfo board{.processor = "CPU A", .cores = 2, .governor = "powersave", .max_khz = 1};
  const auto first = FindReadCosts(options_, board, **db, Clock::Real());
  ASSERT_TRUE(first.ok()) << first.status();
  const FakeClock still;  // with it, nothing can be measured
  const auto again = FindReadCosts(options_, board, **db, still);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->mib_ms, first->mib_ms);
  EXPECT_EQ(again->fixed_ms, first->fixed_ms);
  board.governor = "performance";
  EXPECT_TRUE(absl::IsFailedPrecondition(FindReadCosts(options_, board, **db, still).status()));
}

TEST_F(ReadProbeTest, ADamagedRecordIsRefused) {
  const std::string good = EncodeReadCosts({.fixed_ms = 0.5, .mib_ms = 2}, "here");
  EXPECT_EQ(DecodeReadCosts(good, "here")->mib_ms, 2);
  EXPECT_TRUE(absl::IsNotFound(DecodeReadCosts(good, "there").status()));
  for (size_t bytes = 0; bytes < 17; ++bytes) {
    EXPECT_TRUE(absl::IsDataLoss(DecodeReadCosts(good.substr(0, bytes), "here").status())) << bytes;
  }
  for (const double bad : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity()}) {
    EXPECT_TRUE(absl::IsDataLoss(
        DecodeReadCosts(EncodeReadCosts({.fixed_ms = 1, .mib_ms = bad}, "here"), "here").status()))
        << bad;
  }
}

}  // namespace
}  // namespace withy::context_store
