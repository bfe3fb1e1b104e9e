// Room for leases: what waits, what is given, and that no lease is refused because of others.
#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <string>

#include "base/test_seed.h"
#include "context_store/lease/lease_table_testing.h"

namespace withy::context_store {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

class LeaseAdmissionTest : public LeaseTableTest {
 protected:
  LeaseOpening OpenFor(uint32_t need, std::string_view context = "") {
    return *table_.Open({.epoch = epoch_, .context_id = context, .need = need});
  }
  // False: the claim waits.
  bool ClaimNow(LeaseId lease, uint32_t first, uint32_t count) {
    const auto answer = table_.Claim(lease, first, count, &evicted_);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() && !answer->waits;
  }
};

// The arena of these tests holds ten chunks.
TEST_F(LeaseAdmissionTest, ClaimsWaitWhereTwoCallsWouldBlockEachOther) {
  const LeaseId a = OpenFor(8).id;
  const LeaseId b = OpenFor(8).id;
  EXPECT_TRUE(ClaimNow(a, 0, 4));
  EXPECT_TRUE(ClaimNow(b, 0, 2)) << "the first one can still get what it needs";
  EXPECT_FALSE(ClaimNow(b, 2, 1)) << "none of them could end then";
  EXPECT_TRUE(ClaimNow(a, 4, 4));
  const Effects ended = table_.Abort(a);
  ASSERT_THAT(ended.claims, SizeIs(1));
  EXPECT_EQ(ended.claims[0].lease, b);
  EXPECT_THAT(ended.claims[0].chunks, SizeIs(1));
  EXPECT_TRUE(ClaimNow(b, 3, 5));
  table_.Abort(b);
}

TEST_F(LeaseAdmissionTest, OpeningWaitsForRoomAndSmallCallsGoFirst) {
  const LeaseId large = OpenFor(10).id;
  EXPECT_TRUE(ClaimNow(large, 0, 7));
  const LeaseOpening waiting = OpenFor(4);
  EXPECT_TRUE(waiting.granted) << "it can wait with nothing";
  EXPECT_FALSE(ClaimNow(waiting.id, 0, 1));
  EXPECT_TRUE(ClaimNow(large, 7, 3));
  const Effects ended = table_.Abort(large);
  ASSERT_THAT(ended.claims, SizeIs(1));
  table_.Abort(waiting.id);
}

TEST_F(LeaseAdmissionTest, AContextThatIsOpenedIsNotEvictedFromUnderACall) {
  Fill("c", 5);
  const LeaseId call = OpenFor(10).id;
  EXPECT_TRUE(ClaimNow(call, 0, 2));
  const LeaseOpening context = OpenFor(9, "c");
  EXPECT_FALSE(context.granted) << "its chunks would stay, and none of the two could end";
  EXPECT_TRUE(absl::IsAborted(table_.LockContext("c"))) << "a call waits for it";
  EXPECT_TRUE(ClaimNow(call, 2, 8));
  EXPECT_EQ(ResidentChunks("c"), 0u) << "until then it is idle";
  EXPECT_THAT(table_.Abort(call).granted, ElementsAre(context.id));
  EXPECT_TRUE(ClaimNow(context.id, 0, 9));
  table_.Abort(context.id);
}

TEST_F(LeaseAdmissionTest, ACallThatWaitsCanLeave) {
  Fill("c", 5);
  const LeaseId call = OpenFor(10).id;
  EXPECT_TRUE(ClaimNow(call, 0, 2));
  const LeaseId first = OpenFor(9, "c").id;
  const LeaseId second = OpenFor(9, "c").id;
  table_.Abort(first);
  EXPECT_EQ(AuditLeases(table_.state()), "");
  EXPECT_THAT(table_.Abort(call).granted, ElementsAre(second));
  table_.Abort(second);
  EXPECT_EQ(table_.state().waiting, 0u);
}

TEST_F(LeaseAdmissionTest, ACallLargerThanTheArenaIsRefusedAtOnceWhenItIsAlone) {
  const LeaseId call = OpenFor(20).id;
  EXPECT_TRUE(ClaimNow(call, 0, 10));
  EXPECT_TRUE(absl::IsResourceExhausted(table_.Claim(call, 10, 1, &evicted_).status()));
  table_.Abort(call);
}

TEST_F(LeaseAdmissionTest, SlotsOfADeadWorkerDoNotLeaveCallsWaiting) {
  table_.WorkerConnected(kWorker);
  const LeaseId a = OpenFor(8).id;
  const LeaseId b = OpenFor(8).id;
  const LeaseId broken = OpenFor(2).id;
  EXPECT_TRUE(ClaimNow(broken, 0, 2));
  EXPECT_TRUE(ClaimNow(a, 0, 4));
  EXPECT_FALSE(ClaimNow(a, 4, 5)) << "more than was said";
  const Effects ended = table_.Break(broken);
  ASSERT_THAT(ended.claims, SizeIs(0)) << "the other one, which has nothing, may still end";
  const Effects last = table_.Abort(b);
  ASSERT_THAT(last.claims, SizeIs(1));
  EXPECT_NE(last.claims[0].refused, "") << "nobody is left whose end would bring room";
  EXPECT_TRUE(ClaimNow(a, 4, 4));
  table_.Abort(a);
}

TEST_F(LeaseAdmissionTest, ALeaseOpenedAheadNeedsRoomWhenItsCallComes) {
  const LeaseId ahead = table_.Open({.epoch = epoch_, .ahead = true})->id;
  ASSERT_TRUE(Claim(ahead, 0, 1).ok());
  const LeaseId call = OpenFor(9).id;
  EXPECT_TRUE(ClaimNow(call, 0, 1));
  ASSERT_TRUE(table_.Begin(ahead, 9).ok());
  EXPECT_TRUE(ClaimNow(call, 1, 1));
  EXPECT_FALSE(ClaimNow(ahead, 1, 1)) << "both need nearly everything";
  EXPECT_TRUE(ClaimNow(call, 2, 7));
  EXPECT_THAT(table_.Abort(call).claims, SizeIs(1));
  EXPECT_TRUE(ClaimNow(ahead, 2, 7));
  table_.Abort(ahead);
}

TEST_F(LeaseAdmissionTest, ALargeCallIsOvertakenABoundedNumberOfTimes) {
  Fill("c", 6);
  const LeaseId running = OpenFor(9).id;
  EXPECT_TRUE(ClaimNow(running, 0, 1));
  const LeaseOpening large = OpenFor(10, "c");
  ASSERT_FALSE(large.granted);
  int admitted = 0;
  for (bool granted = true; granted; ++admitted) {
    ASSERT_LT(admitted, 100) << "the large call never gets its turn";
    const LeaseOpening small = OpenFor(1);
    granted = small.granted;
    table_.Abort(small.id);
  }
  EXPECT_GT(admitted, 5);
  EXPECT_THAT(table_.Abort(running).granted, ElementsAre(large.id));
  table_.Abort(large.id);
}

// Many callers in a small arena: each one gets all that it said it may need, however they grow and
// whatever idle contexts, demotions, writes and leases opened ahead are in between.
class ManyCallers {
 public:
  explicit ManyCallers(uint32_t seed) : random_(seed) {
    table_.WorkerConnected(1);
    epoch_ = table_.Attach(1, LeaseGeometry())->epoch;
  }

  void Run(int steps) {
    for (int step = 0; step < steps || !calls_.empty(); ++step) {
      ASSERT_LT(step, steps + 100000) << "calls wait for ever";
      if (step < steps && Pick(4) == 0 && calls_.size() < 16) Open();
      if (!calls_.empty()) Grow(&*std::next(calls_.begin(), Pick(calls_.size())));
      if (Pick(3) == 0) WorkOnIdle();
      ASSERT_EQ(AuditLeases(table_.state()), "");
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_GT(waited_, 0) << "the arena was never short";
    EXPECT_EQ(table_.state().waiting_for_room(), 0);
  }

 private:
  static constexpr uint32_t kArena = 24;
  // Of a call. The rest of the arena holds what leases have claimed before their calls came.
  static constexpr uint32_t kMost = 16;
  static constexpr int kMostAhead = 4;
  struct Call {
    std::string context;
    bool ahead = false;  // opened before it came
    bool granted = false;
    bool waits = false;
    uint32_t held = 0;
    uint32_t need = 0;  // until it ends; perhaps fewer than it said
  };

  uint32_t Pick(size_t n) { return static_cast<uint32_t>(random_() % n); }

  void Open() {
    const std::string context =
        Pick(2) == 0 ? "" : std::string(1, static_cast<char>('a' + Pick(6)));
    for (const auto& [id, call] : calls_) {
      if (!context.empty() && call.context == context) return;
    }
    const uint32_t has = static_cast<uint32_t>(table_.kv().ChunksOf(context).size());
    const auto others = std::count_if(calls_.begin(), calls_.end(),
                                      [](const auto& entry) { return entry.second.ahead; });
    const bool ahead = context.empty() && Pick(3) == 0 && others < kMostAhead;
    const uint32_t said = std::max(has + 1 + Pick(4), 1 + Pick(kMost));
    if (said > kMost) return;
    const auto opening = table_.Open({.epoch = epoch_,
                                      .context_id = context,
                                      .app_id = "app",
                                      .ahead = ahead,
                                      .need = ahead ? 0 : said});
    ASSERT_TRUE(opening.ok()) << opening.status();
    Call& call = calls_[opening->id];
    call = {
        .context = context, .ahead = ahead, .need = std::max(has + 1, said - Pick(2) * Pick(said))};
    if (ahead) {
      uint64_t evicted = 0;
      const auto first = table_.Claim(opening->id, 0, 1, &evicted, /*may_wait=*/false);
      call.held = first.ok() ? 1 : 0;
      ASSERT_TRUE(table_.Begin(opening->id, said).ok());
    }
    if (opening->granted) Grant(opening->id);
  }
  void Grant(LeaseId id) {
    Call& call = calls_.at(id);
    call.granted = true;
    if (call.context.empty()) return;
    uint64_t evicted = 0;
    const auto loads =
        table_.chunks().BeginLoad(id, {.policy = policy::LoadPolicy::kReadAll}, &evicted);
    table_.chunks().FinishLoad(call.context, loads, std::vector<bool>(loads.size(), true));
    Apply(table_.Advance());
    call.held = static_cast<uint32_t>(table_.chunks().Resident(id).size());
  }
  void Apply(const Effects& effects) {
    for (const LateClaim& claim : effects.claims) {
      ASSERT_EQ(claim.refused, "") << "lease " << claim.lease;
      Call& call = calls_.at(claim.lease);
      ASSERT_TRUE(call.waits);
      call.waits = false;
      call.held = claim.chunks.back().chunk + 1;
    }
    for (const LeaseId id : effects.granted) Grant(id);
  }
  void Grow(std::pair<const LeaseId, Call>* picked) {
    auto& [id, call] = *picked;
    if (!call.granted || call.waits) {
      ++waited_;
      return;
    }
    if (call.held >= call.need) return End(id);
    uint64_t evicted = 0;
    const uint32_t count = 1 + Pick(std::min(call.need - call.held, 4u));
    const auto claimed = table_.Claim(id, call.held, count, &evicted);
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    call.waits = claimed->waits;
    if (!claimed->waits) call.held += count;
  }
  void End(LeaseId id) {
    const Call call = calls_.at(id);
    calls_.erase(id);
    if (call.context.empty() || Pick(4) == 0) return Apply(table_.Abort(id));
    std::vector<ChunkIdentity> chunks;
    const auto resident = table_.chunks().Resident(id);
    for (uint32_t i = 0; i < call.held; ++i) {
      const std::string name = call.context + std::string(31, static_cast<char>('0' + i));
      chunks.push_back(i < resident.size() ? resident[i].identity : ChunkIdentity{name, 16, 100});
    }
    const auto begun = table_.BeginCommit(id, chunks, AnyStamp);
    ASSERT_TRUE(begun.ok()) << begun.status();
    Apply(table_.FinishCommit(id, true));
  }
  void WorkOnIdle() {
    const std::string context(1, static_cast<char>('a' + Pick(6)));
    if (writing_.has_value()) {
      table_.idle().FinishWrite(*std::exchange(writing_, std::nullopt), ++copies_);
      Apply(table_.Advance());
    } else if (Pick(2) == 0) {
      writing_ = table_.idle().BeginWrite(context, Pick(6));
    } else if (const auto work = table_.idle().BeginDemotion(context, Pick(6), KvFormat::kQ4)) {
      table_.idle().FinishDemotion(*work, KvFormat::kQ4);
      Apply(table_.Advance());
    }
  }

  std::mt19937 random_;
  LeaseTable table_{{.arena_bytes = kArena * kSlotBytes, .open = 100, .waiting = 100}, 0};
  uint64_t epoch_ = 0;
  std::map<LeaseId, Call> calls_;
  std::optional<ChunkWork> writing_;
  StoredCopy copies_ = 0;
  int waited_ = 0;
};

TEST(LeaseAdmissionProperty, EveryCallGetsWhatItMayNeed) {
  const uint32_t first = TestSeed();
  for (uint32_t i = 0; i < 40; ++i) {
    SCOPED_TRACE(::testing::Message() << "seed " << first + i);
    ManyCallers(first + i).Run(1500);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace withy::context_store
