// Equal chunks of several contexts are in the arena once.
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "context_store/lease/lease_table_testing.h"

namespace withy::context_store {
namespace {

using Identities = LeaseChunks::Identities;

// Identities of chunks first..first + count - 1 of a text.
Identities Ids(char text, uint32_t count, uint32_t first = 0) {
  Identities ids;
  for (uint32_t i = first; i < first + count; ++i) {
    ids.push_back(std::string(31, text) + static_cast<char>('0' + i));
  }
  return ids;
}

class SharingTest : public LeaseTableTest {
 protected:
  LeaseId OpenOf(std::string_view app, std::string_view context) {
    return table_.Open({.epoch = epoch_, .context_id = context, .app_id = app})->id;
  }
  // Commits these chunks; those from `first` on are claimed.
  void CommitIds(LeaseId lease, uint32_t first, const Identities& ids, uint32_t tail = 0) {
    const auto count = static_cast<uint32_t>(ids.size()) - first + (tail > 0 ? 1 : 0);
    if (count > 0) {
      ASSERT_TRUE(Claim(lease, first, count).ok());
    }
    std::vector<ChunkIdentity> chunks;
    for (const std::string& id : ids) chunks.push_back({id, kChunkTokens, 100});
    if (tail > 0) chunks.push_back({std::string(32, 't'), tail, 100});
    Commit(lease, std::move(chunks));
  }
  // A call that computes all of these chunks.
  void Compute(std::string_view app, std::string_view context, const Identities& ids) {
    CommitIds(OpenOf(app, context), 0, ids);
  }
  // A call that takes over what it can of these chunks and computes the rest. Returns how many it
  // took over.
  uint32_t TakeOver(std::string_view app, std::string_view context, const Identities& ids) {
    const LeaseId lease = OpenOf(app, context);
    const auto shared = table_.chunks().Share(lease, 0, {ids});
    EXPECT_TRUE(shared.ok()) << shared.status();
    CommitIds(lease, static_cast<uint32_t>(shared->size()), ids);
    return static_cast<uint32_t>(shared->size());
  }
  std::vector<KvSlot> Slots(std::string_view context) {
    std::vector<KvSlot> slots;
    for (const ContextChunk& chunk : table_.kv().ChunksOf(context)) {
      slots.push_back(chunk.slot.value_or(KvSlot{}));
    }
    return slots;
  }
  void Erase(std::string_view context) {
    ASSERT_TRUE(table_.LockContext(context).ok());
    table_.UnlockContext(context, /*erase=*/true);
  }
};

TEST_F(SharingTest, ContextsOfAnAppHaveTheirCommonChunksOnce) {
  Compute("p", "a", Ids('s', 3));
  const auto slots = Slots("a");
  EXPECT_EQ(TakeOver("p", "b", Ids('s', 3)), 3u);
  EXPECT_EQ(TakeOver("p", "c", Ids('s', 3)), 3u);
  EXPECT_EQ(Slots("b"), slots);
  EXPECT_EQ(Slots("c"), slots);
  EXPECT_EQ(FreeChunks(), 7u);
  EXPECT_EQ(table_.kv().pool.counts().shared_slots, 3u);
  EXPECT_EQ(table_.kv().pool.counts().saved, 6 * kSlotBytes);
  EXPECT_TRUE(table_.kv().ChunksOf("b")[0].shared);
  Erase("a");
  Erase("c");
  EXPECT_EQ(Slots("b"), slots) << "the last context keeps them";
  EXPECT_FALSE(table_.kv().ChunksOf("b")[0].shared);
  EXPECT_EQ(FreeChunks(), 7u);
  Erase("b");
  EXPECT_TRUE(AllFree());
}

TEST_F(SharingTest, OnlyTheCommonBeginningIsTakenOver) {
  Compute("p", "a", Ids('s', 4));
  Identities fork = Ids('s', 2);
  for (const std::string& id : Ids('f', 2, 2)) fork.push_back(id);
  EXPECT_EQ(TakeOver("p", "b", fork), 2u);
  EXPECT_EQ(FreeChunks(), 10u - 4 - 2);
  // Behind what a context has.
  const LeaseId lease = OpenOf("p", "a");
  EXPECT_EQ(table_.chunks().Share(lease, 2, {Ids('f', 2, 2)})->size(), 2u)
      << "the context goes on as the fork does";
  EXPECT_EQ(table_.chunks().Resident(lease)[3].identity.identity, Ids('f', 4)[3]);
  table_.Abort(lease);
}

TEST_F(SharingTest, AnotherAppSharesNothingButPublicPrompts) {
  Compute("p", "a", Ids('s', 4));
  EXPECT_EQ(TakeOver("q", "b", Ids('s', 2)), 0u);
  EXPECT_EQ(table_.kv().pool.counts().shared_slots, 0u) << "nor are equal commits of two apps one";
  EXPECT_EQ(TakeOver("", "no app", Ids('s', 1)), 0u);
  Erase("b");
  Erase("no app");
  const Identities prompt = Ids('s', 2);
  table_.SetPublicChunks({prompt.begin(), prompt.end()});
  EXPECT_EQ(TakeOver("q", "b", Ids('s', 4)), 2u) << "what follows the prompt is the app's own";
  EXPECT_EQ(TakeOver("q", "c", Ids('s', 4)), 4u);
  EXPECT_EQ(FreeChunks(), 10u - 4 - 2);
}

TEST_F(SharingTest, TheWayWithTheMostChunksIsTaken) {
  Compute("p", "a", Ids('f', 2));
  Compute("p", "b", Ids('l', 3));
  const LeaseId lease = OpenOf("p", "c");
  EXPECT_EQ(table_.chunks().Share(lease, 0, {Ids('f', 3), Ids('l', 3)})->size(), 3u);
  EXPECT_EQ(table_.chunks().Resident(lease)[0].identity.identity, Ids('l', 1)[0]);
  table_.Abort(lease);
}

TEST_F(SharingTest, ACallThatWouldWriteGetsASlotOfItsOwn) {
  Compute("p", "a", Ids('s', 3));
  TakeOver("p", "b", Ids('s', 3));
  const auto slots = Slots("a");
  const LeaseId lease = OpenOf("p", "b");
  const auto claimed = Claim(lease, 1, 2);
  ASSERT_TRUE(claimed.ok());
  for (const ChunkSlot& chunk : *claimed) EXPECT_NE(chunk.slot, slots[chunk.chunk]);
  EXPECT_EQ(Slots("a"), slots);
  Commit(lease, {{Ids('s', 1)[0], kChunkTokens, 100}, {Ids('n', 2)[1], kChunkTokens, 100}});
  EXPECT_EQ(Slots("b")[0], slots[0]);
  EXPECT_EQ(Slots("a"), slots);
  EXPECT_EQ(FreeChunks(), 6u);
}

TEST_F(SharingTest, EqualChunksThatWereComputedTwiceBecomeOne) {
  const LeaseId a = OpenOf("p", "a"), b = OpenOf("p", "b");
  ASSERT_TRUE(table_.chunks().Share(b, 0, {Ids('s', 3)})->empty()) << "nothing is committed yet";
  ASSERT_TRUE(Claim(a, 0, 3).ok());
  ASSERT_TRUE(Claim(b, 0, 3).ok());
  CommitIds(a, 3, Ids('s', 3));
  EXPECT_EQ(FreeChunks(), 4u);
  CommitIds(b, 3, Ids('s', 3));
  EXPECT_EQ(Slots("b"), Slots("a"));
  EXPECT_EQ(FreeChunks(), 7u);
}

TEST_F(SharingTest, AnUnfinishedChunkIsNobodyElses) {
  const LeaseId a = OpenOf("p", "a");
  CommitIds(a, 0, Ids('s', 1), 5);
  const LeaseId b = OpenOf("p", "b");
  EXPECT_EQ(table_.chunks().Share(b, 0, {{Ids('s', 1)[0], std::string(32, 't')}})->size(), 1u);
  table_.Abort(b);
}

TEST_F(SharingTest, SharedChunksLeaveOnceAfterTheirLastUser) {
  Compute("p", "a", Ids('s', 4));
  Compute("p", "other", Ids('o', 4));
  TakeOver("p", "b", Ids('s', 4));  // used last
  // Six chunks are wanted and two are free: the other context leaves, though `a` is older.
  const LeaseId lease = OpenOf("p", "new");
  ASSERT_TRUE(Claim(lease, 0, 6).ok());
  EXPECT_EQ(evicted_, 4u);
  EXPECT_EQ(ResidentChunks("a"), 4u);
  EXPECT_EQ(ResidentChunks("other"), 0u);
  // Then the shared ones, for both contexts.
  ASSERT_TRUE(Claim(lease, 6, 2).ok());
  EXPECT_EQ(evicted_, 6u);
  EXPECT_EQ(ResidentChunks("a"), 2u);
  EXPECT_EQ(ResidentChunks("b"), 2u);
  table_.Abort(lease);
}

TEST_F(SharingTest, WhatACallUsesDoesNotLeaveForAnother) {
  Compute("p", "a", Ids('s', 4));
  TakeOver("p", "b", Ids('s', 4));
  const LeaseId user = OpenOf("p", "b");
  const LeaseId lease = OpenOf("p", "new");
  EXPECT_FALSE(Claim(lease, 0, 7).ok());
  EXPECT_TRUE(Claim(lease, 0, 6).ok());
  EXPECT_EQ(table_.chunks().Resident(user).size(), 4u);
  table_.Abort(user);
  table_.Abort(lease);
}

TEST_F(SharingTest, AFormatChangesForAllContextsOrNone) {
  Compute("p", "a", Ids('s', 4));
  TakeOver("p", "b", Ids('s', 4));
  const LeaseId user = OpenOf("p", "b");
  auto work = table_.idle().BeginDemotion("a", 1, KvFormat::kQ4);
  ASSERT_TRUE(work.has_value());
  EXPECT_FALSE(table_.idle().FinishDemotion(*work, KvFormat::kQ4)) << "a call uses it";
  table_.Abort(user);
  work = table_.idle().BeginDemotion("a", 1, KvFormat::kQ4);
  ASSERT_TRUE(work.has_value());
  EXPECT_TRUE(table_.idle().FinishDemotion(*work, KvFormat::kQ4));
  EXPECT_EQ(Slots("b"), Slots("a"));
  EXPECT_EQ(Slots("b")[1].format, KvFormat::kQ4);
  EXPECT_EQ(table_.kv().pool.counts().resident,
            3 * kSlotBytes + LeaseGeometry().ChunkBytes(KvFormat::kQ4));
}

// What another context has in fewer bits is computed, not taken over; then that one is exact, too.
TEST_F(SharingTest, ANewContextTakesNothingOfFewerBitsAndRestoresIt) {
  Compute("p", "a", Ids('s', 4));
  const auto work = table_.idle().BeginDemotion("a", 1, KvFormat::kQ4);
  ASSERT_TRUE(table_.idle().FinishDemotion(*work, KvFormat::kQ4));
  const LeaseId lease = OpenOf("p", "b");
  EXPECT_EQ(table_.chunks().Share(lease, 0, {Ids('s', 4)})->size(), 1u)
      << "the first one has 8 bits";
  ASSERT_TRUE(Claim(lease, 1, 3).ok());
  CommitIds(lease, 4, Ids('s', 4));
  EXPECT_EQ(Slots("a"), Slots("b"));
  EXPECT_EQ(Slots("a")[1].format, KvFormat::kQ8);
  EXPECT_EQ(table_.kv().pool.counts().resident, 4 * kSlotBytes);
}

TEST_F(SharingTest, TheLatestChunksOfEachContextKeepTheirFormat) {
  Compute("p", "a", Ids('s', 4));
  TakeOver("p", "b", Ids('s', 2));
  using Kept = std::vector<std::vector<bool>>;
  EXPECT_EQ(table_.idle().KeptFormats({"a"}, 1), (Kept{{false, true, false, false}}));
  EXPECT_EQ(table_.idle().KeptFormats({"a", "b"}, 0),
            (Kept{{true, true, false, false}, {false, false}}))
      << "what both have is the later one's";
  const LeaseId user = OpenOf("p", "b");
  EXPECT_EQ(table_.idle().KeptFormats({"a"}, 1), (Kept{{true, true, false, false}}));
  table_.Abort(user);
}

TEST_F(SharingTest, AFaultyChunkIsGivenToNobodyAnyMore) {
  Compute("p", "a", Ids('s', 4));
  TakeOver("p", "b", Ids('s', 4));
  const LeaseId lease = OpenOf("p", "b");
  ASSERT_TRUE(table_.chunks().Fault(lease, 2).ok());
  EXPECT_EQ(ResidentChunks("a"), 2u);
  CommitIds(lease, 2, Ids('s', 4));
  EXPECT_EQ(ResidentChunks("b"), 4u);
  EXPECT_EQ(table_.kv().pool.counts().shared_slots, 2u);
}

// What another context has in the arena is not read from disk, and not computed.
TEST_F(SharingTest, ALoadTakesWhatIsThere) {
  Compute("p", "a", Ids('s', 4));
  for (uint32_t i = 0; i < 4; ++i) {
    const auto work = table_.idle().BeginWrite("a", i);
    ASSERT_TRUE(table_.idle().FinishWrite(*work, 10 + i));
  }
  const LeaseId big = OpenOf("p", "big");
  ASSERT_TRUE(Claim(big, 0, 10).ok());
  table_.Abort(big);
  EXPECT_EQ(ResidentChunks("a"), 0u);
  Compute("p", "b", Ids('s', 2));
  const LeaseId lease = OpenOf("p", "a");
  const auto loads = table_.chunks().BeginLoad(lease, {}, &evicted_);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].chunk, 2u);
  const auto resident = table_.chunks().Resident(lease);
  ASSERT_EQ(resident.size(), 4u);
  EXPECT_EQ(resident[1].state, ResidentChunk::State::kResident);
  EXPECT_EQ(resident[1].where.slot, Slots("b")[1]);
  table_.chunks().FinishLoad("a", loads, {true, true});
  table_.Abort(lease);
}

TEST_F(SharingTest, AskingIsForCallsOnContextsThatHaveNotClaimed) {
  Compute("p", "a", Ids('s', 2));
  const LeaseId stateless = OpenOf("", "");
  EXPECT_TRUE(absl::IsInvalidArgument(table_.chunks().Share(stateless, 0, {Ids('s', 2)}).status()));
  const LeaseId rebuild =
      table_.Open({.epoch = epoch_, .context_id = "r", .rebuild = true, .app_id = "p"})->id;
  EXPECT_TRUE(absl::IsInvalidArgument(table_.chunks().Share(rebuild, 0, {Ids('s', 2)}).status()));
  const LeaseId lease = OpenOf("p", "b");
  EXPECT_TRUE(absl::IsInvalidArgument(table_.chunks().Share(lease, 0, {{"short"}}).status()));
  EXPECT_TRUE(table_.chunks().Share(lease, 1, {Ids('s', 1, 1)})->empty()) << "a gap";
  ASSERT_TRUE(Claim(lease, 0, 1).ok());
  EXPECT_TRUE(table_.chunks().Share(lease, 0, {Ids('s', 2)})->empty());
  for (const LeaseId one : {stateless, rebuild, lease}) table_.Abort(one);
}

}  // namespace
}  // namespace withy::context_store
