// What lies on the disk: no text in the clear, nothing readable of what was deleted, and stores of
// former and newer versions. Quotas and jumps of the clock.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "context_store/disk/kv_index.h"
#include "context_store/records/context_records.h"
#include "context_store/records/record_encryption.h"
#include "context_store/testing.h"

namespace withy::context_store {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kYearNanos = 365 * 86400 * kNanosPerSecond;

// A wall clock that may jump.
class JumpingClock final : public Clock {
 public:
  int64_t SteadyNanos() const override { return steady_; }
  int64_t UnixNanos() const override { return unix_; }
  void Advance(int64_t nanos) {
    steady_ += nanos;
    unix_ += nanos;
  }
  void Jump(int64_t nanos) { unix_ += nanos; }

 private:
  int64_t steady_ = 1;
  int64_t unix_ = 1'700'000'000'000'000'000;
};

class AtRest : public ::testing::Test {
 protected:
  void Open(ContextLimits limits = {}) {
    Close();
    auto opened = RecordDb::Open({.path = dir_ / "db"});
    ASSERT_TRUE(opened.ok()) << opened.status();
    db_ = *std::move(opened);
    keys_ = *ContextKeys::Open(*db_, {dir_ / "master.key"});
    db_->UseKeys(*keys_);
    ASSERT_TRUE(EncryptRecords(*db_, *keys_).ok());
    contexts_ = *ContextRecords::Load(*db_, *keys_, clock_, limits);
  }
  void Close() {
    contexts_.reset();
    keys_.reset();
    db_.reset();
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
  RecordCommit Exchange(const std::string& context, const std::string& text,
                        const std::string& request_id = "") {
    RecordCommit commit{"app_1", context, {"question " + text, "answer " + text}, 7, std::nullopt};
    if (!request_id.empty())
      commit.result = NewResult{request_id, "digest of " + text, "result " + text};
    return commit;
  }
  // A store as a former version left it: everything in the clear, format 1.
  void WriteFormerStore(int contexts, const std::string& text) {
    auto db = *RecordDb::Open({.path = dir_ / "db"});
    for (int i = 0; i < contexts; ++i) {
      const std::string id = "ctx_" + std::to_string(i);
      RecordBatch batch;
      ContextRecord head{"title " + text, "", 5, 6, 2, 7, 1};
      const std::string encoded = Encode(head);
      batch.Put(ContextKey("app_1", id), encoded.substr(0, encoded.size() - 36));
      batch.Put(SegmentKey(id, 0), "question " + text);
      batch.Put(SegmentKey(id, 1), "answer " + text);
      const std::string request = "of " + id;
      batch.Put(ResultKey("app_1", request),
                Encode(ResultRecord{9, id, "digest", "result " + text}));
      batch.Put(ResultByTimeKey(9, "app_1", request),
                Encode(ResultIndexRecord{"app_1", id, request, 9}));
      batch.Put(ResultByContextKey(id, request),
                Encode(ResultIndexRecord{"app_1", id, request, 9}));
      batch.Put(KvIndexKey(id), "index " + text);
      ASSERT_TRUE(db->Write(batch).ok());
    }
    RecordBatch batch;
    batch.Put(ResultKey("app_1", "stateless"),
              Encode(ResultRecord{9, "", "digest", "result " + text}));
    batch.Put(ResultByTimeKey(9, "app_1", "stateless"),
              Encode(ResultIndexRecord{"app_1", "", "stateless", 9}));
    batch.Put("meta/format", "1");
    ASSERT_TRUE(db->Write(batch).ok());
    for (const char* prefix : {"ctx/", "seg/", "res/", "kvx/"})
      ASSERT_TRUE(db->Rewrite(prefix).ok());
  }
  void PutRaw(const std::string& key, const std::string& value) {
    Close();
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), dir_ / "db", &raw).ok());
    ASSERT_TRUE(raw->Put(rocksdb::WriteOptions(), key, value).ok());
    delete raw;
  }

  TempDir dir_;
  JumpingClock clock_;
  std::unique_ptr<RecordDb> db_;
  std::unique_ptr<ContextKeys> keys_;
  std::unique_ptr<ContextRecords> contexts_;
};

TEST_F(AtRest, NoTextIsOnTheDiskInTheClear) {
  Open();
  const auto made = contexts_->Create("app_1", {"about xylophones", "", {"xylophones are tuned"}});
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_TRUE(contexts_->Commit(Exchange(made->context_id, "xylophones", "r1")).ok());
  ASSERT_TRUE(contexts_->Commit(Exchange("", "xylophones", "r2")).ok());
  EXPECT_FALSE(OnDisk("xylophones")) << "in the log";
  for (const char* prefix : {"ctx/", "seg/", "res/"}) ASSERT_TRUE(db_->Rewrite(prefix).ok());
  EXPECT_FALSE(OnDisk("xylophones")) << "in the tables";
  Open();
  EXPECT_THAT(*contexts_->ReadSegments("app_1", made->context_id),
              ElementsAre("xylophones are tuned", "question xylophones", "answer xylophones"));
  EXPECT_EQ(contexts_->Find("app_1", made->context_id)->record.title, "about xylophones");
  EXPECT_EQ(*contexts_->FindResult("app_1", "r1", "digest of xylophones"), "result xylophones");
  EXPECT_EQ(*contexts_->FindResult("app_1", "r2", "digest of xylophones"), "result xylophones");
}

// A copy that somebody took of the encrypted records is unreadable once the context is deleted,
// even with the master key.
TEST_F(AtRest, WhatWasDeletedIsUnreadableWhereverItStillLies) {
  Open();
  const std::string id = contexts_->Create("app_1", {})->context_id;
  ASSERT_TRUE(contexts_->Commit(Exchange(id, "x", "r1")).ok());
  ASSERT_TRUE(contexts_->Commit(Exchange("", "y", "r2")).ok());
  std::vector<std::pair<std::string, std::string>> stolen;
  const std::vector<std::string> names = {SegmentKey(id, 0), ContextKey("app_1", id),
                                          ResultKey("app_1", "r1"), ResultKey("app_1", "r2")};
  Close();
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::OpenForReadOnly(rocksdb::Options(), dir_ / "db", &raw).ok());
    for (const std::string& name : names) {
      std::string value;
      ASSERT_TRUE(raw->Get(rocksdb::ReadOptions(), name, &value).ok()) << name;
      stolen.emplace_back(name, value);
    }
    delete raw;
  }
  Open();
  ASSERT_TRUE(contexts_->Delete("app_1", id).ok());
  ASSERT_TRUE(contexts_->DeleteResultsOf("app_1").ok());
  ASSERT_TRUE(keys_->Expunge().ok());
  for (const auto& [name, value] : stolen) PutRaw(name, value);
  Open();
  for (const std::string& name : names) {
    EXPECT_TRUE(absl::IsDataLoss(db_->Get(name).status())) << name << db_->Get(name).status();
  }
}

TEST_F(AtRest, ARecordInAnothersPlaceIsRefused) {
  Open();
  const std::string one = contexts_->Create("app_1", {})->context_id;
  const std::string two = contexts_->Create("app_1", {})->context_id;
  for (const std::string& id : {one, two}) {
    ASSERT_TRUE(contexts_->Commit(Exchange(id, id)).ok());
  }
  // With a checksum that fits the new place.
  const DataKey of_two = *keys_->GetOrCreate(two);
  PutRaw(SegmentKey(one, 1), EncryptValue(SegmentKey(one, 0), "moved within the context", of_two));
  const DataKey guessed{two, std::make_shared<const SecretKey>(SecretKey::Random())};
  PutRaw(SegmentKey(one, 0), EncryptValue(SegmentKey(one, 0), "forged", guessed));
  Open();
  EXPECT_TRUE(absl::IsDataLoss(contexts_->ReadSegments("app_1", one).status()));
  // In the clear, as a former version would have written it.
  PutRaw(SegmentKey(two, 0), SealValue(SegmentKey(two, 0), "forged"));
  Open();
  const absl::Status forged = contexts_->ReadSegments("app_1", two).status();
  EXPECT_TRUE(absl::IsDataLoss(forged)) << forged;
  EXPECT_THAT(std::string(forged.message()), HasSubstr("is not encrypted"));
}

TEST_F(AtRest, AStoreOfAFormerVersionIsReadAndEncrypted) {
  WriteFormerStore(30, "of zymurgy");
  ASSERT_TRUE(OnDisk("of zymurgy"));
  Open();
  EXPECT_FALSE(OnDisk("of zymurgy"));
  EXPECT_EQ(*db_->Get("meta/format"), "2");
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 30; ++i) {
      const std::string id = "ctx_" + std::to_string(i);
      EXPECT_THAT(*contexts_->ReadSegments("app_1", id),
                  ElementsAre("question of zymurgy", "answer of zymurgy"));
      const ContextRecord record = contexts_->Find("app_1", id)->record;
      EXPECT_EQ(record.text_bytes, std::string("question of zymurgyanswer of zymurgy").size());
      EXPECT_EQ(record.total_tokens, 7u);
      EXPECT_EQ(*contexts_->FindResult("app_1", "of " + id, "digest"), "result of zymurgy");
      EXPECT_EQ(*db_->Get(KvIndexKey(id)), "index of zymurgy");
    }
    EXPECT_EQ(*contexts_->FindResult("app_1", "stateless", "digest"), "result of zymurgy");
    Open();
  }
}

// As after a kill at any moment: some records are encrypted, others are not, the marker is missing.
TEST_F(AtRest, AnInterruptedEncryptionGoesOn) {
  WriteFormerStore(6, "of zymurgy");
  {
    auto db = *RecordDb::Open({.path = dir_ / "db"});
    auto keys = *ContextKeys::Open(*db, {dir_ / "master.key"});
    db->UseKeys(*keys);
    RecordBatch batch;
    for (const char* id : {"ctx_0", "ctx_3"}) {
      const DataKey data_key = *keys->GetOrCreate(id);
      for (const std::string& name : {SegmentKey(id, 1), KvIndexKey(id)}) {
        batch.Put(name, *db->Get(name), data_key);
      }
    }
    ASSERT_TRUE(db->Write(batch).ok());
  }
  Open();
  EXPECT_FALSE(OnDisk("of zymurgy"));
  for (int i = 0; i < 6; ++i) {
    const std::string id = "ctx_" + std::to_string(i);
    EXPECT_THAT(*contexts_->ReadSegments("app_1", id),
                ElementsAre("question of zymurgy", "answer of zymurgy"));
    EXPECT_GT(contexts_->Find("app_1", id)->record.text_bytes, 30u);
  }
}

// On a full disk nothing can be written anew: the store starts, reads what it has, and deletes.
TEST_F(AtRest, AStoreOfAFormerVersionIsReadOnAFullDisk) {
  WriteFormerStore(3, "of zymurgy");
  {
    auto db = *RecordDb::Open({.path = dir_ / "db", .min_free_bytes = UINT64_MAX});
    auto keys = *ContextKeys::Open(*db, {dir_ / "master.key"});
    db->UseKeys(*keys);
    ASSERT_TRUE(EncryptRecords(*db, *keys).ok());
    auto contexts = *ContextRecords::Load(*db, *keys, clock_, {});
    EXPECT_THAT(*contexts->ReadSegments("app_1", "ctx_1"),
                ElementsAre("question of zymurgy", "answer of zymurgy"));
    EXPECT_TRUE(absl::IsResourceExhausted(contexts->Commit(Exchange("ctx_1", "x")).status()));
    EXPECT_TRUE(contexts->Delete("app_1", "ctx_2").ok());
    EXPECT_TRUE(absl::IsNotFound(db->Get("meta/encrypted").status()));
  }
  Open();
  EXPECT_FALSE(OnDisk("of zymurgy"));
  EXPECT_THAT(*contexts_->ReadSegments("app_1", "ctx_1"),
              ElementsAre("question of zymurgy", "answer of zymurgy"));
  EXPECT_TRUE(absl::IsNotFound(contexts_->Find("app_1", "ctx_2").status()));
}

TEST_F(AtRest, AStoreOfANewerVersionIsRefusedAndUntouched) {
  Open();
  const std::string id = contexts_->Create("app_1", {"t", "", {"text"}})->context_id;
  RecordBatch batch;
  batch.Put("meta/format", "3");
  ASSERT_TRUE(db_->Write(batch).ok());
  Close();
  const absl::Status newer = RecordDb::Open({.path = dir_ / "db"}).status();
  EXPECT_TRUE(absl::IsUnimplemented(newer)) << newer;
  EXPECT_THAT(std::string(newer.message()),
              AllOf(HasSubstr(dir_ / "db"), HasSubstr("format 3"), HasSubstr("1 to 2"),
                    HasSubstr("newer withy"), HasSubstr("state_dir")));
  PutRaw("meta/format", SealValue("meta/format", "2"));
  Open();
  EXPECT_THAT(*contexts_->ReadSegments("app_1", id), ElementsAre("text"));
}

TEST_F(AtRest, ACopyOpensWithTheMasterKeyAndLacksTheKvIndex) {
  Open();
  const std::string id = contexts_->Create("app_1", {})->context_id;
  ASSERT_TRUE(contexts_->Commit(Exchange(id, "x", "r1")).ok());
  RecordBatch batch;
  batch.Put(KvIndexKey(id), "index", *keys_->GetOrCreate(id));
  ASSERT_TRUE(db_->Write(batch).ok());
  ASSERT_TRUE(db_->Copy(dir_ / "copy", kKvIndexPrefix).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(db_->Copy(dir_ / "copy", kKvIndexPrefix)));
  ASSERT_TRUE(contexts_->Commit(Exchange(id, "later")).ok()) << "the store goes on";
  EXPECT_TRUE(db_->Get(KvIndexKey(id)).ok());
  EXPECT_GT(db_->DiskBytes(), 0u);

  auto copy = RecordDb::Open({.path = dir_ / "copy"});
  ASSERT_TRUE(copy.ok()) << copy.status();
  const auto keys = *ContextKeys::Open(**copy, {dir_ / "master.key"});
  (*copy)->UseKeys(*keys);
  ASSERT_TRUE(EncryptRecords(**copy, *keys).ok());
  const auto contexts = *ContextRecords::Load(**copy, *keys, clock_, {});
  EXPECT_THAT(*contexts->ReadSegments("app_1", id), ElementsAre("question x", "answer x"));
  EXPECT_TRUE(absl::IsNotFound((*copy)->Get(KvIndexKey(id)).status()));
}

// Quotas.

TEST_F(AtRest, AnAppsBytesAreBoundedAndNothingIsDeleted) {
  Open({.bytes_per_app = 100});
  const std::string id = contexts_->Create("app_1", {"", "made by this", {}})->context_id;
  EXPECT_TRUE(contexts_->CheckQuotas("app_1", id).ok());
  ASSERT_TRUE(contexts_->Commit(Exchange(id, std::string(60, 'x'))).ok())
      << "the call that reaches the quota is answered";
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(contexts_->BytesOf("app_1"), 136u);
    for (const absl::Status& refused :
         {contexts_->CheckQuotas("app_1", id), contexts_->CheckQuotas("app_1", ""),
          contexts_->Create("app_1", {}).status(),
          contexts_->FindResult("app_1", "new request", "digest").status()}) {
      EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
      EXPECT_THAT(std::string(refused.message()),
                  AllOf(HasSubstr("136 bytes"), HasSubstr("the limit is 100"),
                        HasSubstr("store.bytes_per_app"), HasSubstr("delete contexts")));
    }
    EXPECT_EQ(contexts_->Create("app_1", {"", "made by this", {}})->context_id, id) << "a retry";
    EXPECT_TRUE(contexts_->CheckQuotas("app_2", "").ok());
    EXPECT_TRUE(contexts_->Create("app_2", {}).ok());
    EXPECT_EQ(contexts_->ReadSegments("app_1", id)->size(), 2u);
    Open({.bytes_per_app = 100});
  }
  ASSERT_TRUE(contexts_->Delete("app_1", id).ok());
  EXPECT_EQ(contexts_->BytesOf("app_1"), 0u);
  EXPECT_TRUE(contexts_->Create("app_1", {}).ok());
}

TEST_F(AtRest, ResultsCountUntilTheyExpire) {
  Open();
  RecordCommit commit = Exchange("", "x", "r1");
  commit.result->result = std::string(1000, 'r');
  ASSERT_TRUE(contexts_->Commit(commit).ok());
  EXPECT_EQ(contexts_->BytesOf("app_1"), 1000u);
  Open();
  EXPECT_EQ(contexts_->BytesOf("app_1"), 1000u);
  clock_.Advance(86400 * kNanosPerSecond);
  ASSERT_TRUE(contexts_->Commit(Exchange("", "y", "r2")).ok());
  EXPECT_EQ(contexts_->BytesOf("app_1"), std::string("result y").size());
  ASSERT_TRUE(contexts_->DeleteResultsOf("app_1").ok());
  EXPECT_EQ(contexts_->BytesOf("app_1"), 0u);
}

TEST_F(AtRest, AContextsTokensAreBounded) {
  Open({.tokens_per_context = 30});
  const std::string id = contexts_->Create("app_1", {})->context_id;
  RecordCommit commit = Exchange(id, "x");
  commit.added_tokens = 20;
  ASSERT_TRUE(contexts_->Commit(commit).ok());
  EXPECT_TRUE(contexts_->CheckQuotas("app_1", id).ok());
  ASSERT_TRUE(contexts_->Commit(commit).ok());
  Open({.tokens_per_context = 30});
  const absl::Status refused = contexts_->CheckQuotas("app_1", id);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr(id), HasSubstr("40 tokens"), HasSubstr("the limit is 30"),
                    HasSubstr("store.tokens_per_context"), HasSubstr("a new context")));
  EXPECT_TRUE(contexts_->CheckQuotas("app_1", "").ok());
  EXPECT_EQ(contexts_->ReadSegments("app_1", id)->size(), 4u);
}

// What replaces a broken answer is counted once.
TEST_F(AtRest, BytesFollowReplacedExchanges) {
  Open();
  const std::string id = contexts_->Create("app_1", {})->context_id;
  RecordCommit broken{"app_1", id, {"question", "a part"}, 7, std::nullopt};
  broken.unfinished = RequestKey{"r", "d"};
  ASSERT_TRUE(contexts_->Commit(broken).ok());
  EXPECT_EQ(contexts_->BytesOf("app_1"), 14u);
  RecordCommit whole{"app_1", id, {"question", "the whole answer"}, 7, std::nullopt};
  whole.replaces = {0, 2};
  ASSERT_TRUE(contexts_->Commit(whole).ok());
  EXPECT_EQ(contexts_->BytesOf("app_1"), 24u);
  Open();
  EXPECT_EQ(contexts_->BytesOf("app_1"), 24u);
}

// Jumps of the wall clock.

TEST_F(AtRest, AResultOutlivesJumpsOfTheClockAndExpiresAfterItsTime) {
  for (const int64_t jump : {10 * kYearNanos, -40 * kYearNanos}) {
    SCOPED_TRACE(jump);
    Open();
    const std::string request = "r" + std::to_string(jump);
    ASSERT_TRUE(contexts_->Commit(Exchange("", "x", request)).ok());
    clock_.Jump(jump);
    EXPECT_TRUE(contexts_->FindResult("app_1", request, "digest of x").ok());
    Open();  // also by a restart with the clock wrong
    EXPECT_TRUE(contexts_->FindResult("app_1", request, "digest of x").ok());
    clock_.Advance(86399 * kNanosPerSecond);
    EXPECT_TRUE(contexts_->FindResult("app_1", request, "digest of x").ok());
    clock_.Advance(kNanosPerSecond);
    EXPECT_TRUE(absl::IsNotFound(contexts_->FindResult("app_1", request, "digest of x").status()));
    ASSERT_TRUE(contexts_->Commit(Exchange("", "x", "next")).ok()) << "sweeps";
    EXPECT_TRUE(absl::IsNotFound(db_->Get(ResultKey("app_1", request)).status()));
    clock_.Advance(86400 * kNanosPerSecond);  // "next" is free again
  }
}

TEST_F(AtRest, ContextsStayInTheirOrderWhenTheClockJumps) {
  Open();
  std::vector<std::string> newest_first;
  for (const int64_t jump : {int64_t{0}, 10 * kYearNanos, -40 * kYearNanos, kYearNanos}) {
    clock_.Jump(jump);
    newest_first.insert(newest_first.begin(), contexts_->Create("app_1", {})->context_id);
    if (jump > 0) Open();
  }
  ASSERT_TRUE(contexts_->Commit(Exchange(newest_first[2], "used last")).ok());
  for (int round = 0; round < 2; ++round) {
    std::vector<std::string> listed;
    std::string token;
    do {
      const auto page = contexts_->List("app_1", 1, token);
      ASSERT_TRUE(page.ok()) << page.status();
      for (const ContextSummary& context : page->contexts) listed.push_back(context.context_id);
      token = page->next_page_token;
    } while (!token.empty());
    EXPECT_EQ(listed, newest_first);
    for (const std::string& id : newest_first) {
      if (id == newest_first[2]) continue;
      EXPECT_LT(contexts_->Find("app_1", id)->record.used_number,
                contexts_->Find("app_1", newest_first[2])->record.used_number);
    }
    Open();
  }
}

}  // namespace
}  // namespace withy::context_store
