#include "context_store/arena/arena_locks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

#include "base/shared_memory.h"
#include "base/test_seed.h"

namespace withy::context_store {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kPiece = LockPlan::kPieceBytes;

TEST(LockPlanTest, PiecesAreLockedOnceAndAsLongAsSomebodyHoldsThem) {
  LockPlan plan(10 * kPiece, 10 * kPiece);
  const std::vector<ByteRange> first = {{100, 50}, {kPiece - 10, 20}, {5 * kPiece, kPiece}};
  EXPECT_THAT(plan.Hold(1, first).lock,
              ElementsAre(ByteRange{0, 2 * kPiece}, ByteRange{5 * kPiece, kPiece}));
  EXPECT_EQ(plan.locked_bytes(), 3 * kPiece);
  const std::vector<ByteRange> second = {{kPiece, 64}, {2 * kPiece, 64}};
  EXPECT_THAT(plan.Hold(2, second).lock, ElementsAre(ByteRange{2 * kPiece, kPiece}));
  EXPECT_THAT(plan.Drop(1).unlock,
              ElementsAre(ByteRange{0, kPiece}, ByteRange{5 * kPiece, kPiece}));
  EXPECT_THAT(plan.Drop(2).unlock, ElementsAre(ByteRange{kPiece, 2 * kPiece}));
  EXPECT_EQ(plan.locked_bytes(), 0u);
  EXPECT_THAT(plan.Drop(3).unlock, IsEmpty());
}

TEST(LockPlanTest, WhatIsBeyondTheLimitWaits) {
  LockPlan plan(10 * kPiece, 2 * kPiece);
  EXPECT_THAT(plan.Hold(1, std::vector<ByteRange>{{0, 3 * kPiece}}).lock,
              ElementsAre(ByteRange{0, 2 * kPiece}));
  EXPECT_THAT(plan.Hold(2, std::vector<ByteRange>{{4 * kPiece, kPiece}}).lock, IsEmpty());
  const LockPlan::Change change = plan.Drop(1);
  EXPECT_THAT(change.unlock, ElementsAre(ByteRange{0, 2 * kPiece}));
  EXPECT_THAT(change.lock, ElementsAre(ByteRange{4 * kPiece, kPiece}));
}

TEST(LockPlanTest, CountsAsABruteForceDoes) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  constexpr uint64_t kBytes = 20 * kPiece + 5000;
  for (int round = 0; round < 50; ++round) {
    const uint64_t limit = random() % (22 * kPiece);
    LockPlan plan(kBytes, limit);
    std::map<uint64_t, std::set<uint64_t>> held;
    std::set<uint64_t> locked;
    for (int step = 0; step < 100; ++step) {
      const uint64_t holder = random() % 4;
      LockPlan::Change change;
      if (random() % 3 == 0) {
        change = plan.Drop(holder);
        held.erase(holder);
      } else {
        ByteRange slot{random() % kBytes, 0};
        slot.bytes = std::min<uint64_t>(1 + random() % (3 * kPiece), kBytes - slot.offset);
        change = plan.Hold(holder, std::vector<ByteRange>{slot});
        for (uint64_t p = slot.offset / kPiece; p <= (slot.offset + slot.bytes - 1) / kPiece; ++p) {
          held[holder].insert(p);
        }
      }
      for (const ByteRange& run : change.unlock) {
        for (uint64_t at = run.offset; at < run.offset + run.bytes; at += kPiece) {
          EXPECT_EQ(locked.erase(at / kPiece), 1u);
        }
      }
      for (const ByteRange& run : change.lock) {
        for (uint64_t at = run.offset; at < run.offset + run.bytes; at += kPiece) {
          EXPECT_TRUE(locked.insert(at / kPiece).second);
        }
      }
      std::set<uint64_t> wanted;
      for (const auto& [one, pieces] : held) wanted.insert(pieces.begin(), pieces.end());
      uint64_t bytes = 0, wanted_bytes = 0;
      for (const uint64_t p : locked) {
        EXPECT_TRUE(wanted.contains(p));
        bytes += std::min(kPiece, kBytes - p * kPiece);
      }
      for (const uint64_t p : wanted) wanted_bytes += std::min(kPiece, kBytes - p * kPiece);
      EXPECT_EQ(bytes, plan.locked_bytes());
      EXPECT_LE(bytes, limit);
      EXPECT_GT(bytes + kPiece, std::min(limit, wanted_bytes)) << "as much as may be";
    }
  }
}

TEST(ArenaLocksTest, SlotsOfHoldersAreLockedWithinTheLimit) {
  constexpr uint64_t kArena = 4 << 20;
  const auto fd = CreateSealedMemfd("arena", kArena);
  ASSERT_TRUE(fd.ok());
  auto memory = SharedMemory::Map(fd->get(), kArena, SharedMemory::Access::kReadWrite);
  ASSERT_TRUE(memory.ok());
  ArenaLocks locks(memory->bytes(), 1 << 20);
  locks.Hold(1, {{0, 512 << 10}});
  locks.Hold(2, {{1 << 20, 1 << 20}});
  locks.Await();
  const uint64_t locked = locks.locked_bytes();
  if (locked == 0) GTEST_SKIP() << "this system locks nothing";
  EXPECT_LE(locked, 1u << 20);
  locks.Drop(1);
  locks.Await();
  EXPECT_EQ(locks.locked_bytes(), locked < (1 << 20) ? locks.locked_bytes() : 1u << 20);
  locks.Drop(2);
  locks.Await();
  EXPECT_EQ(locks.locked_bytes(), 0u);
}

}  // namespace
}  // namespace withy::context_store
