#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rocksdb/db.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "context_store/records/app_registry.h"
#include "context_store/records/context_records.h"
#include "context_store/records/record_encryption.h"
#include "context_store/testing.h"

namespace withy::context_store {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Opens the records of one directory, as a process would.
struct Opened {
  explicit Opened(const std::string& path, const Clock& clock, ContextLimits limits = {}) {
    auto opened = RecordDb::Open({.path = path});
    EXPECT_TRUE(opened.ok()) << opened.status();
    db = *std::move(opened);
    // One key file for all copies of a directory.
    keys = *ContextKeys::Open(
        *db, {(std::filesystem::path(path).parent_path() / "master.key").string()});
    db->UseKeys(*keys);
    EXPECT_TRUE(EncryptRecords(*db, *keys).ok());
    apps = *AppRegistry::Load(*db, clock);
    contexts = *ContextRecords::Load(*db, *keys, clock, limits);
  }
  std::unique_ptr<RecordDb> db;
  std::unique_ptr<ContextKeys> keys;
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

TEST_F(Records, ACertifiedNameIsThatOfARegisteredApp) {
  const auto mail = store_.apps->Bind("mail");
  ASSERT_TRUE(mail.ok());
  EXPECT_EQ(store_.apps->FindCertified("mail")->app_id, mail->app_id);
  for (const char* none : {"", "Mail", "mai", "maps", "mail\n"}) {
    const absl::Status refused = store_.apps->FindCertified(none).status();
    EXPECT_TRUE(absl::IsUnauthenticated(refused)) << none;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("withyctl apps bind"));
  }
  ASSERT_TRUE(store_.apps->Remove(mail->app_id).ok());
  EXPECT_FALSE(store_.apps->FindCertified("mail").ok());
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

TEST_F(Records, CreatingAgainWithOtherContentSaysWhatDiffers) {
  const NewContext asked{"title", "req", {"system"}, Sha256("be brief")};
  const auto made = store_.contexts->Create("app", asked);
  ASSERT_TRUE(made.ok());
  Opened after(dir_.Snapshot("db"), clock_);
  for (ContextRecords* contexts : {store_.contexts.get(), after.contexts.get()}) {
    EXPECT_EQ(contexts->Create("app", asked)->context_id, made->context_id);
    NewContext other = asked;
    other.title = "another";
    const absl::Status title = contexts->Create("app", other).status();
    EXPECT_TRUE(absl::IsAlreadyExists(title)) << title;
    EXPECT_THAT(std::string(title.message()),
                testing::AllOf(HasSubstr("\"req\""), HasSubstr(made->context_id),
                               HasSubstr("title (\"title\" then, \"another\" now)"),
                               testing::Not(HasSubstr("system_prompt"))));
    other.system_digest = Sha256("");
    other.segments.clear();
    EXPECT_THAT(std::string(contexts->Create("app", other).status().message()),
                HasSubstr("now) and system_prompt"));
    EXPECT_EQ(contexts->CountOf("app"), 1u);
  }
}

// Calls that broke off.

constexpr char kCut[] = "cut short";

// The exchange of request `id`, broken off.
RecordCommit Broken(const std::string& context, const std::string& id, const std::string& text) {
  RecordCommit commit{"app", context, {"q " + id, text}, 7, std::nullopt};
  commit.unfinished = RequestKey{id, "digest " + id};
  return commit;
}

// The same exchange, answered.
RecordCommit Answered(const std::string& context, const std::string& id, const std::string& text) {
  RecordCommit commit{"app", context, {"q " + id, text}, 7, std::nullopt};
  commit.result = NewResult{id, "digest " + id, "result " + id};
  return commit;
}

// Commits as a lease does: replaces what an earlier try left.
absl::Status Replace(ContextRecords& contexts, RecordCommit commit) {
  const RequestKey key = commit.result
                             ? RequestKey{commit.result->request_id, commit.result->digest}
                             : *commit.unfinished;
  const auto segments = contexts.ReadSegments("app", commit.context_id);
  const auto range = contexts.FindUnfinished("app", commit.context_id, key, *segments);
  if (!range.ok()) return range.status();
  commit.replaces = *range;
  return contexts.Commit(commit).status();
}

TEST_F(Records, ARetryTakesThePlaceOfWhatBrokeOff) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  ASSERT_TRUE(store_.contexts->Commit(Exchange("app", id, "1")).ok());
  ASSERT_TRUE(Replace(*store_.contexts, Broken(id, "r", kCut)).ok());
  EXPECT_THAT(*store_.contexts->ReadSegments("app", id), ElementsAre("q 1", "a 1", "q r", kCut));
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->FindResult("app", "r", "digest r").status()));
  // Also in another process, and if the retry breaks off, too.
  Opened after(dir_.Snapshot("db"), clock_);
  ASSERT_TRUE(Replace(*after.contexts, Broken(id, "r", "cut later")).ok());
  EXPECT_THAT(*after.contexts->ReadSegments("app", id),
              ElementsAre("q 1", "a 1", "q r", "cut later"));
  ASSERT_TRUE(Replace(*after.contexts, Answered(id, "r", "whole")).ok());
  EXPECT_THAT(*after.contexts->ReadSegments("app", id), ElementsAre("q 1", "a 1", "q r", "whole"));
  EXPECT_EQ(*after.contexts->FindResult("app", "r", "digest r"), "result r");
  EXPECT_TRUE(after.contexts->Find("app", id)->record.unfinished.empty());
  EXPECT_TRUE(absl::IsAlreadyExists(after.contexts->Commit(Answered(id, "r", "x")).status()));
}

TEST_F(Records, ARetryAfterOthersHaveSpokenComesLast) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  ASSERT_TRUE(Replace(*store_.contexts, Broken(id, "r", kCut)).ok());
  ASSERT_TRUE(Replace(*store_.contexts, Broken(id, "s", kCut)).ok());
  ASSERT_TRUE(store_.contexts->Commit(Exchange("app", id, "2")).ok());
  ASSERT_TRUE(Replace(*store_.contexts, Answered(id, "r", "whole r")).ok());
  EXPECT_THAT(*store_.contexts->ReadSegments("app", id),
              ElementsAre("q s", kCut, "q 2", "a 2", "q r", "whole r"));
  Opened after(dir_.Snapshot("db"), clock_);
  ASSERT_TRUE(Replace(*after.contexts, Answered(id, "s", "whole s")).ok());
  EXPECT_THAT(*after.contexts->ReadSegments("app", id),
              ElementsAre("q 2", "a 2", "q r", "whole r", "q s", "whole s"));
}

TEST_F(Records, TheIdOfWhatBrokeOffIsNoOtherRequests) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  ASSERT_TRUE(Replace(*store_.contexts, Broken(id, "r", kCut)).ok());
  const absl::Status other = store_.contexts->FindResult("app", "r", "another digest").status();
  EXPECT_TRUE(absl::IsAlreadyExists(other)) << other;
  EXPECT_THAT(std::string(other.message()), HasSubstr("\"r\""));
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->FindResult("other", "r", "d").status()));
  const RequestKey another{"r", "another digest"};
  const absl::Status unfinished = store_.contexts->FindUnfinished("app", id, another, {}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(unfinished)) << "a call that came before the part was kept";
  // After a day another request may use the id, and the old segments stay.
  clock_.Advance(86400 * kNanosPerSecond);
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->FindResult("app", "r", "another").status()));
  RecordCommit later = Broken(id, "r", "of another request");
  later.unfinished->digest = "another digest";
  ASSERT_TRUE(Replace(*store_.contexts, later).ok());
  EXPECT_EQ(store_.contexts->ReadSegments("app", id)->size(), 4u);
  EXPECT_EQ(store_.contexts->FindUnfinished("app", id, another, {})->first, 2u);
  ASSERT_TRUE(store_.contexts->Delete("app", id).ok());
  EXPECT_TRUE(absl::IsNotFound(store_.contexts->FindResult("app", "r", "third").status()));
}

TEST_F(Records, NoMoreThanSomeUnfinishedExchangesAreKeptForRetries) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  for (size_t i = 0; i <= kMaxUnfinished; ++i) {
    ASSERT_TRUE(Replace(*store_.contexts, Broken(id, std::to_string(i), kCut)).ok());
  }
  EXPECT_EQ(store_.contexts->Find("app", id)->record.unfinished.size(), kMaxUnfinished);
  EXPECT_EQ(store_.contexts->FindUnfinished("app", id, {"0", "digest 0"}, {})->count, 0u);
  EXPECT_EQ(store_.contexts->FindUnfinished("app", id, {"1", "digest 1"}, {})->first, 2u);
}

// Earlier builds stored broken-off calls as results. These do not count.
TEST_F(Records, AFormerResultOfACallThatBrokeOffIsAnsweredAnew) {
  const std::string id = NewContextOf(*store_.contexts, "app");
  ASSERT_TRUE(store_.contexts->Commit(Exchange("app", id, "1")).ok());
  RecordCommit former = Answered(id, "r", kCut);
  former.result->result = kCut;
  ASSERT_TRUE(store_.contexts->Commit(former).ok());
  LegacyResults form;
  form.is_answer = [](std::string_view result) { return result != kCut; };
  form.find = [](const std::vector<std::string>& segments, std::string_view result) {
    const auto found = std::find(segments.begin(), segments.end(), result);
    return SegmentRange{static_cast<uint32_t>(found - segments.begin()) - 1, 2};
  };
  const auto contexts = *ContextRecords::Load(*store_.db, *store_.keys, clock_, {}, form);
  EXPECT_TRUE(absl::IsNotFound(contexts->FindResult("app", "r", "digest r").status()));
  EXPECT_TRUE(absl::IsAlreadyExists(contexts->FindResult("app", "r", "another").status()));
  ASSERT_TRUE(Replace(*contexts, Answered(id, "r", "whole")).ok());
  EXPECT_THAT(*contexts->ReadSegments("app", id), ElementsAre("q 1", "a 1", "q r", "whole"));
  EXPECT_EQ(*contexts->FindResult("app", "r", "digest r"), "result r");
}

// Random sequences of broken, retried and other calls, with a kill at any moment: every answered
// exchange is in the context once, and nothing that was replaced is.
TEST_F(Records, RandomOrdersLeaveEachAnswerOnce) {
  const unsigned seed = TestSeed();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::string path = dir_ / "random";
  auto opened = std::make_unique<Opened>(path, clock_);
  const std::string id = NewContextOf(*opened->contexts, "app");
  std::vector<std::pair<std::string, std::string>>
      expected;  // pairs of request and answer, in order
  const auto drop = [&](const std::string& request) {
    std::erase_if(expected, [&](const auto& exchange) { return exchange.first == request; });
  };
  std::set<std::string> answered;
  for (int step = 0; step < 120; ++step) {
    const std::string request = "r" + std::to_string(random() % 6);
    if (answered.contains(request)) {
      const auto stored = opened->contexts->FindResult("app", request, "digest " + request);
      ASSERT_TRUE(stored.ok()) << stored.status();
      if (random() % 4 != 0) continue;
      clock_.Advance(86400 * kNanosPerSecond);  // every id is free again
      answered.clear();
      for (auto& exchange : expected) {
        if (exchange.second != kCut) exchange.first += " of before";
      }
      continue;
    }
    const bool whole = random() % 3 == 0;
    drop(request);
    expected.emplace_back(request, whole ? "whole " + std::to_string(step) : kCut);
    const RecordCommit commit =
        whole ? Answered(id, request, expected.back().second) : Broken(id, request, kCut);
    ASSERT_TRUE(Replace(*opened->contexts, commit).ok());
    if (whole) answered.insert(request);
    if (random() % 5 == 0) {
      opened = nullptr;
      opened = std::make_unique<Opened>(path, clock_);
    }
    const auto segments = opened->contexts->ReadSegments("app", id);
    ASSERT_TRUE(segments.ok()) << segments.status();
    ASSERT_EQ(segments->size(), 2 * expected.size());
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE((*segments)[2 * i] == "q " + expected[i].first.substr(0, 2)) << i;
      ASSERT_EQ((*segments)[2 * i + 1], expected[i].second) << i;
    }
  }
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

// With concurrent calls the limit holds and all contexts below it are granted.
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

// A retry returns the existing context even at the limit.
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
