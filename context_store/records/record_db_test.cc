#include "context_store/records/record_db.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>
#include <sys/mount.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "context_store/testing.h"

namespace withy::context_store {
namespace {

using ::testing::HasSubstr;

absl::Status Put(RecordDb& db, std::string_view key, std::string_view value) {
  RecordBatch batch;
  batch.Put(key, value);
  return db.Write(batch);
}

// A file system that fails every append to a log with "no space" while told to.
class FullFile final : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FullFile(std::unique_ptr<rocksdb::FSWritableFile> file, const std::atomic<bool>& full)
      : FSWritableFileOwnerWrapper(std::move(file)), full_(full) {}
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* debug) override {
    if (full_) return rocksdb::IOStatus::NoSpace("the test says so");
    return FSWritableFileOwnerWrapper::Append(data, options, debug);
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           const rocksdb::DataVerificationInfo& info,
                           rocksdb::IODebugContext* debug) override {
    if (full_) return rocksdb::IOStatus::NoSpace("the test says so");
    return FSWritableFileOwnerWrapper::Append(data, options, info, debug);
  }

 private:
  const std::atomic<bool>& full_;
};

class FullFileSystem final : public rocksdb::FileSystemWrapper {
 public:
  FullFileSystem() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FullFileSystem"; }
  rocksdb::IOStatus NewWritableFile(const std::string& name, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* file,
                                    rocksdb::IODebugContext* debug) override {
    rocksdb::IOStatus status = FileSystemWrapper::NewWritableFile(name, options, file, debug);
    if (status.ok()) *file = std::make_unique<FullFile>(std::move(*file), full);
    return status;
  }
  rocksdb::IOStatus GetFreeSpace(const std::string& path, const rocksdb::IOOptions& options,
                                 uint64_t* bytes, rocksdb::IODebugContext* debug) override {
    if (free_bytes == 0) return FileSystemWrapper::GetFreeSpace(path, options, bytes, debug);
    *bytes = free_bytes;
    return rocksdb::IOStatus::OK();
  }

  // Nothing can be opened while `gone`.
  rocksdb::IOStatus NewSequentialFile(const std::string& name, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* file,
                                      rocksdb::IODebugContext* debug) override {
    if (gone) return rocksdb::IOStatus::IOError("the test says so");
    return FileSystemWrapper::NewSequentialFile(name, options, file, debug);
  }

  std::atomic<bool> full{false};
  std::atomic<bool> gone{false};
  std::atomic<uint64_t> free_bytes{0};  // 0 = ask the disk
};

TEST(RecordDb, WhatWasWrittenIsThereAfterAKill) {
  TempDir dir;
  auto db = RecordDb::Open({.path = dir / "db"});
  ASSERT_TRUE(db.ok()) << db.status();
  ASSERT_TRUE(Put(**db, "a/1", "one").ok());
  ASSERT_TRUE(Put(**db, "a/2", std::string(100'000, 'x')).ok());
  auto after = RecordDb::Open({.path = dir.Snapshot("db")});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(*(*after)->Get("a/1"), "one");
  EXPECT_EQ((*after)->Get("a/2")->size(), 100'000u);
  EXPECT_EQ((*after)->run(), (*db)->run() + 1);
}

TEST(RecordDb, ASecondProcessIsRefusedAndToldWhy) {
  TempDir dir;
  auto db = RecordDb::Open({.path = dir / "db"});
  ASSERT_TRUE(db.ok());
  const absl::Status second = RecordDb::Open({.path = dir / "db"}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr(dir / "db"));
}

TEST(RecordDb, WhatOthersCouldReadIsClosedToThem) {
  TempDir dir;
  std::filesystem::create_directory(dir / "db");
  std::filesystem::permissions(dir / "db", std::filesystem::perms{0755});
  ASSERT_TRUE(RecordDb::Open({.path = dir / "db"}).ok());
  EXPECT_EQ(std::filesystem::status(dir / "db").permissions(), std::filesystem::perms{0700});
}

TEST(RecordDb, ADirectoryThatCannotBeMadeIsNamedWithTheRemedy) {
  TempDir dir;
  std::ofstream(dir / "db") << "in the way";
  const absl::Status status = RecordDb::Open({.path = dir / "db"}).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr(dir / "db"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("state_dir"));
}

TEST(RecordDb, ScanGivesOnePrefixInOrder) {
  TempDir dir;
  auto db = RecordDb::Open({.path = dir / "db"});
  ASSERT_TRUE(db.ok());
  for (const char* key : {"b/2", "b/1", "a/9", "c/0", "b/3"}) ASSERT_TRUE(Put(**db, key, key).ok());
  std::vector<std::string> seen;
  const auto visit = [&](std::string_view key, const absl::StatusOr<std::string>& payload) {
    EXPECT_EQ(*payload, key);
    seen.emplace_back(key);
    return true;
  };
  ASSERT_TRUE((*db)->Scan("b/", visit).ok());
  EXPECT_THAT(seen, ::testing::ElementsAre("b/1", "b/2", "b/3"));
  seen.clear();
  ASSERT_TRUE((*db)->Scan("b/", visit, "b/2").ok());
  EXPECT_THAT(seen, ::testing::ElementsAre("b/2", "b/3"));
}

TEST(RecordDb, ADamagedValueNamesItsKeyAndOthersGoOn) {
  TempDir dir;
  {
    auto db = RecordDb::Open({.path = dir / "db"});
    ASSERT_TRUE(db.ok());
    ASSERT_TRUE(Put(**db, "a/good", "fine").ok());
    ASSERT_TRUE(Put(**db, "a/bad", "fine").ok());
  }
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), dir / "db", &raw).ok());
    ASSERT_TRUE(
        raw->Put(rocksdb::WriteOptions(), "a/bad", std::string("\x01garbage garbage")).ok());
    delete raw;
  }
  auto db = RecordDb::Open({.path = dir / "db"});
  ASSERT_TRUE(db.ok());
  const absl::Status bad = (*db)->Get("a/bad").status();
  EXPECT_TRUE(absl::IsDataLoss(bad));
  EXPECT_THAT(std::string(bad.message()), HasSubstr("a/bad"));
  EXPECT_EQ(*(*db)->Get("a/good"), "fine");
}

TEST(RecordDb, AFullDiskRefusesWritesServesReadsAndRecovers) {
  TempDir dir;
  const auto files = std::make_shared<FullFileSystem>();
  const auto env = rocksdb::NewCompositeEnv(files);
  auto db = RecordDb::Open({.path = dir / "db", .env = env.get()});
  ASSERT_TRUE(db.ok()) << db.status();
  ASSERT_TRUE(Put(**db, "a/1", "one").ok());
  files->full = true;
  for (int i = 0; i < 3; ++i) {
    const absl::Status refused = Put(**db, "a/2", "two");
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(dir / "db"));
    EXPECT_EQ(*(*db)->Get("a/1"), "one");
  }
  files->full = false;
  // Retries for at most twenty seconds, as a client would.
  absl::Status again;
  for (int tries = 0; tries < 200; ++tries) {
    again = Put(**db, "a/3", "three");
    if (!absl::IsResourceExhausted(again)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  ASSERT_TRUE(again.ok()) << again;
  EXPECT_EQ(*(*db)->Get("a/3"), "three");
  auto after = RecordDb::Open({.path = dir.Snapshot("db")});
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(*(*after)->Get("a/1"), "one");
  EXPECT_EQ(*(*after)->Get("a/3"), "three");
}

// Concurrent writers while the disk fails so badly that the database cannot even be opened for
// reading, and then recovers.
TEST(RecordDb, ADiskThatIsGoneRefusesEveryWriterAndIsGoneOnWith) {
  TempDir dir;
  const auto files = std::make_shared<FullFileSystem>();
  const auto env = rocksdb::NewCompositeEnv(files);
  auto db = RecordDb::Open({.path = dir / "db", .env = env.get()});
  ASSERT_TRUE(db.ok()) << db.status();
  std::atomic<bool> over{false};
  std::vector<std::thread> writers;
  for (int t = 0; t < 4; ++t) {
    writers.emplace_back([&, t] {
      while (!over) (void)Put(**db, "a/" + std::to_string(t), "value");
    });
  }
  for (int i = 0; i < 200; ++i) {
    files->gone = files->full = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    files->gone = files->full = false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  over = true;
  for (std::thread& writer : writers) writer.join();
  EXPECT_TRUE(Put(**db, "a/after", "after").ok());
  EXPECT_EQ(*(*db)->Get("a/after"), "after");
}

// The same on a real full file system.
TEST(RecordDb, AReallyFullDiskLosesNothingAndIsGoneOnWith) {
  const SmallDisk disk;
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
  // With the reserve a write is refused before the disk is full; without it RocksDB hits the limit.
  for (const uint64_t reserve : {uint64_t{1} << 20, uint64_t{0}}) {
    const std::string path = disk / ("db" + std::to_string(reserve));
    std::vector<std::string> kept;
    {
      auto db = RecordDb::Open({.path = path, .min_free_bytes = reserve});
      ASSERT_TRUE(db.ok()) << db.status();
      ASSERT_TRUE(Put(**db, "a/before", std::string(10'000, 'b')).ok());
      kept.emplace_back("a/before");
      disk.Fill();
      absl::Status refused;
      for (int i = 0; i < 2000 && refused.ok(); ++i) {  // the log may have some space left
        const std::string key = "a/" + std::to_string(i);
        refused = Put(**db, key, std::string(20'000, 'x'));
        if (refused.ok()) kept.push_back(key);
      }
      ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()), HasSubstr("disk full"));
      EXPECT_THAT(std::string(refused.message()), HasSubstr(path));
      for (const std::string& key : kept) EXPECT_TRUE((*db)->Get(key).ok()) << key;
      disk.MakeRoom();
      // Retries for at most thirty seconds, as a client would.
      absl::Status again;
      for (int tries = 0; tries < 300; ++tries) {
        again = Put(**db, "a/after", "after");
        if (!absl::IsResourceExhausted(again)) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
      }
      ASSERT_TRUE(again.ok()) << again;
      kept.emplace_back("a/after");
    }
    auto after = RecordDb::Open({.path = path, .min_free_bytes = reserve});
    ASSERT_TRUE(after.ok()) << after.status();
    for (const std::string& key : kept) EXPECT_TRUE((*after)->Get(key).ok()) << key;
  }
}

// However little space there is, opening returns a database or an error that names the amount.
TEST(RecordDb, AStartOnAFullDiskIsRefusedByNameAndLosesNothing) {
  for (const bool fresh : {true, false}) {
    for (const uint64_t left :
         {0, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1000 << 10, 3 << 20, 9 << 20, 11 << 20}) {
      SCOPED_TRACE(testing::Message() << (fresh ? "fresh, " : "there, ") << left << " bytes left");
      const SmallDisk disk("size=40m");
      if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
      const std::string path = disk / "db";
      if (!fresh) {
        auto db = RecordDb::Open({.path = path});
        ASSERT_TRUE(db.ok()) << db.status();
        for (int i = 0; i < 60; ++i) {
          ASSERT_TRUE(Put(**db, "a/" + std::to_string(i), std::string(20'000, 'x')).ok());
        }
      }
      disk.Fill(left);
      for (int i = 0; i < 2; ++i) {
        const absl::Status refused = RecordDb::Open({.path = path}).status();
        if (refused.ok() && left > 1 << 20) continue;  // that is enough space
        ASSERT_TRUE(absl::IsResourceExhausted(refused)) << refused;
        EXPECT_THAT(std::string(refused.message()),
                    testing::AllOf(HasSubstr("disk full"), HasSubstr(path), HasSubstr("bytes free"),
                                   HasSubstr("state_dir")));
      }
      disk.MakeRoom();
      const auto db = RecordDb::Open({.path = path});
      ASSERT_TRUE(db.ok()) << db.status();
      for (int i = 0; i < (fresh ? 0 : 60); ++i) {
        EXPECT_TRUE((*db)->Get("a/" + std::to_string(i)).ok()) << i;
      }
    }
  }
}

TEST(RecordDb, AStartWithoutInodesIsRefusedByName) {
  const SmallDisk disk("size=40m,nr_inodes=40");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
  ASSERT_TRUE(RecordDb::Open({.path = disk / "db"}).ok());
  std::vector<std::string> files;
  for (int i = 0; i < 40; ++i) {
    if (!std::ofstream(files.emplace_back(disk / std::to_string(i)))) break;
  }
  const absl::Status refused = RecordDb::Open({.path = disk / "db"}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              testing::AllOf(HasSubstr("inodes"), HasSubstr(disk / "db")));
  for (const std::string& file : files) std::filesystem::remove(file);
  EXPECT_TRUE(RecordDb::Open({.path = disk / "db"}).ok());
}

TEST(RecordDb, AReadOnlyDiskIsNamed) {
  const SmallDisk disk("size=40m");
  if (!disk.mounted()) GTEST_SKIP() << "mounting a tmpfs needs CAP_SYS_ADMIN: run it as root";
  for (const bool fresh : {true, false}) {
    if (!fresh) {
      ASSERT_TRUE(RecordDb::Open({.path = disk / "db"}).ok());
    }
    ASSERT_TRUE(disk.Remount(MS_RDONLY));
    const absl::Status refused = RecordDb::Open({.path = disk / "db"}).status();
    EXPECT_FALSE(refused.ok());
    EXPECT_THAT(
        std::string(refused.message()),
        testing::AllOf(HasSubstr(disk / "db"), HasSubstr("state_dir"), HasSubstr("Read-only")));
    ASSERT_TRUE(disk.Remount(0));
  }
}

// RocksDB refuses writes after a flush that failed in the background.
TEST(RecordDb, AFlushThatFoundNoRoomRefusesNoWriteOnceThereIsSome) {
  TempDir dir;
  const auto files = std::make_shared<FullFileSystem>();
  const auto env = rocksdb::NewCompositeEnv(files);
  auto db = RecordDb::Open({.path = dir / "db", .env = env.get()});
  ASSERT_TRUE(db.ok()) << db.status();
  ASSERT_TRUE(Put(**db, "a/1", "one").ok());
  files->free_bytes = 1;
  const absl::Status refused = (*db)->Rewrite("a/");
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  RecordBatch batch;
  batch.Delete("a/2");
  EXPECT_TRUE((*db)->Write(batch).ok()) << "what cannot succeed was not begun";
  files->free_bytes = 0;
  files->full = true;
  EXPECT_FALSE((*db)->Rewrite("a/").ok());
  files->full = false;
  const absl::Status written = Put(**db, "a/3", "three");
  EXPECT_TRUE(written.ok()) << written;
  EXPECT_EQ(*(*db)->Get("a/1"), "one");
  EXPECT_TRUE((*db)->Rewrite("a/").ok());
}

TEST(RecordDb, TheReserveIsForDeletions) {
  TempDir dir;
  const auto files = std::make_shared<FullFileSystem>();
  const auto env = rocksdb::NewCompositeEnv(files);
  auto db = RecordDb::Open({.path = dir / "db", .min_free_bytes = 1000, .env = env.get()});
  ASSERT_TRUE(db.ok());
  ASSERT_TRUE(Put(**db, "a/1", "one").ok());
  files->free_bytes = 999;
  EXPECT_TRUE(absl::IsResourceExhausted(Put(**db, "a/2", "two")));
  RecordBatch batch;
  batch.Delete("a/1");
  EXPECT_TRUE((*db)->Write(batch).ok());
  EXPECT_TRUE(absl::IsNotFound((*db)->Get("a/1").status()));
  EXPECT_TRUE(absl::IsNotFound((*db)->Get("a/2").status()));
}

}  // namespace
}  // namespace withy::context_store
