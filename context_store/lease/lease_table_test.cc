#include "context_store/lease/lease_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "context_store/lease/lease_table_testing.h"

namespace withy::context_store {
namespace {

using ::testing::ElementsAre;

TEST_F(LeaseTableTest, WhatIsCommittedIsResidentForTheNextLease) {
  const LeaseId lease = Open("c");
  const auto claimed = Claim(lease, 0, 3);
  ASSERT_TRUE(claimed.ok());
  Commit(lease, Chunks(2, 5));
  const LeaseId next = Open("c");
  const auto resident = table_.chunks().Resident(next);
  ASSERT_EQ(resident.size(), 3u);
  for (uint32_t i = 0; i < 3; ++i) EXPECT_EQ(resident[i].where.slot, (*claimed)[i].slot);
  EXPECT_EQ(resident[2].identity.tokens, 5u);
  EXPECT_EQ(FreeChunks(), 7u);
}

TEST_F(LeaseTableTest, ALeaseHoldsWhatItsContextHasAndWhatItClaims) {
  Fill("c", 3);
  Fill("d", 2);
  EXPECT_EQ(table_.state().held_bytes(), 0u) << "what idle contexts have gives way";
  const uint64_t chunk_bytes = table_.kv().pool.counts().resident / 5;
  const LeaseId lease = Open("c");
  EXPECT_EQ(table_.state().held_bytes(), 3 * chunk_bytes);
  ASSERT_TRUE(Claim(lease, 3, 2).ok());
  EXPECT_EQ(table_.state().held_bytes(), 5 * chunk_bytes);
  ASSERT_TRUE(table_.Open({.epoch = epoch_, .context_id = "c"}).ok());
  EXPECT_EQ(table_.state().held_bytes(), 5 * chunk_bytes) << "a lease that waits holds nothing";
  const LeaseId other = Open("d");
  EXPECT_EQ(table_.state().held_bytes(), 7 * chunk_bytes);
  Commit(other, Chunks(2));
  table_.Abort(lease);
  EXPECT_EQ(table_.state().held_bytes(), 3 * chunk_bytes)
      << "the lease that waited has the context";
}

TEST_F(LeaseTableTest, ChunksNotNamedAtCommitAreFreed) {
  Fill("c", 4);
  const LeaseId lease = Open("c");
  ASSERT_TRUE(Claim(lease, 4, 2).ok());
  Commit(lease, Chunks(3));
  EXPECT_EQ(ResidentChunks("c"), 3u);
  EXPECT_EQ(FreeChunks(), 7u);
}

TEST_F(LeaseTableTest, ARebuildReplacesWhatItClaimedWhenItCommits) {
  Fill("c", 3, 5);
  const LeaseId lease = table_.Open({.epoch = epoch_, .context_id = "c", .rebuild = true})->id;
  const auto before = table_.chunks().Resident(lease);
  const auto fresh = Claim(lease, 1, 3);
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  EXPECT_EQ(FreeChunks(), 3u) << "the context keeps what it has";
  std::vector<ChunkIdentity> chunks = Chunks(3, 5, 'j');
  chunks[0] = before[0].identity;
  Commit(lease, chunks);
  const auto after = table_.chunks().Resident(Open("c"));
  ASSERT_EQ(after.size(), 4u);
  EXPECT_EQ(after[0].where.slot, before[0].where.slot);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_EQ(after[i].where.slot, (*fresh)[i - 1].slot);
    EXPECT_EQ(after[i].identity.identity, std::string(32, 'j'));
  }
  EXPECT_EQ(FreeChunks(), 6u);
}

TEST_F(LeaseTableTest, ARebuildThatIsBrokenOffLeavesTheContextAsItWas) {
  Fill("c", 3);
  const LeaseId lease = table_.Open({.epoch = epoch_, .context_id = "c", .rebuild = true})->id;
  ASSERT_TRUE(Claim(lease, 0, 3).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(table_.chunks().Fault(lease, 1)));
  table_.Abort(lease);
  EXPECT_EQ(ResidentChunks("c"), 3u);
  EXPECT_EQ(FreeChunks(), 7u);
}

TEST_F(LeaseTableTest, ARebuildWithForeignSlotsKeepsNothingOfThem) {
  Fill("c", 3);
  const LeaseId lease = table_.Open({.epoch = epoch_, .context_id = "c", .rebuild = true})->id;
  ASSERT_TRUE(Claim(lease, 1, 2).ok());
  const auto foreign = [](KvSlot, uint64_t) { return false; };
  EXPECT_EQ(*table_.BeginCommit(lease, Chunks(3), foreign), 2u);
  table_.FinishCommit(lease, true);
  EXPECT_EQ(ResidentChunks("c"), 1u);
}

TEST_F(LeaseTableTest, LeasesOfOneContextFollowEachOther) {
  const LeaseId first = Open("c");
  const auto second = table_.Open({.epoch = epoch_, .context_id = "c"});
  const auto third = table_.Open({.epoch = epoch_, .context_id = "c"});
  ASSERT_TRUE(second.ok() && third.ok());
  EXPECT_FALSE(second->granted);
  EXPECT_TRUE(table_.Open({.epoch = epoch_, .context_id = "d"})->granted);
  EXPECT_TRUE(absl::IsInvalidArgument(Claim(second->id, 0, 1).status()));
  EXPECT_THAT(Commit(first, {}).granted, ElementsAre(second->id));
  EXPECT_THAT(table_.Break(second->id).granted, ElementsAre(third->id));
  EXPECT_TRUE(Claim(third->id, 0, 1).ok());
}

TEST_F(LeaseTableTest, AWaitingLeaseThatGoesAwayLosesItsPlace) {
  const LeaseId first = Open("c");
  const LeaseId second = Open("c");
  const LeaseId third = Open("c");
  EXPECT_THAT(table_.Break(second).granted, ElementsAre());
  EXPECT_THAT(table_.Abort(first).granted, ElementsAre(third));
}

TEST_F(LeaseTableTest, WaitingIsBounded) {
  Open("c");
  for (int i = 0; i < 3; ++i) Open("c");
  EXPECT_TRUE(
      absl::IsResourceExhausted(table_.Open({.epoch = epoch_, .context_id = "c"}).status()));
}

TEST_F(LeaseTableTest, AStaleEpochOpensClaimsAndCommitsNothing) {
  table_.WorkerConnected(kWorker);
  const LeaseId lease = Open("c");
  ASSERT_TRUE(Claim(lease, 0, 2).ok());
  const auto attached = table_.Attach(kWorker, LeaseGeometry());
  ASSERT_TRUE(attached.ok());
  EXPECT_EQ(attached->epoch, epoch_ + 1);
  EXPECT_THAT(attached->ended, ElementsAre(lease));
  EXPECT_TRUE(absl::IsAborted(table_.Open({.epoch = epoch_, .context_id = "c"}).status()));
  EXPECT_TRUE(absl::IsAborted(Claim(lease, 2, 1).status()));
  EXPECT_TRUE(absl::IsAborted(table_.BeginCommit(lease, Chunks(2), AnyStamp).status()));
  EXPECT_TRUE(AllFree());
}

TEST_F(LeaseTableTest, KvSurvivesANewWorkerOfTheSameModelOnly) {
  Fill("c", 3);
  ASSERT_TRUE(table_.Attach(kOther, LeaseGeometry()).ok());
  EXPECT_EQ(ResidentChunks("c"), 3u);
  ASSERT_TRUE(table_.Attach(kOther, LeaseGeometry('n')).ok());
  EXPECT_EQ(ResidentChunks("c"), 0u);
  EXPECT_TRUE(AllFree());
}

TEST_F(LeaseTableTest, AnotherModelWaitsUntilTheLiveWorkerIsGone) {
  table_.WorkerConnected(kWorker);
  EXPECT_TRUE(absl::IsFailedPrecondition(table_.Attach(kOther, LeaseGeometry('n')).status()));
  table_.WorkerGone(kWorker);
  EXPECT_TRUE(table_.Attach(kOther, LeaseGeometry('n')).ok());
}

TEST_F(LeaseTableTest, BrokenLeasesQuarantineWhatTheirWorkerMayStillWrite) {
  table_.WorkerConnected(kWorker);
  Fill("c", 2, 7);
  const LeaseId lease = Open("c");
  ASSERT_TRUE(Claim(lease, 3, 2).ok());
  table_.Break(lease);
  // The two claimed chunks and the one being extended.
  EXPECT_EQ(QuarantinedChunks(), 3u);
  EXPECT_EQ(ResidentChunks("c"), 2u);
  const LeaseId other = Open("d");
  ASSERT_TRUE(Claim(other, 0, 5).ok());
  EXPECT_TRUE(Claim(other, 5, 2).ok()) << "by evicting the idle context";
  EXPECT_TRUE(absl::IsResourceExhausted(Claim(other, 7, 1).status()));
  table_.WorkerGone(kWorker);
  EXPECT_EQ(QuarantinedChunks(), 0u);
  EXPECT_TRUE(AllFree());
}

TEST_F(LeaseTableTest, AnAttachAcknowledgesOnlyItsOwnQuarantine) {
  table_.WorkerConnected(kWorker);
  const LeaseId lease = Open("c");
  ASSERT_TRUE(Claim(lease, 0, 2).ok());
  table_.WorkerConnected(kOther);
  ASSERT_TRUE(table_.Attach(kOther, LeaseGeometry()).ok());
  EXPECT_EQ(QuarantinedChunks(), 2u);
  ASSERT_TRUE(table_.Attach(kWorker, LeaseGeometry()).ok());
  EXPECT_EQ(QuarantinedChunks(), 0u);
}

TEST_F(LeaseTableTest, ARefusedClaimLeavesTheLeaseAsItWas) {
  const LeaseId lease = Open("c");
  ASSERT_TRUE(Claim(lease, 0, 8).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Claim(lease, 8, 3).status()));
  EXPECT_TRUE(Claim(lease, 8, 2).ok());
  Commit(lease, Chunks(10));
  EXPECT_EQ(ResidentChunks("c"), 10u);
}

TEST_F(LeaseTableTest, RoomIsMadeFromTheIdleNeverFromTheLeased) {
  Fill("old", 4);
  Fill("young", 4);
  const LeaseId held = Open("old");  // the oldest, but leased
  const LeaseId lease = Open("new");
  ASSERT_TRUE(Claim(lease, 0, 5).ok());
  EXPECT_EQ(evicted_, 3u);
  EXPECT_EQ(ResidentChunks("old"), 4u);
  EXPECT_EQ(ResidentChunks("young"), 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(Claim(lease, 5, 2).status()));
  EXPECT_EQ(ResidentChunks("young"), 1u) << "nothing goes for a claim that fails anyway";
  table_.Abort(held);
}

TEST_F(LeaseTableTest, ClaimingAResidentChunkTakesItAndItsTail) {
  Fill("c", 4);
  const LeaseId lease = Open("c");
  const auto before = table_.chunks().Resident(lease);
  const auto claimed = Claim(lease, 2, 1);
  ASSERT_TRUE(claimed.ok());
  EXPECT_EQ((*claimed)[0].slot, before[2].where.slot);
  EXPECT_EQ(table_.chunks().Resident(lease).size(), 2u);
  table_.Abort(lease);
  EXPECT_EQ(ResidentChunks("c"), 2u) << "its old content may be half overwritten";
}

TEST_F(LeaseTableTest, AFaultForgetsTheChunkAndAllAfterIt) {
  Fill("c", 4);
  const LeaseId lease = Open("c");
  ASSERT_TRUE(table_.chunks().Fault(lease, 1).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(table_.chunks().Fault(lease, 1)));
  EXPECT_EQ(table_.chunks().Resident(lease).size(), 1u);
  ASSERT_TRUE(Claim(lease, 1, 1).ok());
  Commit(lease, Chunks(2));
  EXPECT_EQ(ResidentChunks("c"), 2u);
  EXPECT_EQ(FreeChunks(), 8u);
}

TEST_F(LeaseTableTest, CommitsThatCannotBeAreRefused) {
  Fill("c", 2, 3);
  const LeaseId lease = Open("c");
  const auto refused = [&](std::vector<ChunkIdentity> chunks) {
    return absl::IsInvalidArgument(table_.BeginCommit(lease, std::move(chunks), AnyStamp).status());
  };
  EXPECT_TRUE(refused(Chunks(4))) << "chunk 3 was not claimed";
  EXPECT_TRUE(refused(Chunks(2, 3, 'x'))) << "full chunks changed without a claim";
  std::vector<ChunkIdentity> gap = Chunks(3);
  gap[1].tokens = 15;
  EXPECT_TRUE(refused(gap));
  gap[1] = {"short", 16, 100};
  EXPECT_TRUE(refused(gap));
  EXPECT_TRUE(absl::IsInvalidArgument(Claim(lease, 5, 1).status())) << "a gap";
  EXPECT_TRUE(absl::IsInvalidArgument(Claim(lease, 3, 0).status()));
  Commit(lease, Chunks(3));
  EXPECT_EQ(ResidentChunks("c"), 3u) << "the partial chunk may be extended in place";
}

TEST_F(LeaseTableTest, SlotsOfAForeignEpochAreNotKept) {
  const LeaseId lease = Open("c");
  const auto claimed = Claim(lease, 0, 3);
  ASSERT_TRUE(claimed.ok());
  const KvSlot foreign = (*claimed)[1].slot;
  const auto dropped = table_.BeginCommit(lease, Chunks(3), [&](KvSlot slot, uint64_t epoch) {
    EXPECT_EQ(epoch, epoch_);
    return slot != foreign;
  });
  ASSERT_TRUE(dropped.ok());
  EXPECT_EQ(*dropped, 2u);
  table_.FinishCommit(lease, true);
  EXPECT_EQ(ResidentChunks("c"), 1u);
}

TEST_F(LeaseTableTest, AFailedCommitKeepsWhatWasThere) {
  Fill("c", 2);
  const LeaseId lease = Open("c");
  ASSERT_TRUE(Claim(lease, 2, 2).ok());
  ASSERT_TRUE(table_.BeginCommit(lease, Chunks(4), AnyStamp).ok());
  table_.Break(lease);  // the stream broke meanwhile: the commit decides
  table_.FinishCommit(lease, false);
  EXPECT_EQ(ResidentChunks("c"), 2u);
  EXPECT_EQ(FreeChunks(), 8u);
}

TEST_F(LeaseTableTest, AnAttachInMidCommitCostsOnlyKv) {
  for (const char model : {'m', 'n'}) {
    Fill("c", 1);
    const LeaseId lease = Open("c");
    ASSERT_TRUE(Claim(lease, 1, 2).ok());
    ASSERT_TRUE(table_.BeginCommit(lease, Chunks(3), AnyStamp).ok());
    epoch_ = table_.Attach(kWorker, LeaseGeometry(model))->epoch;
    EXPECT_EQ(AuditLeases(table_.state()), "");
    table_.FinishCommit(lease, true);
    EXPECT_EQ(ResidentChunks("c"), 0u) << "what a stale lease wrote is not kept";
    EXPECT_TRUE(AllFree());
  }
}

TEST_F(LeaseTableTest, StatelessLeasesLeaveNothing) {
  const LeaseId a = Open("");
  const LeaseId b = Open("");
  ASSERT_TRUE(Claim(a, 0, 2).ok());
  ASSERT_TRUE(Claim(b, 0, 3).ok());
  Commit(a, Chunks(2));
  table_.Abort(b);
  EXPECT_TRUE(AllFree());
}

TEST_F(LeaseTableTest, AContextBeingDeletedIsLeftAlone) {
  Fill("c", 3);
  const LeaseId lease = Open("c");
  EXPECT_TRUE(absl::IsAborted(table_.LockContext("c")));
  table_.Abort(lease);
  ASSERT_TRUE(table_.LockContext("c").ok());
  EXPECT_TRUE(absl::IsAborted(table_.Open({.epoch = epoch_, .context_id = "c"}).status()));
  const LeaseId other = Open("d");
  EXPECT_TRUE(absl::IsResourceExhausted(Claim(other, 0, 8).status()));
  table_.UnlockContext("c", true);
  EXPECT_TRUE(Claim(other, 0, 10).ok());
}

TEST_F(LeaseTableTest, GeometriesThatCannotBeAreRefused) {
  const auto refused = [&](auto change) {
    Geometry g = LeaseGeometry();
    change(g);
    return absl::IsInvalidArgument(table_.Attach(kWorker, g).status());
  };
  EXPECT_TRUE(refused([](Geometry& g) { g.model_id = "short"; }));
  EXPECT_TRUE(refused([](Geometry& g) { g.layers = 0; }));
  EXPECT_TRUE(refused([](Geometry& g) { g.block_bytes += 64; }));
  EXPECT_TRUE(refused([](Geometry& g) { g.head_dim = 20; }));
  EXPECT_TRUE(refused([](Geometry& g) { g.kv_heads = 1 << 30; }));
  EXPECT_TRUE(refused([](Geometry& g) { g.layers = 1000; }));
}

TEST_F(LeaseTableTest, AClaimMayUseTheRoomOfWhatItReplaces) {
  Fill("c", 9);
  for (uint32_t chunk = 0; chunk < 9; ++chunk) {
    const auto work = table_.idle().BeginDemotion("c", chunk, KvFormat::kQ4);
    ASSERT_TRUE(work.has_value());
    EXPECT_TRUE(table_.idle().FinishDemotion(*work, KvFormat::kQ4));
  }
  const LeaseId lease = Open("c");
  EXPECT_EQ(table_.chunks().Resident(lease).size(), 9u);
  EXPECT_TRUE(absl::IsResourceExhausted(Claim(lease, 9, 9).status()));
  EXPECT_EQ(table_.chunks().Resident(lease).size(), 9u)
      << "a refused claim of new chunks changes nothing";
  ASSERT_TRUE(Claim(lease, 0, 9).ok());
  Commit(lease, Chunks(9, 0, 'j'));
  EXPECT_EQ(ResidentChunks("c"), 9u);
}

}  // namespace
}  // namespace withy::context_store
