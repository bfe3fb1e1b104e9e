// Room in the arena: what rests stays bit for bit as long as the disk gives it back, and loses bits
// only where the arena needs them, in order and no more than that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "context_store/store_testing.h"

namespace withy::context_store {
namespace {

const uint64_t kQ8Bytes = kKv.ChunkBytes(KvFormat::kQ8);
// The largest step of one chunk.
const uint64_t kStepBytes = kQ8Bytes - kKv.ChunkBytes(KvFormat::kQ2);
constexpr uint64_t kArenaChunks = kArenaBytes / 1408;

class StoreRoomTest : public StoreFixture {
 protected:
  // A call on the context that adds chunks. Returns false if there was no room for it.
  bool TalkMore(const std::string& context, uint32_t full, uint32_t tail = 0) {
    const LeaseId lease = Open(context);
    const auto loaded = Load(lease);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    LeaseOutcome outcome;
    outcome.segments = {"text"};
    for (const ResidentChunk& chunk : loaded->resident) {
      Check(chunk);
      if (chunk.identity.tokens == 16) outcome.chunks.push_back(chunk.identity);
    }
    const auto first = static_cast<uint32_t>(outcome.chunks.size());
    const uint32_t count = full + (tail > 0 ? 1 : 0);
    const auto claimed = ClaimAndCheck(lease, context, first, count);
    if (!claimed.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(claimed.status())) << claimed.status();
      store_->leases().Abort(lease);
      return false;
    }
    for (const ChunkSlot& chunk : *claimed) {
      outcome.chunks.push_back(Write(chunk.slot, chunk.chunk < first + full ? 16 : tail));
      outcome.chunks.back().density = static_cast<float>(random_() % 1000) / 1000;
      written_[outcome.chunks.back().identity] = Payload(chunk.slot);
    }
    EXPECT_TRUE(store_->leases().Commit(lease, std::move(outcome)).ok());
    std::erase(by_use_, context);
    by_use_.push_back(context);
    return true;
  }
  std::string Payload(KvSlot slot) const {
    std::string bytes;
    for (int layer = 0; layer < kKv.layers; ++layer) {
      const std::byte* block = store_->arena().At(slot.Block(kKv, layer));
      bytes.append(reinterpret_cast<const char*>(block) + sizeof(engine::KvBlockHeader),
                   kKv.BlockBytes(slot.format) - sizeof(engine::KvBlockHeader));
    }
    return bytes;
  }
  // A chunk of 8 bits is what a call computed.
  void Check(const ResidentChunk& chunk) {
    if (chunk.where.slot.format != KvFormat::kQ8) {
      ++compressed_;
      return;
    }
    const auto written = written_.find(chunk.identity.identity);
    ASSERT_NE(written, written_.end());
    ASSERT_EQ(Payload(chunk.where.slot), written->second) << "chunk " << chunk.where.chunk;
  }
  // Bytes that leave without a loss if a call needs them.
  uint64_t ExactRoom(const std::string& except) const {
    const StoreStats stats = store_->Stats();
    uint64_t room = stats.space.free;
    for (const std::string& context : by_use_) {
      if (context == except) continue;
      for (const ContextChunk& chunk : store_->ChunksOf(context)) {
        if (chunk.HasExactCopy()) room += kKv.ChunkBytes(chunk.slot->format);
      }
    }
    return room;
  }
  // What chunks of the context may still lose, as far as the ratio allows.
  uint64_t MayLose(const std::string& context) const {
    const std::vector<ContextChunk> chunks = store_->ChunksOf(context);
    uint64_t bytes = 0, may = 0;
    for (size_t i = 0; i < chunks.size(); ++i) {
      const KvFormat format =
          chunks[i].slot.has_value() ? chunks[i].slot->format : chunks[i].stored_format;
      bytes += kKv.ChunkBytes(format);
      const bool pinned = i < 2 || i + 2 >= chunks.size() || !chunks[i].slot.has_value() ||
                          chunks[i].HasExactCopy() || chunks[i].identity.tokens < 16;
      if (!pinned) may += kKv.ChunkBytes(format) - kKv.ChunkBytes(KvFormat::kQ2);
    }
    const uint64_t least = chunks.size() * kQ8Bytes * ratio_percent_ / 100;
    return std::min(may, bytes - std::min(bytes, least));
  }
  absl::StatusOr<std::vector<ChunkSlot>> ClaimAndCheck(LeaseId lease, const std::string& context,
                                                       uint32_t first, uint32_t count) {
    store_->idle().AwaitTidy();
    std::map<std::string, uint64_t> before;
    std::map<std::string, size_t> chunks;
    for (const std::string& id : by_use_) {
      before[id] = store_->KvOf(id).compressed_tokens;
      chunks[id] = store_->ChunksOf(id).size();
    }
    const uint64_t room = ExactRoom(context);
    const uint64_t lost_before = store_->Stats().demoted_bytes;
    const auto claimed = store_->leases().Claim(lease, first, count);
    const uint64_t lost = store_->Stats().demoted_bytes - lost_before;
    const uint64_t wanted = count * kQ8Bytes;
    EXPECT_LE(lost, wanted - std::min(wanted, room) + (wanted > room ? kStepBytes : 0))
        << "no more than the arena asks for, and nothing while exact measures are left";
    // The contexts used longest ago lose first: none before them may have anything left to lose.
    bool later_lost = false;
    for (size_t i = by_use_.size(); i-- > 0;) {
      if (by_use_[i] == context) continue;
      // What was dropped from its end as the last measure does not count.
      if (later_lost && store_->ChunksOf(by_use_[i]).size() == chunks[by_use_[i]]) {
        EXPECT_LT(MayLose(by_use_[i]), kStepBytes) << "used before one that lost bits";
      }
      // A context that was dropped meanwhile has fewer, not more.
      later_lost = later_lost || store_->KvOf(by_use_[i]).compressed_tokens > before[by_use_[i]];
    }
    if (!claimed.ok()) return claimed.status();
    return claimed->chunks;
  }
  std::string CreateOne() {
    by_use_.push_back(Create());
    return by_use_.back();
  }

  std::vector<std::string> by_use_;             // contexts, used longest ago first
  std::map<std::string, std::string> written_;  // by identity: what a call computed
  int compressed_ = 0;                          // chunks that a call got in fewer bits
};

// With room on the disk: calls, rests, evictions, restarts and kills in any order. Every chunk that
// a call gets is bit for bit what was computed.
TEST_F(StoreRoomTest, WithRoomOnTheDiskWhatIsKeptIsWhatWasComputed) {
  const auto seed = static_cast<uint32_t>(random_());
  SCOPED_TRACE(seed);
  random_.seed(seed);
  segment_bytes_ = 256 << 10;
  Start();
  for (int i = 0; i < 9; ++i) CreateOne();
  for (int step = 0; step < 150 && !HasFailure(); ++step) {
    const std::string context = by_use_[random_() % by_use_.size()];
    const size_t chunks = store_->ChunksOf(context).size();
    switch (random_() % 12) {
      case 0:
        Restart();
        break;
      case 1:
        KillAndStart();
        break;
      case 2:
        store_->idle().AwaitTidy();
        break;
      case 3:
        ASSERT_TRUE(store_->deletions().DeleteContext("app", context).ok());
        std::erase(by_use_, context);
        CreateOne();
        break;
      default:
        if (chunks > kArenaChunks / 3) break;
        EXPECT_TRUE(TalkMore(context, static_cast<uint32_t>(random_() % 60),
                             static_cast<uint32_t>(random_() % 16)));
    }
    EXPECT_EQ(store_->Stats().demoted_chunks, 0u) << "step " << step;
  }
  EXPECT_EQ(compressed_, 0);
  EXPECT_GT(store_->Stats().evicted_chunks + store_->Stats().read_chunks, 0u);
}

// Without room: no disk, or a day's writes that are used up. What loses bits is checked at each
// claim; what has 8 bits is still exact.
TEST_F(StoreRoomTest, WithoutRoomKvLosesBitsInOrderAndNoMoreThanIsNeeded) {
  const auto seed = static_cast<uint32_t>(random_());
  SCOPED_TRACE(seed);
  uint64_t demoted = 0;
  for (const bool on_disk : {false, true}) {
    SCOPED_TRACE(on_disk);
    random_.seed(seed);
    by_use_.clear();
    on_disk_ = on_disk;
    daily_bytes_ = 512 << 10;
    Start();
    for (int i = 0; i < 7; ++i) CreateOne();
    for (int step = 0; step < 80 && !HasFailure(); ++step) {
      const std::string context = by_use_[random_() % by_use_.size()];
      if (store_->ChunksOf(context).size() > kArenaChunks / 3) {
        ASSERT_TRUE(store_->deletions().DeleteContext("app", context).ok());
        std::erase(by_use_, context);
        CreateOne();
        continue;
      }
      EXPECT_TRUE(TalkMore(context, 1 + static_cast<uint32_t>(random_() % 60),
                           static_cast<uint32_t>(random_() % 16)));
    }
    demoted += store_->Stats().demoted_chunks;
    store_.reset();
  }
  EXPECT_GT(demoted, 0u);
  EXPECT_GT(compressed_, 0) << "and calls stood on some of it";
}

// A context that was used once is not written while the day's reserve is spared. Before it loses
// bits, it is.
TEST_F(StoreRoomTest, WhatWasSparedTheDiskIsWrittenBeforeItLosesBits) {
  daily_bytes_ = kArenaBytes * 5 / 4;
  Start();
  const std::string first = CreateOne(), second = CreateOne(), third = CreateOne();
  const auto part = static_cast<uint32_t>(kArenaChunks * 45 / 100);
  ASSERT_TRUE(TalkMore(first, part));
  ASSERT_TRUE(TalkMore(second, part));
  ASSERT_TRUE(TalkMore(third, part / 8));
  store_->idle().AwaitTidy();
  ASSERT_EQ(store_->KvOf(third).stored_bytes, 0u) << "spared";
  ASSERT_TRUE(store_->deletions().DeleteContext("app", first).ok());
  ASSERT_TRUE(store_->deletions().DeleteContext("app", second).ok());
  by_use_ = {third};
  const std::string large = CreateOne();
  ASSERT_TRUE(TalkMore(large, static_cast<uint32_t>(kArenaChunks) - 10));
  EXPECT_EQ(store_->Stats().demoted_chunks, 0u);
  EXPECT_EQ(store_->KvOf(third).tokens, part / 8 * 16);
  EXPECT_TRUE(Eventually([&] { return store_->KvOf(third).stored_bytes > 0; }));
}

TEST_F(StoreRoomTest, AtARatioOf100NothingLosesBits) {
  on_disk_ = false;
  ratio_percent_ = 100;
  Start();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(TalkMore(CreateOne(), static_cast<uint32_t>(kArenaChunks / 3)));
  }
  EXPECT_EQ(store_->Stats().demoted_chunks, 0u);
  EXPECT_GT(store_->Stats().evicted_chunks, 0u) << "it is computed again";
}

}  // namespace
}  // namespace withy::context_store
