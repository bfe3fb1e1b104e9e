#include "serving/session/leases_ahead.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "serving/call/testing.h"

namespace withy::serving {
namespace {

// A lease that counts what is asked of it.
class ScriptedLease final : public Lease {
 public:
  void Begin(std::string app_id, uint64_t call_id, int32_t) override {
    begun = std::move(app_id);
    call = call_id;
  }
  void Share(WantedChunks) override {}
  void Claim(int32_t, int32_t) override {}
  void Fault(int32_t, std::string) override {}
  void Yield(int32_t, int32_t) override {}
  void Commit(LeaseCommit) override {}
  void Abort() override {}
  std::string begun;
  uint64_t call = 0;
};

// Opens leases when the test says so.
class ScriptedSource final : public LeaseSource {
 public:
  struct Opening {
    LeaseOpen open;
    std::weak_ptr<ScriptedLease> lease;
    std::shared_ptr<LeaseEvents> events;
  };

  absl::StatusOr<std::shared_ptr<Lease>> Open(LeaseOpen open,
                                              std::shared_ptr<LeaseEvents> events) override {
    if (!error.ok()) return error;
    auto lease = std::make_shared<ScriptedLease>();
    openings.push_back({std::move(open), lease, std::move(events)});
    return std::shared_ptr<Lease>(lease);
  }

  // As the store answers: with a slot for each chunk that was asked for.
  void Answer(size_t opening, size_t arena_bytes = 64'000) {
    OpenedLease opened;
    opened.arena = std::make_shared<FakeArena>(1, arena_bytes);
    for (int32_t i = 0; i < openings[opening].open.claim_chunks; ++i) {
      opened.claimed.push_back({.chunk = i, .slot = {0}});
    }
    openings[opening].events->OnOpened(openings[opening].lease.lock(), std::move(opened));
  }
  bool Held(size_t opening) const { return !openings[opening].lease.expired(); }

  std::vector<Opening> openings;
  absl::Status error;
};

class RecordedEvents final : public LeaseEvents {
 public:
  void OnOpened(std::shared_ptr<Lease>, OpenedLease opened) override {
    seen += "opened ";
    chunks = opened.claimed.size();
    if (break_while_opening) break_while_opening();
  }
  void OnLoad(LoadEvent) override {}
  void OnShared(std::vector<ResidentChunk>) override {}
  void OnClaimed(std::vector<ChunkSlot>, std::string) override { seen += "claimed "; }
  void OnCommitted() override { seen += "committed "; }
  void OnBroken(absl::Status) override { seen += "broken "; }
  std::string seen;
  size_t chunks = 0;
  std::function<void()> break_while_opening;
};

class LeasesAheadTest : public testing::Test {
 protected:
  static constexpr size_t kLeases = 2;
  static constexpr int32_t kChunks = 3;

  std::shared_ptr<Lease> Call(uint64_t id, const std::string& context = "") {
    auto lease = ahead_.Open({.app_id = "app", .context_id = context, .call_id = id}, events_);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease.ok() ? *std::move(lease) : nullptr;
  }

  ScriptedSource source_;
  LeasesAhead ahead_{source_, kLeases};
  std::shared_ptr<RecordedEvents> events_ = std::make_shared<RecordedEvents>();
};

TEST_F(LeasesAheadTest, AStatelessCallFindsItsLeaseOpen) {
  ahead_.Refill(kChunks);
  ASSERT_EQ(source_.openings.size(), 2u);
  EXPECT_EQ(source_.openings[0].open.claim_chunks, 3);
  EXPECT_EQ(source_.openings[0].open.app_id, "");
  source_.Answer(1);
  const std::shared_ptr<Lease> lease = Call(7);
  EXPECT_EQ(events_->seen, "opened ");
  EXPECT_EQ(events_->chunks, 3u);
  EXPECT_EQ(source_.openings[1].lease.lock()->begun, "app");
  EXPECT_EQ(source_.openings[1].lease.lock()->call, 7u);
  EXPECT_EQ(source_.openings.size(), 2u);

  source_.openings[1].events->OnClaimed({}, "");
  source_.openings[1].events->OnCommitted();
  EXPECT_EQ(events_->seen, "opened claimed committed ");
  EXPECT_EQ(source_.openings.size(), 3u);  // the next one's
}

TEST_F(LeasesAheadTest, OneThatIsNotOpenYetIsNotWaitedFor) {
  ahead_.Refill(kChunks);
  const std::shared_ptr<Lease> lease = Call(7);
  EXPECT_EQ(events_->seen, "");
  ASSERT_EQ(source_.openings.size(), 3u);
  EXPECT_EQ(source_.openings[2].open.app_id, "app");
  EXPECT_TRUE(source_.Held(0));
  EXPECT_TRUE(source_.Held(1));
}

TEST_F(LeasesAheadTest, ContextsAndRebuildsOpenTheirOwn) {
  ahead_.Refill(kChunks);
  source_.Answer(0);
  const std::shared_ptr<Lease> lease = Call(7, "ctx");
  ASSERT_EQ(source_.openings.size(), 3u);
  EXPECT_EQ(source_.openings[2].open.context_id, "ctx");
}

TEST_F(LeasesAheadTest, WhatBreaksBeforeItsCallIsForgotten) {
  ahead_.Refill(kChunks);
  source_.Answer(0);
  source_.openings[0].events->OnBroken(absl::UnavailableError("gone"));
  EXPECT_FALSE(source_.Held(0));
  const std::shared_ptr<Lease> lease = Call(7);
  EXPECT_EQ(events_->seen, "");
  // One for the call, one in the place of the broken one.
  EXPECT_EQ(source_.openings.size(), 4u);
}

TEST_F(LeasesAheadTest, ABreakWhileItIsHandedOverComesAfterTheOpening) {
  ahead_.Refill(kChunks);
  source_.Answer(0);
  events_->break_while_opening = [&] {
    source_.openings[0].events->OnBroken(absl::UnavailableError("gone"));
    EXPECT_EQ(events_->seen, "opened ");
  };
  const std::shared_ptr<Lease> lease = Call(7);
  EXPECT_EQ(events_->seen, "opened broken ");
}

TEST_F(LeasesAheadTest, AnArenaThatNeedsAllForItsCallsIsLeftToThem) {
  ahead_.Refill(0);
  const std::shared_ptr<Lease> lease = Call(7);
  EXPECT_EQ(source_.openings.size(), 1u);  // the call's, and none ahead
  ahead_.Refill(kChunks);                  // another arena
  EXPECT_EQ(source_.openings.size(), 3u);
}

TEST_F(LeasesAheadTest, WithoutAStoreNothingIsHeld) {
  source_.error = absl::UnavailableError("away");
  ahead_.Refill(kChunks);
  EXPECT_EQ(ahead_.Open({.app_id = "app"}, events_).status(), source_.error);
  source_.error = absl::OkStatus();
  ahead_.Refill(kChunks);
  EXPECT_EQ(source_.openings.size(), 2u);
}

TEST_F(LeasesAheadTest, GivesBackWhatNoCallHasTaken) {
  {
    LeasesAhead ahead(source_, kLeases);
    ahead.Refill(kChunks);
    source_.Answer(0);
    EXPECT_TRUE(source_.Held(0));
  }
  EXPECT_FALSE(source_.Held(0));
  EXPECT_FALSE(source_.Held(1));
  source_.openings[0].events->OnBroken(absl::CancelledError("as gRPC ends it, later"));
}

}  // namespace
}  // namespace withy::serving
