#include "context_store/context_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/ids.h"
#include "context_store/testing.h"

namespace withy::context_store {
namespace {

using ::testing::HasSubstr;

class ContextKeysTest : public ::testing::Test {
 protected:
  ContextKeysTest() { Reopen(); }

  void Reopen() {
    db_.reset();
    auto opened = RecordDb::Open({.path = dir_ / "db"});
    ASSERT_TRUE(opened.ok()) << opened.status();
    db_ = *std::move(opened);
  }
  void WriteKeyFile(const std::string& bytes, mode_t mode = 0600) {
    std::filesystem::remove(path_);
    std::ofstream(path_, std::ios::binary) << bytes;
    chmod(path_.c_str(), mode);
  }
  // Whether any file of the database has these bytes.
  bool OnDisk(const std::string& bytes) const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(dir_ / "db")) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::string content(std::istreambuf_iterator<char>(file), {});
      if (content.find(bytes) != std::string::npos) return true;
    }
    return false;
  }
  std::shared_ptr<const SecretKey> NewKey(const ContextKeys& keys, std::string_view context) {
    RecordBatch batch;
    auto key = keys.Create(context, &batch);
    EXPECT_TRUE(db_->Write(batch).ok());
    return key;
  }

  TempDir dir_;
  const std::string path_ = dir_ / "master.key";
  std::unique_ptr<RecordDb> db_;
};

TEST_F(ContextKeysTest, AKeyFileIsMadeOnceAndReadByItsOwnerOnly) {
  std::string id;
  {
    const auto keys = ContextKeys::Open(*db_, {path_});
    ASSERT_TRUE(keys.ok()) << keys.status();
    id = (*keys)->master_key_id();
  }
  struct stat info {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
  EXPECT_EQ(info.st_size, 32);
  EXPECT_EQ((*ContextKeys::Open(*db_, {path_}))->master_key_id(), id);
}

TEST_F(ContextKeysTest, EachFaultOfTheFileIsToldWithItsRemedy) {
  const auto refused = [&](absl::StatusCode code, const char* words) {
    const absl::Status status = LoadMasterKey({path_}).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path_));
    EXPECT_THAT(std::string(status.message()), HasSubstr(words));
  };
  refused(absl::StatusCode::kNotFound, "does not exist");
  WriteKeyFile("too short");
  refused(absl::StatusCode::kInvalidArgument, "has 9 bytes, a master key has 32");
  WriteKeyFile(std::string(33, 'x'));
  refused(absl::StatusCode::kInvalidArgument, "has 33 bytes");
  WriteKeyFile(std::string(32, 'x'), 0640);
  refused(absl::StatusCode::kFailedPrecondition, "mode 0640");
  EXPECT_TRUE(LoadMasterKey({path_, /*group_may_read=*/true}).ok());
  WriteKeyFile(std::string(32, 'x'), 0604);
  refused(absl::StatusCode::kFailedPrecondition, "chmod 600");
  EXPECT_FALSE(LoadMasterKey({path_, true}).ok());
}

TEST_F(ContextKeysTest, AMissingOrWrongFileIsRefusedOnceTheStoreHasAKey) {
  std::string id;
  {
    const auto keys = ContextKeys::Open(*db_, {path_});
    ASSERT_TRUE(keys.ok());
    id = (*keys)->master_key_id();
  }
  const std::string right = dir_ / "right.key";
  std::filesystem::rename(path_, right);
  EXPECT_TRUE(absl::IsNotFound(ContextKeys::Open(*db_, {path_}).status()));
  EXPECT_FALSE(std::filesystem::exists(path_)) << "no new key while the old one is needed";
  WriteKeyFile(RandomBytes(32));
  const absl::Status wrong = ContextKeys::Open(*db_, {path_}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(wrong)) << wrong;
  EXPECT_THAT(std::string(wrong.message()), HasSubstr(id));
  EXPECT_TRUE(ContextKeys::Open(*db_, {right}).ok());
}

TEST_F(ContextKeysTest, AContextsKeyIsKeptUntilItIsRemoved) {
  const auto keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok());
  EXPECT_TRUE(absl::IsNotFound((*keys)->Get("ctx_1").status()));
  const auto key = NewKey(**keys, "ctx_1");
  EXPECT_EQ((*(*keys)->Get("ctx_1"))->bytes(), key->bytes());
  // A wrapped key opens for its own context only.
  RecordBatch batch;
  batch.Put("key/ctx_2", *db_->Get("key/ctx_1"));
  batch.Put("key/ctx_3", "\x01");
  ASSERT_TRUE(db_->Write(batch).ok());
  EXPECT_TRUE(absl::IsDataLoss((*keys)->Get("ctx_2").status()));
  EXPECT_TRUE(absl::IsDataLoss((*keys)->Get("ctx_3").status()));
  RecordBatch removal;
  ContextKeys::Remove("ctx_1", &removal);
  ASSERT_TRUE(db_->Write(removal).ok());
  EXPECT_TRUE(absl::IsNotFound((*keys)->Get("ctx_1").status()));
}

TEST_F(ContextKeysTest, ARemovedKeyIsInNoFileAfterExpunge) {
  const auto keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok());
  NewKey(**keys, "ctx_1");
  const auto kept = NewKey(**keys, "ctx_2");
  ASSERT_TRUE((*keys)->Expunge().ok());  // the keys are in a table now
  const std::string wrapped = db_->Get("key/ctx_1")->substr(17);
  EXPECT_TRUE(OnDisk(wrapped));
  RecordBatch removal;
  ContextKeys::Remove("ctx_1", &removal);
  ASSERT_TRUE(db_->Write(removal).ok());
  EXPECT_TRUE(OnDisk(wrapped));
  ASSERT_TRUE((*keys)->Expunge().ok());
  EXPECT_FALSE(OnDisk(wrapped));
  EXPECT_EQ((*(*keys)->Get("ctx_2"))->bytes(), kept->bytes());
}

TEST_F(ContextKeysTest, RotationChangesTheMasterKeyAndKeepsTheDataKeys) {
  auto keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok());
  const auto one = NewKey(**keys, "ctx_1"), two = NewKey(**keys, "ctx_2");
  const std::string before = (*keys)->master_key_id();
  const std::string old_file = dir_ / "old.key";
  std::filesystem::copy(path_, old_file);
  ASSERT_TRUE((*keys)->Rotate().ok());
  EXPECT_NE((*keys)->master_key_id(), before);
  EXPECT_EQ((*(*keys)->Get("ctx_1"))->bytes(), one->bytes());
  EXPECT_TRUE(absl::IsFailedPrecondition(ContextKeys::Open(*db_, {old_file}).status()));
  keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ((*(*keys)->Get("ctx_2"))->bytes(), two->bytes());
}

TEST_F(ContextKeysTest, AnInterruptedRotationIsCompletedOrForgotten) {
  auto keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok());
  const auto key = NewKey(**keys, "ctx_1");
  const std::string old_file = dir_ / "old.key";
  std::filesystem::copy(path_, old_file);
  ASSERT_TRUE((*keys)->Rotate().ok());
  // As if killed before the rename.
  std::filesystem::rename(path_, path_ + ".next");
  std::filesystem::rename(old_file, path_);
  keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ((*(*keys)->Get("ctx_1"))->bytes(), key->bytes());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".next"));
  // As if killed before the database changed.
  ASSERT_TRUE(CreateMasterKey(path_ + ".next").ok());
  keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ((*(*keys)->Get("ctx_1"))->bytes(), key->bytes());
  EXPECT_FALSE(std::filesystem::exists(path_ + ".next"));
}

TEST_F(ContextKeysTest, CreatingAKeyFileOverwritesNothing) {
  WriteKeyFile(std::string(32, 'x'));
  EXPECT_TRUE(absl::IsAlreadyExists(CreateMasterKey(path_).status()));
  EXPECT_TRUE(absl::IsNotFound(CreateMasterKey(dir_ / "none/key").status()));
  EXPECT_EQ(LoadMasterKey({path_})->bytes(), std::string(32, 'x'));
}

}  // namespace
}  // namespace withy::context_store
