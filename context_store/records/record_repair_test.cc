#include "context_store/records/record_repair.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "context_store/records/record_db.h"
#include "context_store/testing.h"

namespace withy::context_store {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr int kRecords = 3000;

std::string RecordKeyOf(int i) { return "ctx/app/c" + std::to_string(100'000 + i); }
std::string PayloadOf(int i) { return std::string(200, static_cast<char>('a' + i % 26)); }

class RecordRepairTest : public testing::Test {
 protected:
  // Records in tables, and some in the log alone.
  void SetUp() override {
    auto db = RecordDb::Open({.path = path_});
    ASSERT_TRUE(db.ok()) << db.status();
    RecordBatch batch;
    for (int i = 0; i < kRecords; ++i) batch.Put(RecordKeyOf(i), PayloadOf(i));
    ASSERT_TRUE((*db)->Write(batch).ok());
    ASSERT_TRUE((*db)->Rewrite("ctx/").ok());
    RecordBatch late;
    late.Put("app/late", "x");
    ASSERT_TRUE((*db)->Write(late).ok());
  }
  std::vector<fs::path> Files(const std::string& ending) const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(path_)) {
      if (entry.path().filename().string().ends_with(ending)) files.push_back(entry.path());
    }
    return files;
  }
  // How many records have their values.
  int Readable() const {
    const auto db = RecordDb::Open({.path = path_});
    EXPECT_TRUE(db.ok()) << db.status();
    int readable = 0;
    for (int i = 0; db.ok() && i < kRecords; ++i) {
      const auto value = (*db)->Get(RecordKeyOf(i));
      readable += value.ok() && *value == PayloadOf(i) ? 1 : 0;
    }
    EXPECT_EQ(*(*db)->Get("app/late"), "x");
    return readable;
  }

  TempDir dir_;
  const std::string path_ = dir_ / "records";
};

TEST_F(RecordRepairTest, WhatOpensIsLeftAlone) {
  const auto report = RepairRecords(path_, 7);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->was_intact);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / ""), {}), 1);
  EXPECT_EQ(Readable(), kRecords);
}

// A store never begins anew over tables that it cannot find.
TEST_F(RecordRepairTest, WithoutItsIndexAllComesBack) {
  for (const bool empty : {true, false}) {
    if (empty) {
      std::ofstream(path_ + "/CURRENT", std::ios::trunc).flush();
    } else {
      fs::remove(path_ + "/CURRENT");
      for (const fs::path& manifest : Files("")) {
        if (manifest.filename().string().starts_with("MANIFEST")) fs::remove(manifest);
      }
    }
    const auto opened = RecordDb::Open({.path = path_});
    EXPECT_EQ(opened.status().code(), absl::StatusCode::kDataLoss) << opened.status();
    EXPECT_THAT(std::string(opened.status().message()), HasSubstr("withyctl store repair"));
    const auto report = RepairRecords(path_, empty ? 1 : 2);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_FALSE(report->was_intact);
    EXPECT_EQ(report->contexts, static_cast<uint64_t>(kRecords));
    EXPECT_EQ(report->apps, 1u);
    EXPECT_EQ(report->damaged, 0u);
    EXPECT_TRUE(fs::exists(report->kept + "/LOCK")) << "as it was";
    EXPECT_EQ(Readable(), kRecords);
  }
}

// A bad block costs its own records, not its table's.
TEST_F(RecordRepairTest, ADamagedTableLosesWhatIsDamaged) {
  const std::vector<fs::path> tables = Files(".sst");
  ASSERT_FALSE(tables.empty());
  for (const fs::path& table : tables) {
    const auto bytes = static_cast<std::streamoff>(fs::file_size(table));
    if (bytes < 10'000) continue;
    std::fstream file(table, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(bytes / 2);
    file.write("damage", 6);
  }
  fs::remove(path_ + "/CURRENT");
  const auto report = RepairRecords(path_, 3);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->salvaged, 0u);
  const int readable = Readable();
  EXPECT_LT(readable, kRecords);
  EXPECT_GT(readable, kRecords / 2);
}

TEST_F(RecordRepairTest, AStoreThatRunsIsNotRepaired) {
  const auto db = RecordDb::Open({.path = path_});
  ASSERT_TRUE(db.ok());
  EXPECT_EQ(RepairRecords(path_, 4).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(RecordRepairTest, WhereNothingIsReadableNothingChanges) {
  for (const fs::path& file : Files("")) {
    if (file.filename() == "LOCK") continue;
    std::ofstream(file, std::ios::trunc) << "gone";
  }
  const auto report = RepairRecords(path_, 5);
  EXPECT_EQ(report.status().code(), absl::StatusCode::kDataLoss) << report.status();
  EXPECT_THAT(std::string(report.status().message()), HasSubstr("store restore"));
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / ""), {}), 1);
  EXPECT_EQ(RepairRecords(dir_ / "nowhere", 6).status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace withy::context_store
