// What outlives context_store in the arena and what does not. A "killed" store is a copy of its
// directories and of its arena at one moment, opened by the next store.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "context_store/store_testing.h"

namespace withy::context_store {
namespace {

using StoreKeepTest = StoreFixture;

TEST_F(StoreKeepTest, AKilledStoreGoesOnWithItsResidentKv) {
  for (const bool on_disk : {true, false}) {
    on_disk_ = on_disk;
    compresses_ahead_ = true;
    Start();
    const std::string a = Create(), b = Create();
    Talk(a, 40, 5);
    Talk(b, 12);
    const uint64_t bytes = ResidentBytes(a);
    EXPECT_LT(bytes, 41 * kKv.ChunkBytes(KvFormat::kQ8)) << "some of it has fewer bits";
    const auto before = Resident(a), before_b = Resident(b);
    ASSERT_EQ(before.size(), 41u);
    KillAndStart();
    EXPECT_EQ(ResidentBytes(a), bytes);
    EXPECT_EQ(Resident(a), before);
    EXPECT_EQ(Resident(b), before_b);
    EXPECT_EQ(store_->Stats().read_chunks, 0u);
    // And once more, after some more talk.
    Talk(a, 3);
    const auto later = Resident(a);
    KillAndStart();
    EXPECT_EQ(Resident(a), later);
    EXPECT_EQ(Resident(b), before_b);
  }
}

TEST_F(StoreKeepTest, KvThatDoesNotMatchIsNotServed) {
  on_disk_ = false;
  Start();
  const std::string context = Create();
  Talk(context, 20);
  const auto before = Resident(context);
  const auto chunks = store_->ChunksOf(context);
  // A bit flips in chunk 15; the blocks of chunks 10 and 11 change places.
  store_->arena().At(chunks[15].slot->Block(kKv, 1))[200] ^= std::byte{1};
  KillAndStart();
  EXPECT_EQ(Resident(context).size(), 15u);
  EXPECT_EQ(store_->Stats().unkept_chunks, 1u);
  std::byte* one = store_->arena().At(chunks[10].slot->Block(kKv, 0));
  std::byte* other = store_->arena().At(chunks[11].slot->Block(kKv, 0));
  if (chunks[10].slot->format == chunks[11].slot->format) {
    const size_t bytes = kKv.ChunkBytes(chunks[10].slot->format);
    std::swap_ranges(one, one + bytes, other);
  } else {
    one[100] ^= std::byte{1};
  }
  KillAndStart();
  const auto after = Resident(context);
  ASSERT_EQ(after.size(), 10u);
  EXPECT_TRUE(std::equal(after.begin(), after.end(), before.begin()));
}

// What is wrong in the arena is read from disk, if it is there.
TEST_F(StoreKeepTest, TheDiskFillsInForWhatIsWrong) {
  Start();
  const std::string context = Create();
  Talk(context, 20);
  const auto before = Resident(context);
  const auto chunks = store_->ChunksOf(context);
  store_->arena().At(chunks[7].slot->Block(kKv, 0))[100] ^= std::byte{1};
  KillAndStart();
  EXPECT_EQ(Resident(context), before);
  EXPECT_EQ(store_->Stats().read_chunks, 1u);
}

TEST_F(StoreKeepTest, WhatALeaseWasWritingIsNotKept) {
  on_disk_ = false;
  Start();
  const std::string context = Create();
  Talk(context, 5, 7);
  ASSERT_TRUE(store_->arena_keeper().ConnectWorker(kWorker, epoch_, getpid()).ok());
  // The worker extends the unfinished chunk in place, has claimed two more, and takes back one.
  const LeaseId lease = Open(context);
  const auto loaded = Load(lease);
  ASSERT_EQ(loaded->resident.size(), 6u);
  const KvSlot tail = loaded->resident[5].where.slot;
  const auto claimed = store_->leases().Claim(lease, 6, 2);
  ASSERT_TRUE(claimed.ok());
  store_->arena().At(tail.Block(kKv, 0))[300] ^= std::byte{1};
  Write(claimed->chunks[0].slot, 16);
  KillAndStart(/*attach=*/false);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(store_->arena_keeper().Attach(8, StoreGeometry()).status()))
      << "the worker may still be writing";
  EXPECT_EQ(ResidentBytes(context), 0u);
  Attach();
  uint64_t whole = 0;
  for (size_t i = 0; i < 5; ++i) {
    whole += kKv.ChunkBytes(loaded->resident[i].where.slot.format);
  }
  EXPECT_EQ(ResidentBytes(context), whole);
  EXPECT_EQ(store_->Stats().space.claimed, 0u);
  EXPECT_EQ(store_->Stats().unkept_chunks, 1u);
}

TEST_F(StoreKeepTest, AChunkThatWasTakenBackIsNotKept) {
  on_disk_ = false;
  Start();
  const std::string context = Create();
  Talk(context, 6);
  const LeaseId lease = Open(context);
  ASSERT_TRUE(store_->leases().Claim(lease, 3, 1).ok());
  KillAndStart();
  EXPECT_EQ(Resident(context).size(), 3u);
}

TEST_F(StoreKeepTest, AnotherModelAndADeletedContextFindNothing) {
  Start();
  const std::string context = Create(), deleted = Create();
  Talk(context, 4);
  Talk(deleted, 4);
  ASSERT_TRUE(store_->deletions().DeleteContext("app", deleted).ok());
  KillAndStart();
  EXPECT_EQ(ResidentBytes(deleted), 0u);
  EXPECT_EQ(store_->Stats().space.resident, ResidentBytes(context));
  KillAndStart(/*attach=*/false);
  Attach('n');
  EXPECT_EQ(store_->Stats().space.resident, 0u);
  Attach('m');
  EXPECT_EQ(ResidentBytes(context), 0u) << "it was emptied for another model";
}

// Kills at random moments of random work. Whatever is resident afterwards is what some call wrote
// there under that identity.
TEST_F(StoreKeepTest, RandomKillsLeaveNothingForeign) {
  const auto seed = static_cast<uint32_t>(random_());
  SCOPED_TRACE(seed);
  random_.seed(seed);
  Start();
  constexpr uint32_t kMostAtOnce = 150;  // chunks
  const uint64_t kHalfOfArena = kArenaBytes / 2 / kKv.ChunkBytes(KvFormat::kQ8);
  std::vector<std::string> contexts;
  for (int i = 0; i < 4; ++i) contexts.push_back(Create());
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 3; ++i) {
      std::string& context = contexts[random_() % contexts.size()];
      // A context that would take more than half of the arena makes room for a new one: the arena
      // has gaps, and a lease cannot claim what does not fit beside its own chunks.
      if (store_->ChunksOf(context).size() + kMostAtOnce > kHalfOfArena) {
        ASSERT_TRUE(store_->deletions().DeleteContext("app", context).ok());
        context = Create();
      }
      Talk(context, 1 + static_cast<uint32_t>(random_() % kMostAtOnce));
    }
    LeaveHalfWritten(contexts);
    auto before = IdentitiesOf(contexts);
    KillAndStart();
    for (const std::string& context : contexts) {
      const auto chunks = store_->ChunksOf(context);
      for (size_t i = 0; i < chunks.size(); ++i) {
        if (!chunks[i].slot.has_value()) continue;
        EXPECT_TRUE(store_->arena().Matches(kKv, *chunks[i].slot, chunks[i].identity.identity,
                                            chunks[i].identity.tokens, epoch_));
        if (i >= before[context].size()) continue;
        EXPECT_EQ(chunks[i].identity.identity, before[context][i]);
      }
    }
    if (HasFailure()) return;
  }
}

// The file stands in for the kernel's pressure stall information.
class StorePressureTest : public StoreKeepTest {
 protected:
  StorePressureTest() {
    WriteStalled(0);
    pressure_.file = dir_ / "pressure";
    pressure_.interval = absl::Milliseconds(2);
    // It grows a second after the last pressure, in which a busy machine sees it shrunk.
    pressure_.rules = {.shrink_share = 0.1, .quiet_before_growth = 500, .quiet_between_growths = 1};
  }
  // Replaces the file at once, so that nobody reads half of it.
  void WriteStalled(uint64_t micros) {
    std::ofstream(dir_ / "next") << "some avg10=0.00 avg60=0.00 avg300=0.00 total=" << micros
                                 << "\n";
    std::filesystem::rename(dir_ / "next", dir_ / "pressure");
  }
  uint64_t MemoryBytes() const {
    struct stat info {};
    EXPECT_EQ(fstat(store_->arena().fd(), &info), 0);
    return static_cast<uint64_t>(info.st_blocks) * 512;
  }
};

TEST_F(StorePressureTest, TheArenaShrinksWhileTheBoardIsShortOfMemoryAndGrowsBack) {
  Start();
  const std::string idle = Create(), leased = Create();
  Talk(idle, 600);
  Talk(leased, 100);
  const auto idle_kv = Resident(idle), leased_kv = Resident(leased);
  const LeaseId lease = Open(leased);
  ASSERT_TRUE(Eventually([&] { return MemoryBytes() >= kArenaBytes; })) << "prefaulted";
  const uint64_t before = MemoryBytes();
  uint64_t stalled = 0;
  ASSERT_TRUE(Eventually([&] {
    WriteStalled(stalled += 1000000);
    return store_->Stats().space.withheld >= kArenaBytes / 2 &&
           ResidentBytes(idle) < store_->KvOf(idle).stored_bytes;
  }));
  EXPECT_LT(MemoryBytes(), before - kArenaBytes / 3) << "the system has it";
  EXPECT_EQ(ResidentBytes(leased), store_->KvOf(leased).stored_bytes) << "a call's KV stays";
  // A worker maps the arena and touches all of it.
  auto mapped =
      SharedMemory::Map(store_->arena().fd(), kArenaBytes, SharedMemory::Access::kReadWrite);
  ASSERT_TRUE(mapped.ok() && mapped->Prefault().ok());
  EXPECT_TRUE(Eventually([&] {
    WriteStalled(stalled += 1000000);
    return MemoryBytes() < before - kArenaBytes / 3;
  }));
  // A call that needs the room gets it.
  const LeaseId large = Open(Create());
  const auto room =
      static_cast<uint32_t>((kArenaBytes - ResidentBytes(leased)) / kKv.ChunkBytes(KvFormat::kQ8));
  EXPECT_TRUE(store_->leases().Claim(large, 0, room * 9 / 10).ok());
  store_->leases().Abort(large);
  store_->leases().Abort(lease);
  ASSERT_TRUE(Eventually([&] { return store_->Stats().space.withheld == 0; }));
  EXPECT_EQ(Resident(leased), leased_kv);
  EXPECT_EQ(Resident(idle), idle_kv);
}

// Nothing is lost for want of memory: what no disk takes is stored in fewer bits.
TEST_F(StorePressureTest, WhereNoDiskTakesKvTheArenaShrinksByFewerBits) {
  on_disk_ = false;
  Start();
  const std::string old = Create(), idle = Create();
  Talk(old, 200);
  Talk(idle, 400);
  uint64_t stalled = 0;
  ASSERT_TRUE(Eventually([&] {
    WriteStalled(stalled += 1000000);
    return store_->KvOf(idle).compressed_tokens > 0 &&
           store_->Stats().space.withheld > kArenaBytes / 3;
  }));
  EXPECT_EQ(store_->KvOf(old).tokens, 200u * 16);
  EXPECT_EQ(store_->KvOf(idle).tokens, 400u * 16);
  EXPECT_LE(ResidentBytes(old), 200 * kKv.ChunkBytes(KvFormat::kQ8) * 52 / 100)
      << "the one used longest ago reached the ratio first";
}

}  // namespace
}  // namespace withy::context_store
