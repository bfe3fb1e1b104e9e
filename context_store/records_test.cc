#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "context_store/app_registry.h"
#include "context_store/context_records.h"
#include "context_store/test_util.h"

namespace withy::context_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The records of one directory, opened as a process would.
struct Opened {
  explicit Opened(const std::string& path, const Clock& clock, ContextLimits limits = {}) {
    auto opened = RecordDb::Open({.path = path});
    EXPECT_TRUE(opened.ok()) << opened.status();
    db = *std::move(opened);
    apps = *AppRegistry::Load(*db, clock);
    contexts = *ContextRecords::Load(*db, clock, limits);
  }
  std::unique_ptr<RecordDb> db;
  std::unique_ptr<AppRegistry> apps;
  std::unique_ptr<ContextRecords> contexts;
};

class Records : public ::testing::Test {
 protected:
  std::string NewContextOf(ContextRecords& contexts, const std::string& app) {
    return contexts.Create(app, {})->context_id;
  }
  RecordCommit Exchange(const std::string& app, const std::string& context, const std::string& text,
                        const std::string& request_id = "") {
    RecordCommit commit{app, context, {"q " + text, "a " + text}, 7, std::nullopt};
    if (!request_id.empty()) commit.result = NewResult{request_id, "digest", "result " + text};
    return commit;
  }

  TempDir dir_;
  FakeClock clock_;
  Opened store_{dir_ / "db", clock_};
};

TEST_F(Records, ATokenAuthenticatesUntilTheNextBinding) {
  const auto first = store_.apps->Bind("mail");
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(store_.apps->Authenticate(first->token)->name, "mail");
  const auto second = store_.apps->Bind("mail", first->token);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(second->app_id, first->app_id);
  EXPECT_TRUE(absl::IsUnauthenticated(store_.apps->Authenticate(first->token).status()));
  EXPECT_EQ(store_.apps->Authenticate(second->token)->app_id, first->app_id);
  for (const std::string& wrong :
       {std::string(), std::string("x"), first->app_id, first->app_id + ".", second->token + "0",
        second->token.substr(1)}) {
    EXPECT_TRUE(absl::IsUnauthenticated(store_.apps->Authenticate(wrong).status())) << wrong;
  }
  Opened after(dir_.Snapshot("db"), clock_);
  EXPECT_EQ(after.apps->Authenticate(second->token)->name, "mail");
}

TEST_F(Records, ARegisteredNameIsRenewedOnlyAgainstItsToken) {
  const auto mail = store_.apps->Bind("mail");
  const auto other = store_.apps->Bind("other");
  ASSERT_TRUE(mail.ok() && other.ok());
  for (const std::string& wrong :
       {std::string(), std::string("x"), other->token, mail->app_id + ".", mail->token + "0"}) {
    const absl::Status taken = store_.apps->Bind("mail", wrong).status();
    EXPECT_TRUE(absl::IsAlreadyExists(taken)) << wrong << ": " << taken;
    EXPECT_THAT(std::string(taken.message()), HasSubstr("withyctl apps renew mail"));
  }
  EXPECT_EQ(store_.apps->Authenticate(mail->token)->name, "mail") << "a refusal ends no token";
  const auto next = store_.apps->Bind("mail", mail->token);
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_TRUE(absl::IsAlreadyExists(store_.apps->Bind("mail", mail->token).status()))
      << "the token before is worth nothing";

  const auto renewed = store_.apps->Renew("mail");
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->app_id, mail->app_id);
  EXPECT_TRUE(absl::IsUnauthenticated(store_.apps->Authenticate(next->token).status()));
  EXPECT_TRUE(absl::IsNotFound(store_.apps->Renew("nobody").status()));
  ASSERT_TRUE(store_.apps->Remove(mail->app_id).ok());
  EXPECT_TRUE(store_.apps->Bind("mail").ok()) << "a removed app's name is free";
}

TEST_F(Records, TheTokenItselfIsNotOnDisk) {
  const auto bound = store_.apps->Bind("mail");
  ASSERT_TRUE(bound.ok());
  const std::string secret = bound->token.substr(bound->token.find('.') + 1);
  ASSERT_TRUE(store_.db
                  ->Scan("app/",
                         [&](std::string_view, const absl::StatusOr<std::string>& payload) {
                           EXPECT_EQ(payload->find(secret), std::string::npos);
                           return true;
                         })
                  .ok());
}

TEST_F(Records, BadAppNamesAreRefused) {
  for (const std::string& name : {std::string(), std::string(65, 'a'), std::string("a/b"),
                                  std::string("a b"), std::string("\xc3\xa4")}) {
    EXPECT_TRUE(absl::IsInvalidArgument(store_.apps->Bind(name).status())) << name;
  }
  EXPECT_TRUE(store_.apps->Bind(std::string(64, 'a')).ok());
}

TEST_F(Records, CommittedSegmentsSurviveAKill) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  EXPECT_EQ(*store_.contexts->Commit(Exchange("app", id, "1")), 1u);
  EXPECT_EQ(*store_.contexts->Commit(Exchange("app", id, "2")), 2u);
  Opened after(dir_.Snapshot("db"), clock_);
  EXPECT_THAT(*after.contexts->ReadSegments("app", id), ElementsAre("q 1", "a 1", "q 2", "a 2"));
  EXPECT_EQ(after.contexts->Find("app", id)->record.tokens, 7u);
  EXPECT_EQ(*after.contexts->Commit(Exchange("app", id, "3")), 3u);
}

TEST_F(Records, AnotherAppsContextIsAsOneThatDoesNotExist) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  const absl::Status foreign = store_.contexts->Find("other", id).status();
  const absl::Status none = store_.contexts->Find("other", "ctx_none").status();
  EXPECT_TRUE(absl::IsNotFound(foreign));
  EXPECT_EQ(foreign.code(), none.code());
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->ReadSegments("other", id).status()));
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->Delete("other", id)));
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->Commit(Exchange("other", id, "x")).status()));
  EXPECT_TRUE(store_.contexts->Find("app", id).ok());
}

TEST_F(Records, ARetriedRequestGetsItsResultUntilItsTimeIsOver) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  ASSERT_TRUE(store_.contexts->Commit(Exchange("app", id, "1", "req")).ok());
  EXPECT_EQ(*store_.contexts->FindResult("app", "req", "digest"), "result 1");
  EXPECT_TRUE(absl::IsAlreadyExists(store_.contexts->FindResult("app", "req", "another").status()));
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->FindResult("other", "req", "digest").status()));
  // A second commit of the request adds nothing.
  EXPECT_TRUE(
      absl::IsAlreadyExists(store_.contexts->Commit(Exchange("app", id, "2", "req")).status()));
  EXPECT_EQ(store_.contexts->ReadSegments("app", id)->size(), 2u);
  Opened after(dir_.Snapshot("db"), clock_);
  EXPECT_EQ(*after.contexts->FindResult("app", "req", "digest"), "result 1");
  clock_.Advance(86400 * kNanosPerSecond);
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->FindResult("app", "req", "digest").status()));
  ASSERT_TRUE(store_.contexts->Commit(Exchange("app", id, "3", "req")).ok());
  EXPECT_EQ(*store_.contexts->FindResult("app", "req", "digest"), "result 3");
}

TEST_F(Records, ExpiredResultsLeaveTheDisk) {
  for (int i = 0; i < 10; ++i) {
    ASSERT_TRUE(store_.contexts->Commit(Exchange("app", "", "x", "r" + std::to_string(i))).ok());
  }
  const auto count = [&](std::string_view prefix) {
    int keys = 0;
    EXPECT_TRUE(store_.db
                    ->Scan(prefix,
                           [&](std::string_view, const absl::StatusOr<std::string>&) {
                             ++keys;
                             return true;
                           })
                    .ok());
    return keys;
  };
  EXPECT_EQ(count("res/"), 10);
  clock_.Advance(86400 * kNanosPerSecond);
  ASSERT_TRUE(store_.contexts->Commit(Exchange("app", "", "y", "new")).ok());
  EXPECT_EQ(count("res/"), 1);
  EXPECT_EQ(count("exp/"), 1);
}

TEST_F(Records, DeletingAContextTakesItsTextAndItsResults) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  const std::string other = NewContextOf(*store_.contexts, "app");
  ASSERT_TRUE(store_.contexts->Commit(Exchange("app", id, "1", "req")).ok());
  ASSERT_TRUE(store_.contexts->Commit(Exchange("app", other, "2", "kept")).ok());
  ASSERT_TRUE(store_.contexts->Delete("app", id).ok());
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->Find("app", id).status()));
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->FindResult("app", "req", "digest").status()));
  EXPECT_EQ(*store_.contexts->FindResult("app", "kept", "digest"), "result 2");
  ASSERT_TRUE(store_.db
                  ->Scan(SegmentPrefix(id),
                         [](std::string_view, const absl::StatusOr<std::string>&) {
                           ADD_FAILURE() << "a segment is left";
                           return true;
                         })
                  .ok());
}

TEST_F(Records, CreatingAgainWithTheSameRequestIdIsTheSameContext) {
  const auto first = store_.contexts->Create("app", {"title", "req", {"system"}});
  const auto again = store_.contexts->Create("app", {"title", "req", {"system"}});
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ(first->context_id, again->context_id);
  EXPECT_NE(store_.contexts->Create("other", {"title", "req", {}})->context_id, first->context_id);
  Opened after(dir_.Snapshot("db"), clock_);
  EXPECT_EQ(after.contexts->Create("app", {"title", "req", {}})->context_id, first->context_id);
  ASSERT_TRUE(store_.contexts->Delete("app", first->context_id).ok());
  EXPECT_NE(store_.contexts->Create("app", {"title", "req", {}})->context_id, first->context_id);
}

TEST_F(Records, LimitsAreNamed) {
  Opened small(dir_ / "small", clock_, {.contexts_per_app = 2});
  const std::string id = NewContextOf(*small.contexts, "app");
  NewContextOf(*small.contexts, "app");
  const absl::Status full = small.contexts->Create("app", {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full));
  EXPECT_THAT(std::string(full.message()), HasSubstr("limit is 2"));
  EXPECT_TRUE(small.contexts->Create("other", {}).ok());
  ASSERT_TRUE(small.contexts->Delete("app", id).ok());
  EXPECT_TRUE(small.contexts->Create("app", {}).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(
      store_.contexts->Create("a", {std::string(129, 't'), "", {}}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(
      store_.contexts->Create("a", {"", std::string(65, 'r'), {}}).status()));
  RecordCommit huge{"a", "", {std::string(kMaxSegmentBytes + 1, 's')}, 0, std::nullopt};
  EXPECT_TRUE(absl::IsInvalidArgument(store_.contexts->Commit(huge).status()));
}

// However many ask at once, the limit holds, and every place below it is given.
TEST_F(Records, TheLimitOfContextsHoldsForConcurrentCalls) {
  constexpr uint32_t kLimit = 5;
  Opened small(dir_ / "small", clock_, {.contexts_per_app = kLimit});
  for (int round = 0; round < 10; ++round) {
    const std::string app = "app" + std::to_string(round);
    std::atomic<uint32_t> made = 0, refused = 0;
    std::vector<std::thread> callers;
    for (int i = 0; i < 8; ++i) {
      callers.emplace_back([&] {
        for (int j = 0; j < 2; ++j) {
          const absl::Status status = small.contexts->Create(app, {}).status();
          if (status.ok()) ++made;
          if (absl::IsResourceExhausted(status)) ++refused;
        }
      });
    }
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(made, kLimit);
    EXPECT_EQ(refused, 16 - kLimit);
    EXPECT_EQ(small.contexts->CountOf(app), kLimit);
  }
}

// A retry gives back what there is, also where there is no place for another.
TEST_F(Records, ARetryAtTheLimitIsTheSameContext) {
  Opened small(dir_ / "small", clock_, {.contexts_per_app = 1});
  const auto made = small.contexts->Create("app", {"", "req", {}});
  ASSERT_TRUE(made.ok());
  EXPECT_EQ(small.contexts->Create("app", {"", "req", {}})->context_id, made->context_id);
  EXPECT_TRUE(absl::IsResourceExhausted(small.contexts->Create("app", {"", "two", {}}).status()));
}

TEST_F(Records, ACommitWithoutSegmentsAndResultChangesNothing) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  ASSERT_TRUE(store_.contexts->Commit(Exchange("app", id, "1")).ok());
  EXPECT_EQ(*store_.contexts->Commit({"app", id, {}, 99, std::nullopt}), 1u);
  EXPECT_EQ(store_.contexts->Find("app", id)->record.tokens, 7u);
  EXPECT_TRUE(
      absl::IsNotFound(store_.contexts->Commit({"other", id, {}, 0, std::nullopt}).status()));
}

TEST_F(Records, ListPagesThroughAllNewestFirst) {
  std::vector<std::string> made;
  for (int i = 0; i < 7; ++i) {
    made.insert(made.begin(), NewContextOf(*store_.contexts, "app"));
    clock_.Advance(1);
  }
  NewContextOf(*store_.contexts, "other");
  std::vector<std::string> listed;
  std::string token;
  do {
    const auto page = store_.contexts->List("app", 3, token);
    ASSERT_TRUE(page.ok());
    EXPECT_LE(page->contexts.size(), 3u);
    for (const ContextSummary& context : page->contexts) listed.push_back(context.context_id);
    token = page->next_page_token;
  } while (!token.empty());
  EXPECT_EQ(listed, made);
  EXPECT_TRUE(absl::IsInvalidArgument(store_.contexts->List("app", 3, "bogus").status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store_.contexts->List("app", 1001, "").status()));
  EXPECT_TRUE(store_.contexts->List("nobody", 0, "")->contexts.empty());
}

TEST_F(Records, ADamagedContextNamesItsKeyAndOthersGoOn) {
  const std::string bad_head = NewContextOf(*store_.contexts, "app");
  const std::string bad_text = NewContextOf(*store_.contexts, "app");
  const std::string good = NewContextOf(*store_.contexts, "app");
  for (const std::string& id : {bad_head, bad_text, good}) {
    ASSERT_TRUE(store_.contexts->Commit(Exchange("app", id, "1")).ok());
  }
  const std::string copy = dir_.Snapshot("db");
  {
    rocksdb::DB* raw = nullptr;
    ASSERT_TRUE(rocksdb::DB::Open(rocksdb::Options(), copy, &raw).ok());
    const std::string garbage(50, '\x01');
    ASSERT_TRUE(raw->Put(rocksdb::WriteOptions(), ContextKey("app", bad_head), garbage).ok());
    ASSERT_TRUE(raw->Put(rocksdb::WriteOptions(), SegmentKey(bad_text, 1), garbage).ok());
    delete raw;
  }
  Opened after(copy, clock_);
  const absl::Status head = after.contexts->Find("app", bad_head).status();
  EXPECT_TRUE(absl::IsDataLoss(head));
  EXPECT_THAT(std::string(head.message()), HasSubstr(ContextKey("app", bad_head)));
  const absl::Status text = after.contexts->ReadSegments("app", bad_text).status();
  EXPECT_TRUE(absl::IsDataLoss(text));
  EXPECT_THAT(std::string(text.message()), HasSubstr(SegmentKey(bad_text, 1)));
  EXPECT_EQ(after.contexts->ReadSegments("app", good)->size(), 2u);
  EXPECT_TRUE(after.contexts->Delete("app", bad_head).ok());
  EXPECT_TRUE(absl::IsNotFound(after.contexts->Find("app", bad_head).status()));
}

}  // namespace
}  // namespace withy::context_store
