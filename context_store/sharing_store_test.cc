// Chunks that contexts share, in a whole store: over kills, restarts and deletions.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "context_store/store_testing.h"

namespace withy::context_store {
namespace {

class StoreSharingTest : public StoreFixture {
 protected:
  // A call on a context without KV whose conversation begins as that of `source`: `common` chunks
  // of it, then `full` chunks of its own. Returns how many it took over.
  uint32_t Fork(const std::string& context, const std::string& source, uint32_t common,
                uint32_t full) {
    std::vector<ChunkIdentity> chunks;
    LeaseChunks::Identities wanted;
    for (const ContextChunk& chunk : store_->ChunksOf(source)) {
      if (wanted.size() == common || chunk.identity.tokens < 16) break;
      wanted.push_back(chunk.identity.identity);
    }
    const LeaseId lease = Open(context);
    EXPECT_TRUE(Load(lease).ok());
    const auto shared = store_->leases().Share(lease, 0, {wanted});
    EXPECT_TRUE(shared.ok()) << shared.status();
    LeaseOutcome outcome;
    outcome.segments = {"text"};
    for (const ResidentChunk& chunk : *shared) outcome.chunks.push_back(chunk.identity);
    const auto first = static_cast<uint32_t>(outcome.chunks.size());
    if (full > 0) {
      const auto claimed = store_->leases().Claim(lease, first, full);
      EXPECT_TRUE(claimed.ok()) << claimed.status();
      if (!claimed.ok()) return first;
      for (const ChunkSlot& chunk : claimed->chunks)
        outcome.chunks.push_back(Write(chunk.slot, 16));
    }
    EXPECT_TRUE(store_->leases().Commit(lease, std::move(outcome)).ok());
    store_->idle().AwaitTidy();
    return first;
  }
  uint64_t SharedSlots() { return store_->Stats().space.shared_slots; }
};

TEST_F(StoreSharingTest, SharedChunksAreCountedOnceAndGoOnAfterAKill) {
  for (const bool on_disk : {true, false}) {
    on_disk_ = on_disk;
    Start();
    const std::string a = Create(), b = Create(), c = Create();
    Talk(a, 40, 5);
    const uint64_t alone = store_->Stats().space.resident;
    EXPECT_EQ(Fork(b, a, 40, 2), 40u);
    EXPECT_EQ(Fork(c, a, 20, 0), 20u);
    EXPECT_EQ(SharedSlots(), 40u);
    EXPECT_LE(store_->Stats().space.resident, alone + 2 * kKv.ChunkBytes(KvFormat::kQ8));
    EXPECT_EQ(store_->Stats().shared_chunks, 60u);
    uint64_t by_format = 0;
    for (const uint64_t bytes : store_->Stats().bytes.resident) by_format += bytes;
    EXPECT_EQ(by_format, store_->Stats().space.resident);
    const std::vector<std::string> before[] = {Resident(a), Resident(b), Resident(c)};
    KillAndStart();
    EXPECT_EQ(SharedSlots(), 40u);
    EXPECT_EQ(Resident(a), before[0]);
    EXPECT_EQ(Resident(b), before[1]);
    EXPECT_EQ(Resident(c), before[2]);
    EXPECT_EQ(store_->Stats().read_chunks, 0u);
    EXPECT_EQ(store_->Stats().unkept_chunks, 0u);
    // The last one keeps what the others leave, and the next process finds it.
    ASSERT_TRUE(store_->deletions().DeleteContext("app", a).ok());
    ASSERT_TRUE(store_->deletions().DeleteContext("app", c).ok());
    store_->idle().AwaitTidy();  // it is written anew, perhaps in fewer bits
    const std::vector<std::string> later = Resident(b);
    EXPECT_EQ(later.size(), 42u);
    KillAndStart();
    EXPECT_EQ(SharedSlots(), 0u);
    EXPECT_EQ(ResidentBytes(a), 0u);
    EXPECT_EQ(Resident(b), later);
    ASSERT_TRUE(store_->deletions().DeleteContext("app", b).ok());
    EXPECT_EQ(store_->Stats().space.resident, 0u);
    store_.reset();
  }
}

TEST_F(StoreSharingTest, WithoutTheArenaEachContextIsReadFromDisk) {
  Start();
  const std::string a = Create(), b = Create();
  Talk(a, 30);
  EXPECT_EQ(Fork(b, a, 30, 3), 30u);
  const auto before_a = Resident(a), before_b = Resident(b);
  Restart();
  EXPECT_EQ(Resident(b), before_b);
  const uint64_t read = store_->Stats().read_chunks;
  EXPECT_EQ(read, 33u);
  EXPECT_EQ(Resident(a), before_a);
  EXPECT_EQ(store_->Stats().read_chunks, read) << "the other context has them in the arena now";
  EXPECT_EQ(SharedSlots(), 30u);
}

TEST_F(StoreSharingTest, SharedChunksAreOnDiskOnce) {
  Start();
  const std::string a = Create();
  Talk(a, 30);
  EXPECT_EQ(store_->Stats().written_chunks, 30u);
  std::vector<std::string> forks;
  for (uint32_t i = 1; i <= 5; ++i) {
    forks.push_back(Create());
    EXPECT_EQ(Fork(forks.back(), a, 30, 2), 30u);
    EXPECT_EQ(store_->Stats().written_chunks, 30u + 2 * i);
  }
  std::map<std::string, std::vector<std::string>> before;
  for (const std::string& fork : forks) before[fork] = Resident(fork);
  const StoreStats stats = store_->Stats();
  uint64_t stored = 0;
  for (const uint64_t bytes : stats.bytes.stored) stored += bytes;
  EXPECT_EQ(stored, stats.disk.segments.live_bytes);
  Restart();
  EXPECT_EQ(store_->Stats().disk.segments.live_bytes, stored);
  for (const std::string& fork : forks) EXPECT_EQ(Resident(fork), before[fork]);
  EXPECT_EQ(store_->Stats().read_chunks, 30u + 2 * 5) << "and they are read once";
}

// A fork wants fewer bits of what it shares than the context that wrote it, and is not worth a
// second write yet: the copy with more bits stays.
TEST_F(StoreSharingTest, AForkThatTakesFewerBitsComesBackAfterARestart) {
  compresses_ahead_ = true;
  ratio_percent_ = 100;
  Start();
  const std::string a = Create(), b = Create();
  Talk(a, 20);
  ratio_percent_ = 50;
  KillAndStart();
  EXPECT_EQ(Fork(b, a, 20, 60), 20u);
  for (const std::string& context : {a, b}) {
    const std::vector<ContextChunk> chunks = store_->ChunksOf(context);
    for (size_t i = 0; i < chunks.size(); ++i) EXPECT_NE(chunks[i].stored, 0u) << i;
  }
  Restart();
  EXPECT_EQ(Resident(b).size(), 80u);
}

// The copies of a deleted context are gone for good. What is in memory of the contexts that
// borrowed them is written under their own keys, the rest is computed again.
TEST_F(StoreSharingTest, ADeletedContextsCopiesAreGoneAndItsForksGoOn) {
  Start();
  const std::string a = Create(), b = Create(), c = Create();
  Talk(a, 30);
  EXPECT_EQ(Fork(b, a, 20, 3), 20u);
  EXPECT_EQ(Fork(c, a, 20, 4), 20u);
  const auto before_b = Resident(b), before_c = Resident(c);
  ASSERT_TRUE(store_->deletions().DeleteContext("app", a).ok());
  store_->idle().AwaitTidy();
  EXPECT_FALSE(store_->records().keys().Get(a).ok());
  EXPECT_EQ(store_->Stats().written_chunks, 30u + 3 + 4 + 20);
  Restart();
  EXPECT_EQ(Resident(b), before_b);
  EXPECT_EQ(Resident(c), before_c);
  EXPECT_TRUE(store_->ChunksOf(a).empty());
  // On disk only: one of them has written the common chunks; the other one loses them with it.
  Restart();
  ASSERT_TRUE(store_->deletions().DeleteContext("app", b).ok());
  ASSERT_TRUE(store_->deletions().DeleteContext("app", c).ok());
  EXPECT_EQ(store_->Stats().disk.segments.live_bytes, 0u);
  EXPECT_EQ(store_->Stats().space.resident, 0u);
}

TEST_F(StoreSharingTest, ABorrowedCopyOfADeletedContextIsComputedAgain) {
  Start();
  const std::string a = Create(), b = Create();
  Talk(a, 30);
  EXPECT_EQ(Fork(b, a, 20, 3), 20u);
  Restart();  // nothing is in memory
  ASSERT_TRUE(store_->deletions().DeleteContext("app", a).ok());
  store_->idle().AwaitTidy();
  EXPECT_TRUE(Resident(b).empty());
  Talk(b, 5);
  Restart();
  EXPECT_EQ(Resident(b).size(), 5u);
  EXPECT_EQ(store_->Stats().disk.damage.missing, 0u);
}

// Kills at random moments of random work on contexts that fork each other. Whatever is resident
// afterwards is what some call wrote there under that identity.
TEST_F(StoreSharingTest, RandomKillsOfForksLeaveNothingForeign) {
  const auto seed = static_cast<uint32_t>(random_());
  SCOPED_TRACE(seed);
  random_.seed(seed);
  compresses_ahead_ = random_() % 2 == 0;
  Start();
  std::vector<std::string> contexts;
  for (int i = 0; i < 3; ++i) contexts.push_back(Create());
  for (int round = 0; round < 12; ++round) {
    for (int i = 0; i < 4; ++i) {
      const std::string context = contexts[random_() % contexts.size()];
      switch (random_() % 3) {
        case 0: {
          const std::string fork = Create();
          Fork(fork, context, 1 + static_cast<uint32_t>(random_() % 40),
               static_cast<uint32_t>(random_() % 10));
          contexts.push_back(fork);
          break;
        }
        case 1:  // a context stays far below the arena, which has gaps
          if (store_->ChunksOf(context).size() > 200) break;
          Talk(context, 1 + static_cast<uint32_t>(random_() % 60));
          break;
        default:
          if (contexts.size() < 4) break;
          ASSERT_TRUE(store_->deletions().DeleteContext("app", context).ok());
          std::erase(contexts, context);
      }
    }
    LeaveHalfWritten(contexts);
    auto before = IdentitiesOf(contexts);
    KillAndStart();
    EXPECT_EQ(store_->Stats().unkept_chunks, 0u);
    for (const std::string& context : contexts) {
      const auto chunks = store_->ChunksOf(context);
      for (size_t i = 0; i < chunks.size(); ++i) {
        if (!chunks[i].slot.has_value()) continue;
        EXPECT_TRUE(store_->arena().Matches(kKv, *chunks[i].slot, chunks[i].identity.identity,
                                            chunks[i].identity.tokens, epoch_));
        if (i < before[context].size()) {
          EXPECT_EQ(chunks[i].identity.identity, before[context][i]);
        }
      }
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace withy::context_store
