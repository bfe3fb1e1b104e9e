// The store's use of the disk: what it gives up for room, what it spares the disk, and damage.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "context_store/store_testing.h"

namespace withy::context_store {
namespace {

namespace fs = std::filesystem;

class StoreDiskTest : public StoreFixture {
 protected:
  // The segment files, oldest first.
  std::vector<fs::path> Segments() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(dir_ / kv_)) {
      if (entry.path().extension() == ".kv") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  uint64_t StoredBytes(const std::string& context) { return store_->KvOf(context).stored_bytes; }
};

TEST_F(StoreDiskTest, AFullDiskGivesUpWhatIsUsedLeast) {
  segment_bytes_ = 64 << 10;
  disk_bytes_ = 4 * segment_bytes_;
  Start();
  std::vector<std::string> contexts;
  for (int i = 0; i < 8; ++i) {
    contexts.push_back(Create());
    Talk(contexts.back(), 80);
    if (i > 0) Talk(contexts.front(), 1);  // the first one is used all the time
  }
  EXPECT_GT(StoredBytes(contexts.back()), 0u);
  EXPECT_EQ(StoredBytes(contexts[1]), 0u);
  const KvStorageStats disk = store_->Stats().disk;
  EXPECT_GT(disk.given_up_segments, 0u);
  EXPECT_LE(disk.segments.disk_bytes, disk_bytes_);
  EXPECT_EQ(store_->contexts().ReadSegments("app", contexts[1])->size(), 1u) << "text stays";
}

TEST_F(StoreDiskTest, ADayHasALimitThatOutlivesARestart) {
  daily_bytes_ = 256 << 10;
  Start();
  std::vector<std::string> contexts;
  for (int i = 0; i < 12; ++i) {
    contexts.push_back(Create());
    Talk(contexts.back(), 40);
  }
  EXPECT_GT(StoredBytes(contexts.front()), 0u);
  EXPECT_EQ(StoredBytes(contexts.back()), 0u);
  const StoreStats stats = store_->Stats();
  EXPECT_GT(stats.not_written_chunks, 0u);
  EXPECT_GT(stats.disk.written_day_bytes, daily_bytes_ / 2);
  EXPECT_LE(stats.disk.written_day_bytes, daily_bytes_);
  // A context that is used again is worth the day's reserve.
  Talk(contexts.back(), 1);
  EXPECT_GT(StoredBytes(contexts.back()), 0u);
  const uint64_t written = store_->Stats().disk.written_day_bytes;
  Restart();
  EXPECT_EQ(store_->Stats().disk.written_day_bytes, written);
}

TEST_F(StoreDiskTest, ASegmentThatWasCutIsCounted) {
  Start();
  const std::string context = Create();
  Talk(context, 40);
  ASSERT_EQ(Segments().size(), 1u);
  store_.reset();
  fs::resize_file(Segments()[0], 8 << 10);
  Restart();
  EXPECT_GE(store_->Stats().disk.damage.cut, 1u);
  EXPECT_LT(Resident(context).size(), 40u);
  Talk(context, 4);
}

TEST_F(StoreDiskTest, SegmentsThatWereSwappedAreCountedAndNotServed) {
  segment_bytes_ = 32 << 10;
  Start();
  const std::string first = Create(), second = Create();
  Talk(first, 30);
  Talk(second, 30);
  store_.reset();
  const std::vector<fs::path> files = Segments();
  ASSERT_GE(files.size(), 2u);
  fs::rename(files.front(), dir_ / "swap");
  fs::rename(files.back(), files.front());
  fs::rename(dir_ / "swap", files.back());
  Restart();
  const size_t served = Resident(first).size() + Resident(second).size();
  EXPECT_LT(served, 60u);
  const KvDamage damage = store_->Stats().disk.damage;
  EXPECT_GE(damage.wrong + damage.cut, 1u);
}

TEST_F(StoreDiskTest, AMissingSegmentIsCounted) {
  Start();
  const std::string context = Create();
  Talk(context, 20);
  store_.reset();
  fs::remove(Segments()[0]);
  Restart();
  EXPECT_GE(store_->Stats().disk.damage.missing, 1u);
  EXPECT_TRUE(Resident(context).empty());
}

TEST_F(StoreDiskTest, StatisticsTellWhereKvIs) {
  compresses_ahead_ = true;
  Start();
  const std::string context = Create();
  Talk(context, 60);
  StoreStats stats = store_->Stats();
  uint64_t resident = 0, stored = 0;
  for (const uint64_t bytes : stats.bytes.resident) resident += bytes;
  for (const uint64_t bytes : stats.bytes.stored) stored += bytes;
  EXPECT_EQ(resident, store_->KvOf(context).resident_bytes);
  EXPECT_EQ(stored, StoredBytes(context));
  EXPECT_GT(stats.bytes.resident[static_cast<size_t>(KvFormat::kQ8)], 0u);
  EXPECT_LT(stats.bytes.resident[static_cast<size_t>(KvFormat::kQ8)], resident);
  EXPECT_EQ(stats.opened_resident + stats.opened_partly + stats.opened_without, 0u);
  EXPECT_GE(stats.disk.segments.written_bytes, stats.disk.segments.kv_bytes);
  Resident(context);
  Restart();
  Resident(context);
  Resident(context);
  stats = store_->Stats();
  EXPECT_EQ(stats.opened_without, 1u);
  EXPECT_EQ(stats.opened_resident, 2u) << "before the restart, too";
  EXPECT_EQ(stats.read_chunks, 60u);
}

}  // namespace
}  // namespace withy::context_store
