// A load that yields chunks while it goes on: a store with a slow disk, and a worker that takes its
// time to recompute chunks.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "context_store/store_testing.h"
#include "policy/kv/kv_load_plan.h"

namespace withy::context_store {
namespace {

// Large enough that a group of chunks is a part of a context.
constexpr engine::KvGeometry kLarge{2, 8, 64};
constexpr uint32_t kChunks = 192;
constexpr uint32_t kPieceChunks = 8;  // chunks that the worker computes at a time

Geometry LargeGeometry() {
  return {std::string(32, 'm'), 2, 8, 64, static_cast<uint32_t>(kLarge.BlockBytes(KvFormat::kQ8))};
}
double ChunkMib() { return static_cast<double>(kLarge.ChunkBytes(KvFormat::kQ8)) / (1 << 20); }

class StoreLoadTest : public ::testing::Test {
 protected:
  // The disk takes `read_ms` for a chunk; the plan is told `told_read_ms`, and that recomputing one
  // takes `recompute_ms`.
  void Start(double read_ms, double told_read_ms, double recompute_ms) {
    StoreOptions options;
    options.db.path = dir_ / "db";
    options.kv.directory = dir_ / "kv";
    options.key.path = dir_ / "key";
    options.arena_bytes = 2 * kChunks * kLarge.ChunkBytes(KvFormat::kQ8);
    options.kv_ratio_percent = 100;
    options.kv.bytes_per_second =
        read_ms == 0 ? 0 : static_cast<uint64_t>(ChunkMib() * (1 << 20) * 1e3 / read_ms);
    options.kv_costs.load = {.recompute_chunk_ms = recompute_ms,
                             .read_mib_ms = told_read_ms / ChunkMib()};
    auto store = Store::Open(std::move(options), Clock::Real(), *recorder_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    const auto attached = store_->arena_keeper().Attach(kWorker, LargeGeometry());
    ASSERT_TRUE(attached.ok()) << attached.status();
    epoch_ = attached->epoch;
  }
  // A context of kChunks chunks, on disk; the store that wrote it is gone.
  void WriteContext() {
    Start(0, 1, 1);
    context_ = store_->contexts().Create("app", {})->context_id;
    const LeaseId lease = Open();
    ASSERT_TRUE(store_->leases().Load(lease).ok());
    const auto claimed = store_->leases().Claim(lease, 0, kChunks);
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    LeaseOutcome outcome;
    outcome.segments = {"text"};
    for (const ChunkSlot& chunk : claimed->chunks) {
      Fill(chunk);
      outcome.chunks.push_back(Named(chunk.chunk));
    }
    ASSERT_TRUE(store_->leases().Commit(lease, std::move(outcome)).ok());
    store_->idle().AwaitTidy();
    ASSERT_EQ(store_->KvOf(context_).stored_bytes, kChunks * kLarge.ChunkBytes(KvFormat::kQ8));
    store_.reset();
  }
  LeaseId Open() {
    const auto opening = store_->leases().Open({.epoch = epoch_,
                                                .app_id = "app",
                                                .context_id = context_,
                                                .call_id = 1,
                                                .level_percent = 100},
                                               listener_);
    EXPECT_TRUE(opening.ok()) << opening.status();
    return opening->id;
  }
  static ChunkIdentity Named(uint32_t chunk) {
    std::string identity(32, 'i');
    std::memcpy(identity.data(), &chunk, sizeof chunk);
    return {identity, 16, 100};
  }
  static std::byte ByteOf(uint32_t chunk) { return static_cast<std::byte>(chunk % 120 + 1); }
  // Computes a chunk as a worker does.
  void Fill(const ChunkSlot& chunk) {
    for (int layer = 0; layer < kLarge.layers; ++layer) {
      std::byte* block = store_->arena().At(chunk.slot.Block(kLarge, layer));
      const size_t bytes = kLarge.BlockBytes(KvFormat::kQ8);
      std::memset(block + sizeof(engine::KvBlockHeader), static_cast<int>(ByteOf(chunk.chunk)),
                  bytes - sizeof(engine::KvBlockHeader));
      const std::string identity = Named(chunk.chunk).identity;
      engine::KvBlockHeader header{};
      header.epoch = epoch_;
      std::memcpy(header.identity, identity.data(), identity.size());
      header.layer = static_cast<uint32_t>(layer);
      header.level = 100;
      header.format = KvFormat::kQ8;
      header.filled = 16;
      header.checksum = Crc32c(0, {block + sizeof header, bytes - sizeof header});
      std::memcpy(block, &header, sizeof header);
    }
  }
  bool Holds(const ChunkSlot& chunk) const {
    for (int layer = 0; layer < kLarge.layers; ++layer) {
      const std::byte* block = store_->arena().At(chunk.slot.Block(kLarge, layer));
      if (block[kLarge.BlockBytes(KvFormat::kQ8) - 1] != ByteOf(chunk.chunk)) return false;
    }
    return true;
  }
  // What the store answers to one Yield.
  std::vector<ChunkSlot> Ask(LeaseId lease, uint32_t computed_before, uint32_t most) {
    size_t before = 0;
    {
      absl::MutexLock lock(&listener_->mutex);
      before = listener_->yielded.size();
    }
    store_->leases().Yield(lease, computed_before, most);
    std::vector<ChunkSlot> answer;
    EXPECT_TRUE(Eventually([&] {
      absl::MutexLock lock(&listener_->mutex);
      if (listener_->yielded.size() == before) return false;
      answer = listener_->yielded.back();
      return true;
    }));
    return answer;
  }

  struct Outcome {
    uint32_t computed = 0;  // chunks
  };
  // Loads the context as a worker does that takes `recompute_ms` for a chunk, and commits.
  Outcome LoadAndCompute(double recompute_ms) {
    Outcome outcome;
    listener_->layers = 0;
    const LeaseId lease = Open();
    const auto loaded = store_->leases().Load(lease);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    std::map<uint32_t, ChunkSlot> slots;
    std::vector<ChunkSlot> todo;
    for (const ResidentChunk& chunk : loaded->resident) {
      slots[chunk.where.chunk] = chunk.where;
      if (chunk.state == ResidentChunk::State::kToCompute) todo.push_back(chunk.where);
    }
    uint32_t computed_before = 0;
    while (listener_->layers < kLarge.layers || !todo.empty()) {
      if (listener_->layers == 0 && todo.size() <= kPieceChunks) {
        const auto most = static_cast<uint32_t>(2 * kPieceChunks - todo.size());
        for (const ChunkSlot& chunk : Ask(lease, computed_before, most)) {
          slots[chunk.chunk] = chunk;
          todo.push_back(chunk);
        }
      }
      const size_t piece = std::min<size_t>(kPieceChunks, todo.size());
      std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(
          piece == 0 ? 2.0 : static_cast<double>(piece) * recompute_ms));
      for (size_t i = 0; i < piece; ++i) Fill(todo[i]);
      if (piece > 0) computed_before = todo[piece - 1].chunk + 1;
      outcome.computed += static_cast<uint32_t>(piece);
      todo.erase(todo.begin(), todo.begin() + static_cast<std::ptrdiff_t>(piece));
    }
    LeaseOutcome commit;
    commit.segments = {"more"};
    EXPECT_EQ(slots.size(), kChunks);
    for (const auto& [number, chunk] : slots) {
      EXPECT_TRUE(Holds(chunk)) << number;
      commit.chunks.push_back(Named(number));
    }
    EXPECT_TRUE(store_->leases().Commit(lease, std::move(commit)).ok());
    EXPECT_EQ(store_->Stats().faults, 0u);
    store_->idle().AwaitTidy();
    EXPECT_EQ(store_->KvOf(context_).resident_bytes, kChunks * kLarge.ChunkBytes(KvFormat::kQ8));
    EXPECT_EQ(store_->KvOf(context_).stored_bytes, kChunks * kLarge.ChunkBytes(KvFormat::kQ8))
        << "what was computed again is what is on disk";
    return outcome;
  }
  // How many chunks a plan without yields recomputes.
  static size_t Planned(double told_read_ms, double recompute_ms) {
    std::vector<policy::MissingChunk> missing;
    for (uint32_t i = 0; i < kChunks; ++i) {
      missing.push_back({i, kLarge.ChunkBytes(KvFormat::kQ8)});
    }
    const policy::LoadCosts costs{.recompute_chunk_ms = recompute_ms,
                                  .read_mib_ms = told_read_ms / ChunkMib()};
    return policy::PlanLoad(missing, costs, policy::LoadPolicy::kPrefix).recompute.size();
  }

  TempDir dir_;
  std::unique_ptr<telemetry::Recorder> recorder_ = telemetry::Recorder::Disabled();
  std::shared_ptr<CountingListener> listener_ = std::make_shared<CountingListener>();
  std::string context_;
  uint64_t epoch_ = 0;
  std::unique_ptr<Store> store_;
};

TEST_F(StoreLoadTest, ADiskTenTimesAsSlowAsPlannedReadsLess) {
  WriteContext();
  Start(/*read_ms=*/5, /*told_read_ms=*/0.5, /*recompute_ms=*/5);
  const Outcome outcome = LoadAndCompute(5);
  EXPECT_EQ(Planned(0.5, 5), 17u);
  EXPECT_GT(outcome.computed, kChunks / 4);
  EXPECT_GT(store_->costs().loads().read_mib_ms, 1 / ChunkMib()) << "the next plan knows";
}

TEST_F(StoreLoadTest, AWorkerThatIsSlowerThanCalibratedIsPlannedSo) {
  WriteContext();
  Start(/*read_ms=*/5, /*told_read_ms=*/5, /*recompute_ms=*/2);
  LoadAndCompute(6);
  EXPECT_GT(store_->costs().loads().recompute_chunk_ms, 2.2) << "the next plan knows";
}

TEST_F(StoreLoadTest, ADiskTenTimesAsFastAsPlannedReadsMore) {
  WriteContext();
  Start(/*read_ms=*/4, /*told_read_ms=*/40, /*recompute_ms=*/4);
  const Outcome outcome = LoadAndCompute(4);
  EXPECT_EQ(Planned(40, 4), 175u);
  EXPECT_LT(outcome.computed, kChunks * 3 / 4);
}

// A disk that would take minutes.
TEST_F(StoreLoadTest, WhatADiskThatHangsHasBegunIsTakenBack) {
  WriteContext();
  Start(/*read_ms=*/1000, /*told_read_ms=*/1, /*recompute_ms=*/1);
  const Outcome outcome = LoadAndCompute(1);
  EXPECT_EQ(outcome.computed, kChunks);
}

TEST_F(StoreLoadTest, AWorkerThatDoesNotAskGetsEverythingRead) {
  WriteContext();
  Start(/*read_ms=*/1, /*told_read_ms=*/10, /*recompute_ms=*/10);
  const LeaseId lease = Open();
  const auto loaded = store_->leases().Load(lease);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_TRUE(Eventually([&] { return listener_->layers == kLarge.layers; }));
  for (const ResidentChunk& chunk : loaded->resident) {
    if (chunk.state == ResidentChunk::State::kReading) {
      EXPECT_TRUE(Holds(chunk.where)) << chunk.where.chunk;
    }
  }
  EXPECT_TRUE(Ask(lease, 0, 8).empty()) << "nothing is being read any more";
  store_->leases().Abort(lease);
}

// The lease ends while groups are read and others are not begun: nothing stays pinned.
TEST_F(StoreLoadTest, ALoadEndsWithItsLease) {
  WriteContext();
  Start(/*read_ms=*/2, /*told_read_ms=*/2, /*recompute_ms=*/2);
  for (const bool asks : {false, true}) {
    const LeaseId lease = Open();
    ASSERT_TRUE(store_->leases().Load(lease).ok());
    if (asks) Ask(lease, 0, 16);
    store_->leases().Break(lease);
    EXPECT_TRUE(Eventually([&] {
      const SlotPool::Counts space = store_->Stats().space;
      return space.claimed + space.quarantined == 0;
    }));
    EXPECT_EQ(store_->KvOf(context_).stored_bytes, kChunks * kLarge.ChunkBytes(KvFormat::kQ8));
  }
}

}  // namespace
}  // namespace withy::context_store
