#include "cli/backup_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace withy::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

void Write(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}
std::string Read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class BackupFiles : public ::testing::Test {
 protected:
  BackupFiles() {
    std::string pattern = (fs::temp_directory_path() / "withy-backup-XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
    fs::create_directories(dir_ + "/from/records");
    Write(dir_ + "/from/records/CURRENT", "MANIFEST-1\n");
    Write(dir_ + "/from/records/000001.sst", std::string(700'000, 't'));
    Write(dir_ + "/from/records/LOCK", "");
    Write(dir_ + "/from/master.key", std::string(32, 'k'));
  }
  ~BackupFiles() override { fs::remove_all(dir_); }

  void MakeBackup() {
    info_ = {.master_key_id = "0123456789abcdef", .created_unix_s = 1'700'000'000};
    ASSERT_TRUE(WriteBackup(dir_ + "/from", dir_ + "/backup", &info_).ok());
  }
  absl::Status Restore(const std::string& state) {
    return RestoreBackup(dir_ + "/backup", dir_ + "/" + state).status();
  }

  std::string dir_;
  BackupInfo info_;
};

TEST_F(BackupFiles, ABackupComesBackAsItWas) {
  MakeBackup();
  EXPECT_EQ(info_.files, 3u);
  EXPECT_TRUE(info_.has_master_key);
  EXPECT_EQ(std::system(("cd " + dir_ + "/backup && sha256sum --quiet -c SHA256SUMS").c_str()), 0);
  const auto checked = CheckBackup(dir_ + "/backup");
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_EQ(checked->master_key_id, "0123456789abcdef");
  EXPECT_EQ(checked->created_unix_s, 1'700'000'000);
  const auto restored = RestoreBackup(dir_ + "/backup", dir_ + "/new/state");
  ASSERT_TRUE(restored.ok()) << restored.status();
  EXPECT_EQ(Read(dir_ + "/new/state/records/000001.sst"), std::string(700'000, 't'));
  EXPECT_EQ(Read(dir_ + "/new/state/records/CURRENT"), "MANIFEST-1\n");
  EXPECT_EQ(Read(dir_ + "/new/state/master.key"), std::string(32, 'k'));
  struct stat info {};
  ASSERT_EQ(stat((dir_ + "/new/state/master.key").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((dir_ + "/new/state/records").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST_F(BackupFiles, NothingIsOverwritten) {
  MakeBackup();
  const absl::Status again = WriteBackup(dir_ + "/from", dir_ + "/backup", &info_);
  EXPECT_TRUE(absl::IsAlreadyExists(again)) << again;
  EXPECT_THAT(std::string(again.message()),
              AllOf(HasSubstr(dir_ + "/backup"), HasSubstr("new directory")));
  fs::create_directories(dir_ + "/state/records");
  const absl::Status used = Restore("state");
  EXPECT_TRUE(absl::IsFailedPrecondition(used)) << used;
  EXPECT_THAT(std::string(used.message()),
              AllOf(HasSubstr(dir_ + "/state/records"), HasSubstr("move it away")));
  fs::create_directories(dir_ + "/keyed");
  Write(dir_ + "/keyed/master.key", std::string(32, 'o'));
  const absl::Status keyed = Restore("keyed");
  EXPECT_TRUE(absl::IsFailedPrecondition(keyed)) << keyed;
  EXPECT_THAT(std::string(keyed.message()), HasSubstr(dir_ + "/keyed/master.key"));
  EXPECT_EQ(Read(dir_ + "/keyed/master.key"), std::string(32, 'o'));
  EXPECT_FALSE(fs::exists(dir_ + "/keyed/records"));
  Write(dir_ + "/keyed/master.key", std::string(32, 'k'));
  EXPECT_TRUE(Restore("keyed").ok()) << "the same key";
}

TEST_F(BackupFiles, ADamagedBackupIsNotRestored) {
  EXPECT_TRUE(absl::IsNotFound(CheckBackup(dir_ + "/none").status()));
  MakeBackup();
  const std::string table = dir_ + "/backup/records/000001.sst";
  const auto refused = [&](absl::StatusCode code, const std::string& words) {
    for (const absl::Status& status : {CheckBackup(dir_ + "/backup").status(), Restore("state")}) {
      EXPECT_EQ(status.code(), code) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(words));
    }
    EXPECT_FALSE(fs::exists(dir_ + "/state/records"));
    EXPECT_FALSE(fs::exists(dir_ + "/state/master.key"));
  };
  Write(table, std::string(699'999, 't') + "u");
  refused(absl::StatusCode::kDataLoss, table);
  fs::remove(table);
  refused(absl::StatusCode::kDataLoss, table);
  Write(table, std::string(700'000, 't'));
  EXPECT_TRUE(CheckBackup(dir_ + "/backup").ok());
  const std::string sums = Read(dir_ + "/backup/SHA256SUMS");
  Write(dir_ + "/backup/SHA256SUMS", sums + "abc  ../../etc/passwd\n");
  refused(absl::StatusCode::kDataLoss, "SHA256SUMS");
  fs::remove(dir_ + "/backup/SHA256SUMS");
  refused(absl::StatusCode::kNotFound, "not a complete backup");
  Write(dir_ + "/backup/SHA256SUMS", sums);
  Write(dir_ + "/backup/INFO", "format: 2\n");
  refused(absl::StatusCode::kUnimplemented, "format 2");
}

TEST_F(BackupFiles, ARestoreThatWasKilledIsRepeated) {
  MakeBackup();
  fs::create_directories(dir_ + "/state/records.restoring");
  Write(dir_ + "/state/records.restoring/000009.sst", "half");
  Write(dir_ + "/state/master.key.restoring", "half");
  ASSERT_TRUE(Restore("state").ok());
  EXPECT_FALSE(fs::exists(dir_ + "/state/records/000009.sst"));
  EXPECT_FALSE(fs::exists(dir_ + "/state/records.restoring"));
  EXPECT_EQ(Read(dir_ + "/state/master.key"), std::string(32, 'k'));
}

}  // namespace
}  // namespace withy::cli
