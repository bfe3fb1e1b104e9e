#include "context_store/lease/idle_kv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "context_store/arena/slot_layout.h"
#include "context_store/lease/lease_table_testing.h"

namespace withy::context_store {
namespace {

using ::testing::ElementsAre;

using IdleKvTest = LeaseTableTest;

TEST_F(IdleKvTest, UpgradesAreForTheContextUsedLastAndNeverEvict) {
  const auto fill = [&](std::string_view context, uint32_t level) {
    const LeaseId lease = Open(context);
    ASSERT_TRUE(Claim(lease, 0, 3).ok());
    std::vector<ChunkIdentity> chunks = Chunks(3);
    chunks[1].model_level_percent = level;
    Commit(lease, chunks);
  };
  fill("full", 100);
  EXPECT_FALSE(table_.idle().NextUpgrade().has_value());
  fill("old", 40);
  fill("new", 60);
  ASSERT_TRUE(table_.idle().NextUpgrade().has_value());
  EXPECT_EQ(table_.idle().NextUpgrade()->context_id, "new");
  EXPECT_EQ(table_.idle().NextUpgrade()->level_percent, 60u);
  const LeaseId busy = Open("new");
  EXPECT_EQ(table_.idle().NextUpgrade()->context_id, "old");
  table_.Abort(busy);
  // One chunk is free; other contexts keep their blocks.
  const LeaseId rebuild = table_.Open({.epoch = epoch_, .context_id = "new", .rebuild = true})->id;
  ASSERT_TRUE(Claim(rebuild, 0, 1).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(Claim(rebuild, 1, 2).status()));
  EXPECT_EQ(evicted_, 0u);
  table_.Abort(rebuild);
  EXPECT_EQ(table_.idle().NextUpgrade()->context_id, "old") << "there was no room for it";
  table_.Abort(Open("new"));
  EXPECT_EQ(table_.idle().NextUpgrade()->context_id, "new") << "it was used again";
}

// A chunk that is stored in fewer bits takes less space, and a call reads it as it is.
TEST_F(IdleKvTest, ADemotedChunkTakesLessSpace) {
  Fill("c", 2, 3);
  const auto work = table_.idle().BeginDemotion("c", 0, KvFormat::kQ4);
  ASSERT_TRUE(work.has_value());
  EXPECT_EQ(table_.idle().FinishDemotion(*work, KvFormat::kQ4)->format, KvFormat::kQ4);
  const uint64_t small = LeaseGeometry().ChunkBytes(KvFormat::kQ4);
  EXPECT_EQ(table_.kv().KvOf("c").resident_bytes, 2 * kSlotBytes + small);
  EXPECT_FALSE(table_.idle().BeginDemotion("c", 2, KvFormat::kQ4).has_value())
      << "it is unfinished";
  EXPECT_FALSE(table_.idle().BeginDemotion("c", 3, KvFormat::kQ4).has_value()) << "there is none";
  EXPECT_FALSE(table_.idle().BeginDemotion("c", 0, KvFormat::kQ4).has_value()) << "it has 4 bits";
  const LeaseId lease = Open("c");
  EXPECT_EQ(table_.chunks().Resident(lease)[0].where.slot.format, KvFormat::kQ4);
  EXPECT_FALSE(table_.idle().BeginDemotion("c", 1, KvFormat::kQ4).has_value()) << "it is leased";
  // Writing it takes a slot of the working size.
  const auto claimed = Claim(lease, 0, 1);
  ASSERT_TRUE(claimed.ok());
  EXPECT_EQ((*claimed)[0].slot.format, KvFormat::kQ8);
  EXPECT_EQ(table_.kv().pool.counts().free, 7 * kSlotBytes) << "three chunks of 8 bits";
  table_.Abort(lease);
}

class CompressedAheadTest : public IdleKvTest {
 protected:
  LeaseTable ahead_{
      {.arena_bytes = 10 * kSlotBytes, .open = 100, .waiting = 3, .compresses_ahead = true}, 1000};
};

// Where contexts are compressed when their calls end, the disk gets what they have become.
TEST_F(CompressedAheadTest, ADemotedChunkKeepsItsCopyUntilANewOneIsWritten) {
  const uint64_t epoch = ahead_.Attach(kWorker, LeaseGeometry())->epoch;
  const LeaseId lease = ahead_.Open({.epoch = epoch, .context_id = "c"})->id;
  ASSERT_TRUE(ahead_.Claim(lease, 0, 2, &evicted_).ok());
  ASSERT_TRUE(ahead_.BeginCommit(lease, Chunks(2), AnyStamp).ok());
  ahead_.FinishCommit(lease, true);
  IdleKv& idle = ahead_.idle();
  ASSERT_TRUE(idle.FinishWrite(*idle.BeginWrite("c", 0), 100));
  EXPECT_FALSE(idle.BeginWrite("c", 0).has_value());
  ASSERT_TRUE(idle.FinishDemotion(*idle.BeginDemotion("c", 0, KvFormat::kQ4), KvFormat::kQ4));
  const auto copy = [&] {
    const ContextChunk chunk = ahead_.kv().ChunksOf("c")[0];
    return std::pair(chunk.stored, chunk.stored_format);
  };
  EXPECT_EQ(copy(), std::pair(StoredCopy{100}, KvFormat::kQ8));
  // A second write that is not worth it, or fails.
  const auto refused = idle.BeginWrite("c", 0);
  ASSERT_TRUE(refused.has_value());
  EXPECT_TRUE(refused->rewrite);
  EXPECT_FALSE(idle.FinishWrite(*refused, 0));
  EXPECT_EQ(copy(), std::pair(StoredCopy{100}, KvFormat::kQ8));
  EXPECT_TRUE(idle.copies().TakeGivenUp().empty());
  ASSERT_TRUE(idle.FinishWrite(*idle.BeginWrite("c", 0), 200));
  EXPECT_EQ(copy(), std::pair(StoredCopy{200}, KvFormat::kQ4));
  EXPECT_THAT(idle.copies().TakeGivenUp(), ElementsAre(100));
  EXPECT_FALSE(idle.BeginWrite("c", 0).has_value());
  EXPECT_EQ(AuditLeases(ahead_.state()), "");
}

// Whoever sees a copy may kill the store, and finds the copy afterwards.
TEST_F(IdleKvTest, ACopyIsToldWhenTheIndexIsWritten) {
  Fill("c", 2);
  IdleKv& idle = table_.idle();
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    ASSERT_TRUE(idle.FinishWrite(*idle.BeginWrite("c", chunk), 100 + chunk));
    idle.copies().NotIndexed(100 + chunk);
  }
  EXPECT_EQ(table_.kv().KvOf("c").stored_bytes, 0u);
  idle.copies().NowIndexed(100);
  EXPECT_EQ(table_.kv().KvOf("c").stored_bytes, kSlotBytes);
  const std::vector<ContextChunk> chunks = table_.kv().ChunksOf("c");
  EXPECT_TRUE(chunks[0].indexed);
  EXPECT_FALSE(chunks[1].indexed);
}

// A copy of more bits is not given up for one of fewer, and the next call gets it.
TEST_F(IdleKvTest, AnExactCopyIsKeptAndReadInsteadOfASmallerChunk) {
  Fill("c", 3);
  IdleKv& idle = table_.idle();
  ASSERT_TRUE(idle.FinishWrite(*idle.BeginWrite("c", 1), 100));
  ASSERT_TRUE(idle.FinishDemotion(*idle.BeginDemotion("c", 1, KvFormat::kQ4), KvFormat::kQ4));
  EXPECT_FALSE(idle.BeginWrite("c", 1).has_value());
  const LeaseId lease = Open("c");
  const auto loads = table_.chunks().BeginLoad(lease, {}, &evicted_);
  ASSERT_EQ(loads.size(), 1u);
  EXPECT_EQ(loads[0].stored, 100u);
  EXPECT_EQ(loads[0].slot.format, KvFormat::kQ8);
  table_.chunks().FinishLoad("c", loads, {true});
  EXPECT_EQ(table_.kv().KvOf("c").compressed_tokens, 0u);
  table_.Abort(lease);
}

// A chunk whose copy has fewer bits cannot be read back as it is: another one leaves first.
TEST_F(IdleKvTest, ACopyOfFewerBitsIsNoCopyForAnEviction) {
  Fill("old", 2);
  Fill("new", 2);
  IdleKv& idle = table_.idle();
  table_.adoption().Adopt("adopted", {{"adopted", 0, {30 * 64 * 64, KvFormat::kQ8}, Chunks(1)[0]}},
                          {{Chunks(1)[0], std::nullopt, 7, KvFormat::kQ4}});
  ASSERT_TRUE(idle.FinishWrite(*idle.BeginWrite("new", 1), 100));
  EXPECT_EQ(idle.ExactRoom(), table_.kv().pool.counts().free + kSlotBytes);
}

TEST_F(IdleKvTest, ADemotionGivesWayToACall) {
  Fill("c", 2);
  const auto work = table_.idle().BeginDemotion("c", 1, KvFormat::kQ4);
  ASSERT_TRUE(work.has_value());
  const LeaseId lease = Open("c");
  EXPECT_FALSE(table_.idle().FinishDemotion(*work, KvFormat::kQ4));
  EXPECT_EQ(table_.chunks().Resident(lease)[1].where.slot, work->from);
  // The call gives the slot back while the store still reads it.
  table_.Abort(lease);
  const auto second = table_.idle().BeginDemotion("c", 1, KvFormat::kQ4);
  const LeaseId next = Open("c");
  Commit(next, Chunks(1));
  EXPECT_EQ(QuarantinedChunks(), 1u);
  EXPECT_FALSE(table_.idle().FinishDemotion(*second, KvFormat::kQ4));
  EXPECT_EQ(FreeChunks(), 9u);
  // The arena may get another geometry meanwhile.
  const auto third = table_.idle().BeginDemotion("c", 0, KvFormat::kQ4);
  ASSERT_TRUE(table_.Attach(kOther, LeaseGeometry('n')).ok());
  EXPECT_FALSE(table_.idle().FinishDemotion(*third, KvFormat::kQ4));
  EXPECT_TRUE(AllFree());
}

// It takes its own place, so a full arena is no obstacle; nothing else has to leave.
TEST_F(IdleKvTest, ADemotionNeedsNoRoom) {
  Fill("old", 3);
  Fill("c", 7);
  ASSERT_EQ(FreeChunks(), 0u);
  const uint64_t small = LeaseGeometry().ChunkBytes(KvFormat::kQ4);
  for (uint32_t chunk = 0; chunk < 7; ++chunk) {
    const auto work = table_.idle().BeginDemotion("c", chunk, KvFormat::kQ4);
    ASSERT_TRUE(work.has_value());
    ASSERT_TRUE(table_.idle().FinishDemotion(*work, KvFormat::kQ4));
  }
  EXPECT_EQ(ResidentChunks("old"), 3u);
  EXPECT_EQ(table_.kv().pool.counts().free, 7 * (kSlotBytes - small));
  // A chunk that is being written to disk keeps its place.
  const auto write = table_.idle().BeginWrite("old", 0);
  const auto work = table_.idle().BeginDemotion("old", 0, KvFormat::kQ4);
  EXPECT_FALSE(table_.idle().FinishDemotion(*work, KvFormat::kQ4));
  EXPECT_TRUE(table_.idle().FinishWrite(*write, 9));
}

TEST_F(IdleKvTest, GapsAreMovedTogetherAroundWhatCallsUse) {
  Fill("a", 4);
  Fill("b", 2);
  Fill("c", 4);
  for (const char* context : {"a", "c"}) {
    for (const uint32_t chunk : {0u, 2u, 3u}) {
      const auto work = table_.idle().BeginDemotion(context, chunk, KvFormat::kQ4);
      ASSERT_TRUE(table_.idle().FinishDemotion(*work, KvFormat::kQ4));
    }
  }
  ASSERT_EQ(PlacesInGaps(table_.kv().pool, kSlotBytes), 0u);
  std::map<SlotAt, SlotAt> moved;
  const auto move = [&](SlotAt from, SlotAt to, uint64_t) { moved[from] = to; };
  const LeaseId user = Open("a");
  const std::vector<ContextChunk> before = table_.kv().ChunksOf("a");
  EXPECT_EQ(table_.idle().Compact(2, 0, move), 0u) << "nothing may be moved";
  EXPECT_GT(table_.idle().Compact(2, UINT64_MAX, move), 0u);
  EXPECT_EQ(PlacesInGaps(table_.kv().pool, kSlotBytes), 1u);
  EXPECT_FALSE(moved.empty());
  for (size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(table_.kv().ChunksOf("a")[i].slot, before[i].slot) << "a call uses it";
  }
  table_.Abort(user);
  table_.idle().Compact(2, UINT64_MAX, move);
  EXPECT_EQ(PlacesInGaps(table_.kv().pool, kSlotBytes), 2u);
}

TEST_F(IdleKvTest, LostCopiesAreForgotten) {
  table_.adoption().Adopt("c", {},
                          {{{std::string(32, 'i'), 16, 100}, std::nullopt, 7},
                           {{std::string(32, 'j'), 16, 100}, std::nullopt, 8},
                           {{std::string(32, 'k'), 16, 100}, std::nullopt, 9}});
  table_.adoption().Adopt("d", {}, {{{std::string(32, 'i'), 16, 100}, std::nullopt, 17}});
  Fill("e", 1);
  const auto work = table_.idle().BeginWrite("e", 0);
  ASSERT_TRUE(table_.idle().FinishWrite(*work, 27));
  table_.idle().ForgetCopies({8, 17, 27});
  EXPECT_EQ(table_.kv().KvOf("c").tokens, 16u) << "the third chunk is of no use without the second";
  EXPECT_THAT(table_.idle().copies().TakeGivenUp(), ElementsAre(9));
  EXPECT_EQ(table_.kv().KvOf("d").tokens, 0u);
  EXPECT_EQ(table_.kv().KvOf("e").resident_bytes, kSlotBytes) << "it is in the arena, too";
  EXPECT_EQ(table_.kv().KvOf("e").stored_bytes, 0u);
}

// Whoever writes a chunk to disk may drop it from the arena and read it back.

TEST_F(IdleKvTest, WhatIsSwappedOutIsWhatWouldLeave) {
  Fill("old", 3);
  Fill("young", 4);
  EXPECT_TRUE(table_.idle().BeginSwapOut(3 * kSlotBytes).empty()) << "that much is free";
  const auto work = table_.idle().BeginSwapOut(5 * kSlotBytes);
  ASSERT_EQ(work.size(), 2u);
  for (const ChunkWork& one : work) {
    EXPECT_EQ(one.context_id, "old");
    EXPECT_TRUE(table_.idle().FinishWrite(one, one.chunk + 100));
  }
  const LeaseId lease = Open("new");
  ASSERT_TRUE(Claim(lease, 0, 5).ok());
  EXPECT_EQ(table_.kv().KvOf("old").tokens, 48u) << "nothing is to be computed again";
  EXPECT_EQ(ResidentChunks("old"), 1u);
  EXPECT_EQ(ResidentChunks("young"), 4u);
}

// Only what is on disk leaves for memory pressure, and calls get the room back.
TEST_F(IdleKvTest, WithheldRoomIsLentNotTaken) {
  Fill("c", 4);
  for (const uint32_t chunk : {0, 1}) {
    const auto work = table_.idle().BeginWrite("c", chunk);
    ASSERT_TRUE(table_.idle().FinishWrite(*work, chunk + 100));
  }
  constexpr uint64_t kPage = 64;
  uint64_t withheld = 0;
  for (const SlotPool::Pages& pages : table_.idle().Withhold(10 * kSlotBytes, kPage, &evicted_)) {
    EXPECT_EQ(pages.offset % kPage, 0u);
    withheld += pages.bytes;
  }
  EXPECT_EQ(withheld, 8 * kSlotBytes);
  EXPECT_EQ(table_.kv().pool.counts().withheld, withheld);
  EXPECT_EQ(evicted_, 2u);
  EXPECT_EQ(ResidentChunks("c"), 2u) << "these have no copy";
  EXPECT_EQ(table_.kv().KvOf("c").tokens, 64u);
  const LeaseId lease = Open("d");
  ASSERT_TRUE(Claim(lease, 0, 7).ok());
  EXPECT_EQ(ResidentChunks("c"), 0u) << "idle contexts give first";
  table_.Abort(lease);
  table_.idle().GiveBack(withheld);
  EXPECT_EQ(table_.kv().pool.counts().withheld, 0u);
}

TEST_F(IdleKvTest, WhatIsKeptAndWhatIsStoredAreOneContext) {
  const auto kept = [](uint32_t chunk, uint32_t at, char identity) {
    return KeptChunk{"c",
                     chunk,
                     {static_cast<SlotAt>(at * kSlotBytes / 64), KvFormat::kQ8},
                     {std::string(32, identity), 16, 100}};
  };
  const auto stored = [](char identity, StoredCopy copy) {
    return ContextChunk{{std::string(32, identity), 16, 100}, std::nullopt, copy};
  };
  // Chunk 0 is in both, 1 has changed since it was written, 2 is on disk only, 3 overlaps 0, and
  // nobody has 4.
  EXPECT_EQ(table_.adoption().Adopt(
                "c", {kept(0, 2, 'a'), kept(1, 4, 'x'), kept(3, 2, 'd'), kept(5, 6, 'f')},
                {stored('a', 100), stored('b', 101), stored('c', 102)}),
            2u);
  EXPECT_THAT(table_.idle().copies().TakeGivenUp(), ElementsAre(101));
  const auto chunks = table_.kv().ChunksOf("c");
  ASSERT_EQ(chunks.size(), 3u);
  EXPECT_EQ(chunks[0].stored, 100u);
  EXPECT_EQ(chunks[1].identity.identity, std::string(32, 'x'));
  EXPECT_FALSE(chunks[2].slot.has_value());
  EXPECT_EQ(ResidentChunks("c"), 2u);
  EXPECT_EQ(FreeChunks(), 8u);
}

}  // namespace
}  // namespace withy::context_store
