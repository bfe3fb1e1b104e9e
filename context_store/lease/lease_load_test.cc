// LeaseTable: how chunks of a context come back into the arena.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "context_store/lease/lease_table_testing.h"

namespace withy::context_store {
namespace {

using ::testing::ElementsAre;

using LeaseLoadTest = LeaseTableTest;

TEST_F(LeaseLoadTest, WhatIsOnDiskComesBackIntoTheArena) {
  Fill("c", 4);
  for (uint32_t chunk = 0; chunk < 3; ++chunk) {
    const auto work = table_.idle().BeginWrite("c", chunk);
    ASSERT_TRUE(work.has_value());
    EXPECT_TRUE(table_.idle().FinishWrite(*work, chunk + 100));
    EXPECT_FALSE(table_.idle().BeginWrite("c", chunk).has_value()) << "it has a copy";
  }
  const LeaseId other = Open("d");
  ASSERT_TRUE(Claim(other, 0, 8).ok());
  EXPECT_EQ(table_.kv().KvOf("c").resident_bytes, 2 * kSlotBytes) << "those with copies left";
  EXPECT_EQ(table_.kv().KvOf("c").tokens, 4 * kChunkTokens) << "nothing is to be computed again";
  table_.Abort(other);

  using State = ResidentChunk::State;
  const LeaseId lease = Open("c");
  EXPECT_EQ(table_.chunks().Resident(lease).size(), 1u);
  const auto loads = table_.chunks().BeginLoad(lease, {}, &evicted_);
  ASSERT_EQ(loads.size(), 2u);
  EXPECT_EQ(loads[0].chunk, 1u);
  EXPECT_EQ(loads[1].stored, 102u);
  ASSERT_EQ(table_.chunks().Resident(lease).size(), 4u);
  EXPECT_EQ(table_.chunks().Resident(lease)[0].state, State::kResident);
  EXPECT_EQ(table_.chunks().Resident(lease)[2].state, State::kReading);
  EXPECT_EQ(table_.chunks().Resident(lease)[3].state, State::kResident);
  table_.chunks().FinishLoad("c", loads, {true, true});
  EXPECT_EQ(table_.chunks().Resident(lease)[2].state, State::kResident);
  EXPECT_TRUE(table_.idle().copies().TakeGivenUp().empty());
  // A commit that keeps a chunk keeps its copy; one that changes it gives the copy up.
  ASSERT_TRUE(Claim(lease, 2, 1).ok());
  EXPECT_THAT(table_.idle().copies().TakeGivenUp(), ElementsAre(102));
  Commit(lease, Chunks(3));
  EXPECT_EQ(table_.kv().KvOf("c").stored_bytes, 2 * kSlotBytes);
}

TEST_F(LeaseLoadTest, WhatCannotBeReadIsComputedAgain) {
  table_.adoption().Adopt("c", {},
                          {{{std::string(32, 'i'), 16, 100}, std::nullopt, 7},
                           {{std::string(32, 'j'), 16, 100}, std::nullopt, 8},
                           {{std::string(32, 'k'), 16, 100}, std::nullopt, 9}});
  EXPECT_EQ(table_.kv().KvOf("c").tokens, 48u);
  const LeaseId lease = Open("c");
  const auto loads = table_.chunks().BeginLoad(lease, {}, &evicted_);
  ASSERT_EQ(loads.size(), 3u);
  table_.chunks().FinishLoad("c", loads, {true, false, true});
  EXPECT_EQ(table_.chunks().Resident(lease).size(), 1u);
  EXPECT_THAT(table_.idle().copies().TakeGivenUp(), ElementsAre(8));
  EXPECT_EQ(FreeChunks(), 8u);
  // The worker learns of it after its next claim.
  ASSERT_TRUE(Claim(lease, 3, 1).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(Claim(lease, 5, 1).status()));
  ASSERT_TRUE(Claim(lease, 1, 3).ok());
  EXPECT_THAT(table_.idle().copies().TakeGivenUp(), ElementsAre(9)) << "the worker writes over it";
  Commit(lease, Chunks(4));
}

TEST_F(LeaseLoadTest, AHoleIsComputedAgain) {
  const auto stored = [](char name, StoredCopy copy) {
    return ContextChunk{
        .identity = {std::string(32, name), 16, 100}, .slot = std::nullopt, .stored = copy};
  };
  table_.adoption().Adopt("c", {}, {stored('i', 7), stored('j', 8), stored('k', 9)});
  LeaseId lease = Open("c");
  table_.chunks().FinishLoad("c", table_.chunks().BeginLoad(lease, {}, &evicted_),
                             {true, false, true});
  table_.Abort(lease);
  EXPECT_EQ(table_.kv().KvOf("c").tokens, 32u);

  using State = ResidentChunk::State;
  lease = Open("c");
  EXPECT_TRUE(table_.chunks().BeginLoad(lease, {.level_percent = 100}, &evicted_).empty());
  const auto resident = table_.chunks().Resident(lease);
  ASSERT_EQ(resident.size(), 3u);
  EXPECT_EQ(resident[0].state, State::kResident);
  EXPECT_EQ(resident[1].state, State::kToCompute);
  EXPECT_EQ(resident[2].state, State::kResident);
  ASSERT_TRUE(Claim(lease, 3, 1).ok()) << "no gap is left";
  std::vector<ChunkIdentity> chunks;
  for (const auto& chunk : resident) chunks.push_back(chunk.identity);
  Commit(lease, chunks);
  EXPECT_EQ(table_.kv().KvOf("c").resident_bytes, 3 * kSlotBytes);

  // At another level the hole ends what can be used.
  table_.adoption().Adopt("d", {}, {stored('i', 17), stored('j', 18), stored('k', 19)});
  lease = Open("d");
  table_.chunks().FinishLoad("d", table_.chunks().BeginLoad(lease, {}, &evicted_),
                             {true, false, true});
  table_.Abort(lease);
  lease = Open("d");
  EXPECT_TRUE(table_.chunks().BeginLoad(lease, {.level_percent = 50}, &evicted_).empty());
  EXPECT_EQ(table_.chunks().Resident(lease).size(), 1u);
  table_.Abort(lease);
}

TEST_F(LeaseLoadTest, ThePlanSaysWhichChunksAreRead) {
  std::vector<ContextChunk> chunks;
  for (StoredCopy copy = 1; copy <= 6; ++copy) {
    chunks.push_back({.identity = {std::string(32, static_cast<char>('a' + copy)), 16, 100},
                      .slot = std::nullopt,
                      .stored = copy});
  }
  table_.adoption().Adopt("c", {}, chunks);
  const double read_ms = 1.0;  // a chunk
  const LoadRules rules{
      .costs = {.recompute_chunk_ms = 2 * read_ms,
                .read_mib_ms = read_ms * (1 << 20) / static_cast<double>(kSlotBytes)},
      .policy = policy::LoadPolicy::kPrefix,
      .level_percent = 100};
  const LeaseId lease = Open("c");
  const auto loads = table_.chunks().BeginLoad(lease, rules, &evicted_);
  ASSERT_EQ(loads.size(), 4u) << "2 recomputed and 4 read take equally long";
  EXPECT_EQ(loads.front().chunk, 2u);
  EXPECT_EQ(table_.chunks().Resident(lease)[1].state, ResidentChunk::State::kToCompute);
  EXPECT_EQ(table_.chunks().Resident(lease)[2].state, ResidentChunk::State::kReading);
  // The worker ends early: everything is on disk as before.
  table_.Abort(lease);
  table_.chunks().FinishLoad("c", loads, std::vector<bool>(4, false));
  EXPECT_EQ(table_.kv().KvOf("c").stored_bytes, 6 * kSlotBytes);
  EXPECT_TRUE(AllFree());
}

TEST_F(LeaseLoadTest, WhatIsReadTooSlowlyIsLeftToTheWorker) {
  std::vector<ContextChunk> chunks;
  for (StoredCopy copy = 1; copy <= 5; ++copy) {
    chunks.push_back({.identity = {std::string(32, static_cast<char>('a' + copy)), 16, 100},
                      .slot = std::nullopt,
                      .stored = copy,
                      .stored_format = copy <= 2 ? KvFormat::kQ8 : KvFormat::kQ4});
  }
  chunks.back().identity.tokens = 7;
  table_.adoption().Adopt("c", {}, chunks);
  const LeaseId lease = Open("c");
  const auto loads = table_.chunks().BeginLoad(lease, {.level_percent = 100}, &evicted_);
  ASSERT_EQ(loads.size(), 5u);
  EXPECT_TRUE(loads[3].recomputable);
  EXPECT_FALSE(loads[4].recomputable) << "an unfinished chunk is read in any case";
  EXPECT_TRUE(table_.chunks().IsLoading("c", loads[1]));
  const auto left =
      table_.chunks().Yield(lease, std::span<const ChunkLoad>(loads).first(3), &evicted_);
  ASSERT_EQ(left.size(), 3u);
  EXPECT_EQ(left[0].slot, loads[0].slot) << "of 8 bits already";
  EXPECT_EQ(left[2].slot.format, KvFormat::kQ8);
  EXPECT_FALSE(table_.chunks().IsLoading("c", loads[1]));
  EXPECT_EQ(AuditLeases(table_.state()), "");
  using State = ResidentChunk::State;
  const auto resident = table_.chunks().Resident(lease);
  ASSERT_EQ(resident.size(), 5u);
  EXPECT_EQ(resident[2].state, State::kToCompute);
  EXPECT_EQ(resident[3].state, State::kReading);
  table_.chunks().FinishLoad("c", {loads.begin() + 3, loads.end()}, {true, true});
  std::vector<ChunkIdentity> commit;
  for (const auto& chunk : resident) commit.push_back(chunk.identity);
  Commit(lease, commit);
  EXPECT_TRUE(table_.idle().copies().TakeGivenUp().empty()) << "the copies are what they were";
  EXPECT_EQ(table_.kv().KvOf("c").tokens, 4u * 16 + 7);

  // Once the lease is over, nothing can be left to it.
  const LeaseId next = Open("c");
  table_.Abort(next);
  EXPECT_TRUE(table_.chunks().Yield(next, loads, &evicted_).empty());
}

TEST_F(LeaseLoadTest, ALoadOutlivesItsLease) {
  table_.adoption().Adopt("c", {}, {{{std::string(32, 'i'), 16, 100}, std::nullopt, 7}});
  const LeaseId lease = Open("c");
  const auto loads = table_.chunks().BeginLoad(lease, {}, &evicted_);
  table_.Abort(lease);
  EXPECT_EQ(FreeChunks(), 9u);
  table_.chunks().FinishLoad("c", loads, {true});
  EXPECT_TRUE(AllFree());
  EXPECT_EQ(table_.kv().KvOf("c").tokens, 16u) << "it is still on disk";
  const LeaseId next = Open("c");
  const auto again = table_.chunks().BeginLoad(next, {}, &evicted_);
  ASSERT_TRUE(table_.Attach(kOther, LeaseGeometry('n')).ok());
  table_.chunks().FinishLoad("c", again, {true});
  EXPECT_TRUE(AllFree());
}

}  // namespace
}  // namespace withy::context_store
