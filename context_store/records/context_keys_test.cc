#include "context_store/records/context_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "base/ids.h"
#include "context_store/testing.h"

namespace withy::context_store {
namespace {

using ::testing::AllOf;
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
  std::shared_ptr<const SecretKey> NewKey(ContextKeys& keys, std::string_view owner) {
    auto key = keys.GetOrCreate(owner);
    EXPECT_TRUE(key.ok()) << key.status();
    return key->key;
  }
  void RemoveKey(ContextKeys& keys, std::string_view owner) {
    const ContextKeys::Writing writing(keys);
    RecordBatch batch;
    ContextKeys::Remove(owner, &batch);
    EXPECT_TRUE(db_->Write(batch).ok());
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
  refused(absl::StatusCode::kInvalidArgument, "mode 0640");
  EXPECT_TRUE(LoadMasterKey({path_, /*credential=*/true}).ok());
  WriteKeyFile(std::string(32, 'x'), 0604);
  refused(absl::StatusCode::kInvalidArgument, "chmod 600");
  EXPECT_FALSE(LoadMasterKey({path_, true}).ok());
}

TEST_F(ContextKeysTest, WhatIsNoFileIsRefusedAndNoKeyIsMadeInItsPlace) {
  const std::function<void()> kinds[] = {
      [&] { std::filesystem::create_symlink("/nonexistent", path_); },
      [&] { std::filesystem::create_symlink(path_, path_); },
      [&] { std::filesystem::create_directory(path_); },
      [&] { ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0); }};
  for (const auto& make : kinds) {
    std::filesystem::remove(path_);
    make();
    const absl::Status refused = ContextKeys::Open(*db_, {path_}).status();
    EXPECT_FALSE(refused.ok());
    EXPECT_FALSE(absl::IsNotFound(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()),
                AllOf(HasSubstr(path_), HasSubstr("from your backup")));
    EXPECT_FALSE(std::filesystem::is_regular_file(std::filesystem::symlink_status(path_)));
  }
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
  const absl::Status missing = ContextKeys::Open(*db_, {path_}).status();
  EXPECT_TRUE(absl::IsNotFound(missing)) << missing;
  EXPECT_THAT(std::string(missing.message()),
              AllOf(HasSubstr(path_), HasSubstr(id), HasSubstr("from your backup")));
  EXPECT_FALSE(std::filesystem::exists(path_)) << "no new key while the old one is needed";
  const std::string other = RandomBytes(32);
  WriteKeyFile(other);
  const absl::Status wrong = ContextKeys::Open(*db_, {path_}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(wrong)) << wrong;
  EXPECT_THAT(std::string(wrong.message()),
              AllOf(HasSubstr(path_), HasSubstr(id), HasSubstr("put that key file back")));
  EXPECT_EQ(LoadMasterKey({path_})->bytes(), other) << "the wrong file stays as it is";
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
  RemoveKey(**keys, "ctx_1");
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
  RemoveKey(**keys, "ctx_1");
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
  EXPECT_TRUE(absl::IsInvalidArgument(ContextKeys::Open(*db_, {old_file}).status()));
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

TEST_F(ContextKeysTest, RotationTakesWhatTheFormerKeyOpensOutOfAllFiles) {
  auto keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok());
  NewKey(**keys, "ctx_1");
  ASSERT_TRUE((*keys)->Expunge().ok());
  const std::string wrapped = db_->Get("key/ctx_1")->substr(17);
  ASSERT_TRUE(OnDisk(wrapped));
  ASSERT_TRUE((*keys)->Rotate().ok());
  EXPECT_FALSE(OnDisk(wrapped));
}

TEST_F(ContextKeysTest, ARemovalThatWasInterruptedIsCompletedAtTheNextStart) {
  auto keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok());
  NewKey(**keys, "ctx_1");
  ASSERT_TRUE((*keys)->Expunge().ok());
  const std::string wrapped = db_->Get("key/ctx_1")->substr(17);
  RemoveKey(**keys, "ctx_1");
  ASSERT_TRUE(OnDisk(wrapped)) << "as after a kill before Expunge";
  keys->reset();
  Reopen();
  keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_FALSE(OnDisk(wrapped));
}

TEST_F(ContextKeysTest, AFormerKeyStillOpensWhatWasReadBeforeARotation) {
  auto keys = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(keys.ok());
  const auto key = NewKey(**keys, "ctx_1");
  const std::string wrapped = *db_->Get("key/ctx_1");
  ASSERT_TRUE((*keys)->Rotate().ok());
  EXPECT_EQ((*(*keys)->Unwrap("ctx_1", wrapped))->bytes(), key->bytes());
  ASSERT_TRUE((*keys)->Rotate().ok());
  EXPECT_TRUE(absl::IsFailedPrecondition((*keys)->Unwrap("ctx_1", wrapped).status()));
}

// Calls make and read keys while keys are rotated.
TEST_F(ContextKeysTest, KeysAreMadeAndReadDuringRotations) {
  auto opened = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(opened.ok());
  ContextKeys& keys = **opened;
  const auto first = NewKey(keys, "ctx_0");
  std::atomic<bool> over{false};
  std::atomic<int> made{0};
  std::thread caller([&] {
    while (!over || made < 20) {
      const std::string owner = "ctx_" + std::to_string(++made);
      const auto key = keys.GetOrCreate(owner);
      ASSERT_TRUE(key.ok()) << key.status();
      const auto read = keys.Get("ctx_0");
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ((*read)->bytes(), first->bytes());
    }
  });
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(keys.Rotate().ok());
  over = true;
  caller.join();
  Reopen();
  opened = ContextKeys::Open(*db_, {path_});
  ASSERT_TRUE(opened.ok()) << opened.status();
  for (int i = 0; i <= made; ++i) {
    EXPECT_TRUE((*opened)->Get("ctx_" + std::to_string(i)).ok()) << i;
  }
}

TEST_F(ContextKeysTest, ACredentialIsReplacedByASecondOne) {
  std::filesystem::create_directory(dir_ / "credentials");
  const std::string credential = dir_ / "credentials/master.key";
  const auto give = [](const std::string& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
    chmod(path.c_str(), 0440);
  };
  give(credential, std::string(32, 'a'));
  ASSERT_EQ(setenv("CREDENTIALS_DIRECTORY", (dir_ / "credentials").c_str(), 1), 0);
  const KeyFile found = FindMasterKey("", dir_ / "state");
  EXPECT_EQ(found.path, credential);
  EXPECT_EQ(FindMasterKey("/keys/k", dir_ / "state").path, "/keys/k");
  unsetenv("CREDENTIALS_DIRECTORY");
  EXPECT_EQ(FindMasterKey("", "/state").path, "/state/master.key");
  auto keys = ContextKeys::Open(*db_, found);
  ASSERT_TRUE(keys.ok()) << keys.status();
  const auto key = NewKey(**keys, "ctx_1");
  const absl::Status refused = (*keys)->Rotate().status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("master.key.previous"));
  // The operator provides a new one, and the present one as the previous one.
  std::filesystem::rename(credential, credential + ".previous");
  give(credential, std::string(32, 'b'));
  keys = ContextKeys::Open(*db_, found);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ((*(*keys)->Get("ctx_1"))->bytes(), key->bytes());
  std::filesystem::remove(credential + ".previous");
  keys = ContextKeys::Open(*db_, found);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ((*(*keys)->Get("ctx_1"))->bytes(), key->bytes());
}

TEST_F(ContextKeysTest, CreatingAKeyFileOverwritesNothing) {
  WriteKeyFile(std::string(32, 'x'));
  EXPECT_TRUE(absl::IsAlreadyExists(CreateMasterKey(path_).status()));
  EXPECT_TRUE(absl::IsNotFound(CreateMasterKey(dir_ / "none/key").status()));
  EXPECT_EQ(LoadMasterKey({path_})->bytes(), std::string(32, 'x'));
}

}  // namespace
}  // namespace withy::context_store
