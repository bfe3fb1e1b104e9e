#include "context_store/store.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <thread>

#include "base/fd_passing.h"
#include "base/ids.h"
#include "context_store/side_socket.h"
#include "context_store/store_testing.h"
#include "context_store/testing.h"
#include "policy/kv/kv_strategy.h"

namespace withy::context_store {
namespace {

using ::testing::HasSubstr;

uint64_t ChunkBytes() { return kKv.ChunkBytes(KvFormat::kQ8); }

class StoreTest : public ::testing::Test {
 protected:
  StoreTest() { store_ = OpenStore(dir_ / "db", {}); }

  std::unique_ptr<Store> OpenStore(const std::string& path, UniqueFd arena) {
    StoreOptions options;
    options.db.path = path;
    options.arena_bytes = kArenaBytes;
    options.kept_arena = std::move(arena);
    auto store = Store::Open(std::move(options), Clock::Real(), *recorder_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  LeaseId Open(uint64_t epoch, const std::string& context) {
    const auto opening = store_->leases().Open({epoch, "app", context, 1}, listener_);
    EXPECT_TRUE(opening.ok()) << opening.status();
    return opening->id;
  }
  // Connects to the side socket as a worker does. Returns the arena, or the reason for a refusal.
  absl::StatusOr<UniqueFd> Connect(const SideSocket& side, WorkerInstance worker, uint64_t epoch,
                                   ArenaOffer* offer, UniqueFd* connection) {
    connection->Reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strncpy(address.sun_path, side.path().c_str(), sizeof address.sun_path - 1);
    EXPECT_EQ(connect(connection->get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ArenaHello hello;
    hello.worker_instance = worker;
    hello.epoch = epoch;
    EXPECT_EQ(send(connection->get(), &hello, sizeof hello, MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof hello));
    return RecvFd(connection->get(), std::as_writable_bytes(std::span(offer, 1)));
  }

  TempDir dir_;
  std::unique_ptr<telemetry::Recorder> recorder_ = telemetry::Recorder::Disabled();
  std::shared_ptr<CountingListener> listener_ = std::make_shared<CountingListener>();
  std::unique_ptr<Store> store_;
};

TEST_F(StoreTest, ASecondSideSocketIsRefusedAndLeavesTheFirstAlone) {
  auto first = SideSocket::Start(dir_ / "arena.sock", store_->arena_keeper());
  ASSERT_TRUE(first.ok()) << first.status();
  const auto other = OpenStore(dir_ / "other", {});
  const absl::Status second =
      SideSocket::Start(dir_ / "arena.sock", other->arena_keeper()).status();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(second.message()), ::testing::HasSubstr("run_dir"));
  ArenaOffer offer;
  UniqueFd connection;
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  EXPECT_TRUE(Connect(**first, 7, epoch, &offer, &connection).ok());
  first->reset();
  EXPECT_TRUE(SideSocket::Start(dir_ / "arena.sock", other->arena_keeper()).ok())
      << "the first is gone";
}

TEST_F(StoreTest, TheSideSocketHandsOutTheVeryMemoryOfTheStore) {
  auto side = SideSocket::Start(dir_ / "arena.sock", store_->arena_keeper());
  ASSERT_TRUE(side.ok()) << side.status();
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  ArenaOffer offer;
  UniqueFd connection;
  const auto fd = Connect(**side, 7, epoch, &offer, &connection);
  ASSERT_TRUE(fd.ok()) << fd.status();
  EXPECT_EQ(offer.epoch, epoch);
  EXPECT_EQ(offer.arena_bytes, kArenaBytes);
  EXPECT_EQ(offer.block_bytes, kKv.BlockBytes(KvFormat::kQ8));
  EXPECT_LT(ftruncate(fd->get(), kArenaBytes / 2), 0) << "the arena cannot shrink";
  auto mapped = SharedMemory::Map(fd->get(), kArenaBytes, SharedMemory::Access::kReadWrite);
  ASSERT_TRUE(mapped.ok());

  // The store's stamp is visible in this mapping, and damage done here is visible to the store.
  const std::string context = store_->contexts().Create("app", {})->context_id;
  const LeaseId lease = Open(epoch, context);
  const auto claimed = store_->leases().Claim(lease, 0, 2);
  ASSERT_TRUE(claimed.ok());
  std::byte* block =
      engine::KvMemory{mapped->data(), mapped->size()}.At(claimed->chunks[1].slot.Block(kKv, 1));
  uint64_t stamp = 0;
  std::memcpy(&stamp, block, sizeof stamp);
  EXPECT_EQ(stamp, epoch);
  std::memset(block, 0, sizeof stamp);
  std::vector<ChunkIdentity> chunks(2, {std::string(32, 'i'), 16, 100});
  ASSERT_TRUE(store_->leases().Commit(lease, {{"text"}, chunks, 32, std::nullopt}).ok());
  EXPECT_EQ(store_->KvOf(context).resident_bytes, ChunkBytes()) << "one chunk is left";
  EXPECT_EQ(store_->Stats().faults, 1u);
}

TEST_F(StoreTest, AClosedConnectionFreesWhatItsWorkerHeld) {
  auto side = SideSocket::Start(dir_ / "arena.sock", store_->arena_keeper());
  ASSERT_TRUE(side.ok());
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  ArenaOffer offer;
  UniqueFd connection;
  ASSERT_TRUE(Connect(**side, 7, epoch, &offer, &connection).ok());
  const LeaseId broken = Open(epoch, "");
  ASSERT_TRUE(store_->leases().Claim(broken, 0, 2).ok());
  store_->leases().Break(broken);
  EXPECT_EQ(store_->Stats().space.quarantined, 2 * ChunkBytes());
  const LeaseId running = Open(epoch, "");
  ASSERT_TRUE(store_->leases().Claim(running, 0, 1).ok());
  connection.Reset();
  ASSERT_TRUE(Eventually([&] { return listener_->ended > 0; }));
  ASSERT_TRUE(Eventually([&] { return store_->Stats().space.quarantined == 0; }));
  EXPECT_EQ(store_->Stats().space.free, store_->Stats().space.total);
}

TEST_F(StoreTest, StrangersGetNoArena) {
  auto side = SideSocket::Start(dir_ / "arena.sock", store_->arena_keeper());
  ASSERT_TRUE(side.ok());
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  ArenaOffer offer;
  UniqueFd connection;
  EXPECT_TRUE(absl::IsUnavailable(Connect(**side, 7, epoch + 1, &offer, &connection).status()));
  EXPECT_TRUE(absl::IsUnavailable(Connect(**side, 0, epoch, &offer, &connection).status()));
  // Clients that send nothing or garbage do not block the next one.
  UniqueFd nonsense;
  ASSERT_TRUE(Connect(**side, 7, epoch, &offer, &nonsense).ok());
  ASSERT_EQ(send(nonsense.get(), "more", 4, MSG_NOSIGNAL), 4);
  EXPECT_TRUE(Connect(**side, 8, epoch, &offer, &connection).ok());
}

TEST_F(StoreTest, ALeaseSeesTheRecordAndTheNextOneWhatWasCommitted) {
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  const std::string context = store_->contexts().Create("app", {"", "", {"system"}})->context_id;
  const LeaseId first = Open(epoch, context);
  const auto waiting = store_->leases().Open({epoch, "app", context, 2}, listener_);
  ASSERT_TRUE(waiting.ok());
  EXPECT_FALSE(waiting->granted);
  EXPECT_THAT(store_->leases().Load(first)->segments, ::testing::ElementsAre("system"));
  ASSERT_TRUE(store_->leases().Claim(first, 0, 1).ok());
  LeaseOutcome outcome{{"q", "a"}, {{std::string(32, 'i'), 9, 100}}, 9, std::nullopt};
  EXPECT_EQ(*store_->leases().Commit(first, outcome), 1u);
  EXPECT_EQ(listener_->granted, 1);
  const auto loaded = store_->leases().Load(waiting->id);
  ASSERT_TRUE(loaded.ok());
  EXPECT_THAT(loaded->segments, ::testing::ElementsAre("system", "q", "a"));
  ASSERT_EQ(loaded->resident.size(), 1u);
  EXPECT_EQ(loaded->resident[0].identity.tokens, 9u);
  EXPECT_TRUE(absl::IsAborted(store_->deletions().DeleteContext("app", context)));
  store_->leases().Abort(waiting->id);
  EXPECT_TRUE(store_->deletions().DeleteContext("app", context).ok());
  EXPECT_EQ(store_->Stats().space.free, store_->Stats().space.total);
}

// A call that was cancelled before its answer.
TEST_F(StoreTest, KvAloneIsKeptBesideTheRecordAsItWas) {
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  const std::string context = store_->contexts().Create("app", {"", "", {"system"}})->context_id;
  const LeaseId cancelled = Open(epoch, context);
  ASSERT_TRUE(store_->leases().Claim(cancelled, 0, 2).ok());
  const std::vector<ChunkIdentity> chunks = {{std::string(32, 'i'), 16, 100},
                                             {std::string(32, 'j'), 9, 100}};
  EXPECT_EQ(*store_->leases().Commit(cancelled, {{}, chunks, 0, std::nullopt}), 0u);
  const LeaseId next = Open(epoch, context);
  const auto loaded = store_->leases().Load(next);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT(loaded->segments, ::testing::ElementsAre("system"));
  ASSERT_EQ(loaded->resident.size(), 2u);
  EXPECT_EQ(loaded->resident[1].identity.identity, std::string(32, 'j'));
  // A different prompt claims the second chunk for itself.
  ASSERT_TRUE(store_->leases().Claim(next, 1, 1).ok());
  const std::vector<ChunkIdentity> others = {chunks[0], {std::string(32, 'k'), 4, 100}};
  EXPECT_EQ(*store_->leases().Commit(next, {{"q", "a"}, others, 20, std::nullopt}), 1u);
  EXPECT_EQ(store_->KvOf(context).resident_bytes, 2 * ChunkBytes());
  EXPECT_EQ(store_->Stats().faults, 0u);
}

TEST_F(StoreTest, RemovingAnAppTakesAllOrNothing) {
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  const auto app = store_->apps().Bind("mail");
  ASSERT_TRUE(app.ok());
  const std::string a = store_->contexts().Create(app->app_id, {})->context_id;
  const std::string b = store_->contexts().Create(app->app_id, {})->context_id;
  const auto lease = store_->leases().Open({epoch, app->app_id, a, 1}, listener_);
  ASSERT_TRUE(lease.ok());
  EXPECT_TRUE(absl::IsAborted(store_->deletions().RemoveApp(app->app_id)));
  EXPECT_TRUE(store_->contexts().Find(app->app_id, b).ok());
  EXPECT_TRUE(store_->apps().Authenticate(app->token).ok());
  store_->leases().Abort(lease->id);
  ASSERT_TRUE(store_->deletions().RemoveApp(app->app_id).ok());
  EXPECT_TRUE(absl::IsUnauthenticated(store_->apps().Authenticate(app->token).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->contexts().Find(app->app_id, a).status()));
  EXPECT_TRUE(absl::IsNotFound(store_->deletions().RemoveApp(app->app_id)));
}

TEST_F(StoreTest, EpochsGoUpOverRestarts) {
  const uint64_t before = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  store_.reset();
  store_ = OpenStore(dir_ / "db", {});
  EXPECT_TRUE(absl::IsAborted(store_->leases().Open({before, "app", "", 1}, listener_).status()));
  EXPECT_GT(store_->arena_keeper().Attach(7, StoreGeometry())->epoch, before);
}

TEST_F(StoreTest, AKeptArenaIsUsedAgainButNotUnderTheHandsOfAFormerWorker) {
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  ASSERT_TRUE(
      store_->arena_keeper().ConnectWorker(7, epoch, getpid()).ok());  // this process is alive
  const std::string killed = dir_.Snapshot("db");
  UniqueFd kept(fcntl(store_->arena().fd(), F_DUPFD_CLOEXEC, 0));
  auto next = OpenStore(killed, std::move(kept));
  EXPECT_TRUE(next->arena().recovered());
  EXPECT_TRUE(absl::IsFailedPrecondition(next->arena_keeper().Attach(8, StoreGeometry()).status()));
  EXPECT_TRUE(next->arena_keeper().Attach(7, StoreGeometry()).ok());
  EXPECT_TRUE(next->arena_keeper().Attach(8, StoreGeometry()).ok());
}

// The store was restarted while the worker began anew in its process, as with another model.
TEST_F(StoreTest, AWorkerThatBeganAnewInItsProcessTakesAKeptArenaOver) {
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry(), getpid())->epoch;
  ASSERT_TRUE(store_->arena_keeper().ConnectWorker(7, epoch, getpid()).ok());
  UniqueFd kept(fcntl(store_->arena().fd(), F_DUPFD_CLOEXEC, 0));
  const std::string killed = dir_.Snapshot("db");
  {
    auto next = OpenStore(killed, UniqueFd(fcntl(kept.get(), F_DUPFD_CLOEXEC, 0)));
    EXPECT_TRUE(absl::IsFailedPrecondition(
        next->arena_keeper().Attach(8, StoreGeometry('n'), getppid()).status()))
        << "another process, while the one from before has the arena";
    const auto attached = next->arena_keeper().Attach(8, StoreGeometry('n'), getpid());
    ASSERT_TRUE(attached.ok()) << attached.status();
    EXPECT_TRUE(next->arena_keeper().ConnectWorker(8, attached->epoch, getpid()).ok());
  }
  // What was remembered of its earlier run is gone for good; the present run is remembered.
  auto last = OpenStore(killed, std::move(kept));
  EXPECT_TRUE(
      absl::IsFailedPrecondition(last->arena_keeper().Attach(9, StoreGeometry('n')).status()));
  EXPECT_TRUE(last->arena_keeper().Attach(8, StoreGeometry('n')).ok());
  EXPECT_TRUE(last->arena_keeper().Attach(9, StoreGeometry('n')).ok());
}

TEST_F(StoreTest, AnArenaOfAnotherSizeIsNotUsed) {
  auto memfd = CreateSealedMemfd("other", kArenaBytes * 2);
  ASSERT_TRUE(memfd.ok());
  auto next = OpenStore(dir_ / "other", *std::move(memfd));
  EXPECT_FALSE(next->arena().recovered());
}

class StoreOnDiskTest : public StoreTest {
 protected:
  StoreOnDiskTest() { Restart(); }

  void Restart() {
    store_.reset();
    StoreOptions options;
    options.db.path = dir_ / "records";
    options.arena_bytes = kArenaBytes;
    options.kv.directory = dir_ / "kv";
    options.key.path = dir_ / "key";
    options.kv_ratio_percent = ratio_percent_;
    options.load_policy = load_policy_;
    options.kv_costs = costs_;
    options.kv.segment_bytes = segment_bytes_;
    options.kv.max_bytes = disk_bytes_;
    options.probe_reads = probe_reads_;
    options.precision = strategy_.precision;
    options.compresses_ahead = strategy_.compresses_ahead;
    options.eviction = strategy_.eviction;
    options.writes_ahead = strategy_.writes_ahead;
    if (!strategy_.uses_disk) options.kv.directory.clear();
    options.disk_bytes = all_bytes_;
    auto store = Store::Open(std::move(options), Clock::Real(), *recorder_);
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    epoch_ = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  }
  std::byte* At(KvSlot slot) const { return store_->arena().memory().base + slot.offset(); }
  void Restart(const policy::KvStrategy& strategy) {
    strategy_ = strategy;
    Restart();
  }
  // A call that leaves `full` chunks of random numbers and one of `tail` tokens.
  void Fill(const std::string& context, uint32_t full, uint32_t tail = 0) {
    std::mt19937 random(full);
    const LeaseId lease = Open(epoch_, context);
    const auto claimed = store_->leases().Claim(lease, 0, full + (tail > 0 ? 1 : 0));
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    LeaseOutcome outcome;
    outcome.segments = {"text"};
    for (const ChunkSlot& chunk : claimed->chunks) {
      std::vector<float> token(16);
      for (int layer = 0; layer < kKv.layers; ++layer) {
        std::byte* block = store_->arena().At(chunk.slot.Block(kKv, layer));
        engine::KvBlockHeader header;
        std::memcpy(&header, block, sizeof header);
        header.format = KvFormat::kQ8;
        header.filled = 16;
        std::memcpy(block, &header, sizeof header);
        for (size_t i = sizeof header; i < kKv.BlockBytes(KvFormat::kQ8); ++i) {
          block[i] = static_cast<std::byte>(random() % 64);
        }
      }
      const uint32_t tokens = chunk.chunk < full ? 16 : tail;
      std::string identity = std::string(4, static_cast<char>('a' + chunk.chunk)) + context;
      identity.resize(32);
      ChunkIdentity& filled = outcome.chunks.emplace_back();
      filled.identity = std::move(identity);
      filled.tokens = tokens;
      filled.model_level_percent = 100;
      filled.density = 1;
      filled.density_rows = 1;
    }
    ASSERT_TRUE(store_->leases().Commit(lease, std::move(outcome)).ok());
    store_->idle().AwaitTidy();
  }
  // The bytes of a context's chunks behind their headers, as a call gets them.
  std::vector<std::string> ReadAll(const std::string& context) {
    std::vector<std::string> all;
    const LeaseId lease = Open(epoch_, context);
    const auto loaded = LoadWhole(*store_, lease, *listener_);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    for (const ResidentChunk& chunk : loaded->resident) all.push_back(BytesOf(chunk));
    store_->leases().Abort(lease);
    return all;
  }
  std::string BytesOf(const ResidentChunk& chunk) const {
    std::string bytes;
    const KvSlot slot = chunk.where.slot;
    for (int layer = 0; layer < kKv.layers; ++layer) {
      const std::byte* block = store_->arena().At(slot.Block(kKv, layer));
      engine::KvBlockHeader header;
      std::memcpy(&header, block, sizeof header);
      EXPECT_EQ(header.epoch, epoch_);
      EXPECT_EQ(header.format, slot.format);
      bytes.append(reinterpret_cast<const char*>(block) + sizeof header,
                   kKv.BlockBytes(slot.format) - sizeof header);
    }
    return bytes;
  }

  policy::KvStrategy strategy_;
  uint32_t ratio_percent_ = 50;
  policy::LoadPolicy load_policy_ = policy::LoadPolicy::kPrefix;
  KvCosts costs_;
  uint64_t segment_bytes_ = kKvSegmentBytes;
  uint64_t disk_bytes_ = uint64_t{1} << 30;
  bool probe_reads_ = false;
  uint64_t all_bytes_ = UINT64_MAX;  // StoreOptions::disk_bytes
  uint64_t epoch_ = 0;
};

// Rest changes nothing: what a call left is in the arena, on disk and after a restart bit for bit.
TEST_F(StoreOnDiskTest, AnIdleContextStaysExactAndComesBackAfterARestart) {
  const std::string context = store_->contexts().Create("app", {})->context_id;
  Fill(context, 60, 5);
  const ContextKv kv = store_->KvOf(context);
  EXPECT_EQ(kv.resident_bytes, 61 * ChunkBytes());
  EXPECT_EQ(kv.stored_bytes, kv.resident_bytes) << "all of it is on disk";
  EXPECT_EQ(kv.compressed_tokens, 0u);
  const std::vector<std::string> before = ReadAll(context);
  ASSERT_EQ(before.size(), 61u);
  Restart();
  EXPECT_EQ(store_->KvOf(context).resident_bytes, 0u);
  EXPECT_EQ(ReadAll(context), before);
}

TEST_F(StoreOnDiskTest, AContextThatIsCompressedAheadComesBackAfterARestart) {
  Restart({.compresses_ahead = true});
  const std::string context = store_->contexts().Create("app", {})->context_id;
  Fill(context, 60);
  const ContextKv kv = store_->KvOf(context);
  EXPECT_LE(kv.resident_bytes, 60 * ChunkBytes() * 60 / 100);
  EXPECT_EQ(kv.stored_bytes, kv.resident_bytes) << "all of it is on disk";
  const std::vector<std::string> before = ReadAll(context);
  ASSERT_EQ(before.size(), 60u);
  Restart();
  EXPECT_EQ(store_->KvOf(context).resident_bytes, 0u);
  EXPECT_EQ(store_->KvOf(context).tokens, 60u * 16);
  EXPECT_EQ(ReadAll(context), before);
  EXPECT_EQ(store_->KvOf(context).resident_bytes, kv.resident_bytes);
}

TEST_F(StoreOnDiskTest, AContextOfFewBitsGoesToFewerWhenTheRatioFalls) {
  ratio_percent_ = 75;
  Restart({.compresses_ahead = true});
  const std::string context = store_->contexts().Create("app", {})->context_id;
  Fill(context, 60);
  const uint64_t before = store_->KvOf(context).resident_bytes;
  const auto of_four_bits = [&] {
    const std::vector<ContextChunk> chunks = store_->ChunksOf(context);
    return std::count_if(chunks.begin(), chunks.end(), [](const ContextChunk& chunk) {
      return chunk.stored_format == KvFormat::kQ4;
    });
  };
  const auto fours = of_four_bits();
  ratio_percent_ = 57;
  Restart();
  // A call that computes nothing new. Contexts that are used again are worth another write.
  const LeaseId lease = Open(epoch_, context);
  const auto loaded = LoadWhole(*store_, lease, *listener_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(loaded->resident.size(), 60u);
  LeaseOutcome outcome;
  outcome.segments = {"text"};
  for (const ResidentChunk& chunk : loaded->resident) outcome.chunks.push_back(chunk.identity);
  ASSERT_TRUE(store_->leases().Commit(lease, std::move(outcome)).ok());
  store_->idle().AwaitTidy();
  const ContextKv kv = store_->KvOf(context);
  EXPECT_LT(kv.resident_bytes, before * 85 / 100);
  EXPECT_EQ(kv.stored_bytes, kv.resident_bytes) << "what is on disk has fewer bits, too";
  EXPECT_GT(fours, 0);
  EXPECT_LT(of_four_bits(), fours);
  EXPECT_EQ(ReadAll(context).size(), 60u);
}

TEST_F(StoreOnDiskTest, TheWorkerAndTheDiskTellWhatLoadsCost) {
  KvCosts costs;
  costs.load = {.recompute_fixed_ms = 1,
                .recompute_chunk_ms = 2,
                .recompute_position_ms = 3,
                .read_fixed_ms = 99,
                .read_mib_ms = 99};
  store_->costs().SetWorkerCosts(costs);
  EXPECT_EQ(store_->costs().loads().recompute_chunk_ms, 2);
  EXPECT_EQ(store_->costs().loads().read_mib_ms, UncalibratedLoadCosts().read_mib_ms);
  probe_reads_ = true;
  Restart();
  store_->idle().AwaitTidy();
  const policy::LoadCosts measured = store_->costs().loads();
  EXPECT_NE(measured.read_mib_ms, UncalibratedLoadCosts().read_mib_ms);
  EXPECT_GT(measured.read_mib_ms, 0);
  Restart();
  store_->idle().AwaitTidy();
  EXPECT_EQ(store_->costs().loads().read_mib_ms, measured.read_mib_ms) << "measured once";
}

TEST_F(StoreOnDiskTest, WhatLeavesTheArenaIsReadBack) {
  ratio_percent_ = 100;
  Restart();
  const std::string first = store_->contexts().Create("app", {})->context_id;
  const std::string second = store_->contexts().Create("app", {})->context_id;
  const auto most = static_cast<uint32_t>(kArenaBytes / ChunkBytes());
  Fill(first, most * 2 / 3);
  const std::vector<std::string> before = ReadAll(first);
  ASSERT_EQ(before.size(), most * 2 / 3);
  Fill(second, most * 2 / 3);
  EXPECT_LT(store_->KvOf(first).resident_bytes, before.size() * ChunkBytes());
  EXPECT_EQ(ReadAll(first), before);
}

// A plan of eq. 4: the worker gets slots for the front while the rest is read; this one asks for no
// more than the first ones.
TEST_F(StoreOnDiskTest, TheFrontOfAContextIsLeftToTheWorkerWhereReadingIsSlow) {
  ratio_percent_ = 100;
  Restart();
  const std::string context = store_->contexts().Create("app", {})->context_id;
  Fill(context, 40);
  const std::vector<std::string> before = ReadAll(context);
  load_policy_ = policy::LoadPolicy::kPrefix;
  costs_.load = {.recompute_chunk_ms = 1,
                 .read_mib_ms = 1.0 * (1 << 20) / static_cast<double>(ChunkBytes())};
  Restart();
  const auto opening = store_->leases().Open(
      {.epoch = epoch_, .app_id = "app", .context_id = context, .level_percent = 100}, listener_);
  ASSERT_TRUE(opening.ok()) << opening.status();
  listener_->layers = 0;
  const auto loaded = store_->leases().Load(opening->id);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_EQ(loaded->resident.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(loaded->resident[i].state == ResidentChunk::State::kToCompute, i < 2) << i;
  }
  ASSERT_TRUE(Eventually([&] { return listener_->layers == kKv.layers; }));
  for (size_t i = 2; i < 40; ++i) EXPECT_EQ(BytesOf(loaded->resident[i]), before[i]);
  // A worker that dies leaves everything on disk as it was.
  store_->leases().Break(opening->id);
  EXPECT_EQ(store_->KvOf(context).stored_bytes, 40 * ChunkBytes());
}

// What is damaged on disk is told while the rest arrives, and only what is lost is recomputed.
TEST_F(StoreOnDiskTest, DamageIsToldAndTheRestIsUsed) {
  ratio_percent_ = 100;
  Restart();
  const std::string context = store_->contexts().Create("app", {})->context_id;
  Fill(context, 10);
  const std::vector<std::string> before = ReadAll(context);
  store_.reset();
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "kv")) {
    std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
    for (uint64_t at = 64; at < entry.file_size(); at += 512) {
      file.seekp(static_cast<std::streamoff>(at));
      file.put('!');
    }
  }
  Restart();
  listener_->failed = UINT32_MAX;
  const LeaseId lease = Open(epoch_, context);
  const auto loaded = store_->leases().Load(lease);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->resident.size(), 10u);
  EXPECT_TRUE(Eventually([&] { return listener_->failed == 0; }));
  EXPECT_TRUE(Eventually([&] { return store_->KvOf(context).stored_bytes == 0; }));
  EXPECT_GT(store_->Stats().faults, 0u);
  store_->leases().Abort(lease);
  Fill(context, 10);  // computed again
  EXPECT_EQ(ReadAll(context), before);
}

// So that the next call computes only its own tokens.
TEST_F(StoreOnDiskTest, AnUnfinishedChunkIsReadBackToo) {
  const std::string context = store_->contexts().Create("app", {})->context_id;
  Fill(context, 20, 5);
  const std::vector<std::string> before = ReadAll(context);
  ASSERT_EQ(before.size(), 21u);
  Restart();
  EXPECT_EQ(store_->KvOf(context).tokens, 20u * 16 + 5);
  EXPECT_EQ(ReadAll(context), before);
}

TEST_F(StoreOnDiskTest, WithoutWritingAheadKvIsWrittenWhenItLeaves) {
  Restart({.precision = std::nullopt,
           .eviction = policy::EvictionPolicy::kChunkLru,
           .load = policy::LoadPolicy::kReadAll,
           .writes_ahead = false});
  const std::string first = store_->contexts().Create("app", {})->context_id;
  const std::string second = store_->contexts().Create("app", {})->context_id;
  const auto chunks = static_cast<uint32_t>(kArenaBytes / ChunkBytes() * 2 / 3);
  Fill(first, chunks);
  EXPECT_EQ(store_->KvOf(first).resident_bytes, chunks * ChunkBytes()) << "no compression";
  EXPECT_EQ(store_->KvOf(first).stored_bytes, 0u);
  const std::vector<std::string> before = ReadAll(first);
  Fill(second, chunks);
  EXPECT_TRUE(Eventually([&] { return store_->KvOf(first).stored_bytes > 0; }));
  const ContextKv kv = store_->KvOf(first);
  EXPECT_EQ(kv.tokens, chunks * 16);
  EXPECT_GT(kv.resident_bytes, 0u) << "only what was in the way has left";
  EXPECT_LT(kv.stored_bytes, chunks * ChunkBytes());
  EXPECT_EQ(ReadAll(first), before);
}

TEST_F(StoreOnDiskTest, WholeContextsLeaveWhereTheStrategySaysSo) {
  for (const bool uses_disk : {true, false}) {
    SCOPED_TRACE(uses_disk);
    Restart({.precision = std::nullopt,
             .eviction = policy::EvictionPolicy::kContextLru,
             .load = policy::LoadPolicy::kReadAll,
             .uses_disk = uses_disk,
             .writes_ahead = false});
    const std::string first = store_->contexts().Create("app", {})->context_id;
    const std::string second = store_->contexts().Create("app", {})->context_id;
    const auto chunks = static_cast<uint32_t>(kArenaBytes / ChunkBytes() * 2 / 3);
    Fill(first, chunks, 3);
    Fill(second, chunks);
    EXPECT_EQ(store_->KvOf(first).resident_bytes, 0u);
    EXPECT_EQ(store_->KvOf(first).tokens, uses_disk ? chunks * 16 + 3 : 0);
    EXPECT_EQ(store_->KvOf(second).tokens, chunks * 16);
  }
}

TEST_F(StoreOnDiskTest, AFullDiskGivesUpTheOldestKv) {
  segment_bytes_ = 64 << 10;
  disk_bytes_ = 4 * segment_bytes_;
  Restart();
  std::vector<std::string> contexts;
  for (int i = 0; i < 8; ++i) {
    contexts.push_back(store_->contexts().Create("app", {})->context_id);
    Fill(contexts.back(), 50);
  }
  EXPECT_EQ(store_->KvOf(contexts.front()).stored_bytes, 0u);
  EXPECT_GT(store_->KvOf(contexts.back()).stored_bytes, 0u);
  EXPECT_EQ(ReadAll(contexts.back()).size(), 50u);
  Restart();
  EXPECT_EQ(store_->KvOf(contexts.back()).tokens, 50u * 16);
  EXPECT_EQ(store_->KvOf(contexts.front()).tokens, 0u);
}

TEST_F(StoreOnDiskTest, KvGivesWayToTextAndTextIsKept) {
  segment_bytes_ = 64 << 10;
  all_bytes_ = 1 << 20;
  ratio_percent_ = 100;
  Restart();
  std::vector<std::string> contexts;
  for (int i = 0; i < 8; ++i) {
    contexts.push_back(store_->contexts().Create("app", {})->context_id);
    Fill(contexts.back(), 200);
  }
  EXPECT_EQ(store_->KvOf(contexts.front()).stored_bytes, 0u) << "the oldest KV gave way";
  EXPECT_GT(store_->KvOf(contexts.back()).stored_bytes, 0u);

  // Random text, which RocksDB cannot compress.
  const std::string big = store_->records().Create("app", {})->context_id;
  LeaseOutcome outcome;
  for (int i = 0; i < 4; ++i) outcome.segments.push_back(RandomBytes(300'000));
  ASSERT_TRUE(store_->leases().Commit(Open(epoch_, big), outcome).ok())
      << "the call that reaches the bound is answered";
  store_->idle().AwaitTidy();
  const absl::Status refused = store_->leases().Open({epoch_, "app", big, 1}, listener_).status();
  for (const absl::Status& status :
       {refused, store_->records().Create("app", {}).status(),
        store_->records().FindResult("app", "new", "digest").status()}) {
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                testing::AllOf(HasSubstr("the limit is 1048576"), HasSubstr("store.disk_bytes"),
                               HasSubstr("delete contexts")));
  }
  EXPECT_EQ(store_->contexts().ReadSegments("app", big)->size(), 4u);
  ASSERT_TRUE(store_->deletions().DeleteContext("app", big).ok());
  EXPECT_TRUE(store_->records().Create("app", {}).ok()) << "there is room again";
  EXPECT_EQ(store_->contexts().ReadSegments("app", contexts.front())->size(), 1u);
}

TEST_F(StoreOnDiskTest, ABackupIsMadeWhileItRunsAndRemovedAfterwards) {
  const std::string context = store_->contexts().Create("app", {})->context_id;
  Fill(context, 20);
  const auto backup = store_->records().backups().Begin(/*with_master_key=*/true);
  ASSERT_TRUE(backup.ok()) << backup.status();
  EXPECT_TRUE(std::filesystem::exists(backup->directory + "/records/CURRENT"));
  EXPECT_TRUE(std::filesystem::exists(backup->directory + "/master.key"));
  const auto without = store_->records().backups().Begin(/*with_master_key=*/false);
  ASSERT_TRUE(without.ok()) << without.status();
  EXPECT_FALSE(std::filesystem::exists(without->directory + "/master.key"));
  std::vector<std::string> ids = {backup->id, without->id};
  while (ids.size() < kMaxBackups) ids.push_back(store_->records().backups().Begin(true)->id);
  EXPECT_TRUE(absl::IsResourceExhausted(store_->records().backups().Begin(true).status()));
  ASSERT_TRUE(store_->records().keys().Rotate().ok());
  // As somebody would restore it.
  const std::string elsewhere = dir_ / "elsewhere";
  std::filesystem::copy(backup->directory, elsewhere, std::filesystem::copy_options::recursive);
  auto restored = OpenStore(elsewhere + "/records", {});
  EXPECT_EQ(restored->contexts().ReadSegments("app", context)->size(), 1u);
  for (const std::string& id : ids) EXPECT_TRUE(store_->records().backups().End(id).ok());
  EXPECT_TRUE(absl::IsNotFound(store_->records().backups().End(ids[0])));
  EXPECT_FALSE(std::filesystem::exists(backup->directory));
  EXPECT_TRUE(store_->records().backups().Begin(true).ok());
  Restart();
  EXPECT_FALSE(std::filesystem::exists(dir_ / "backups")) << "nobody ended it";
}

TEST_F(StoreOnDiskTest, ADeletedContextLeavesNoKv) {
  const std::string context = store_->contexts().Create("app", {})->context_id;
  Fill(context, 20);
  ASSERT_TRUE(store_->deletions().DeleteContext("app", context).ok());
  Restart();
  EXPECT_EQ(store_->KvOf(context).tokens, 0u);
}

TEST_F(StoreOnDiskTest, AnotherModelsKvIsNotUsed) {
  const std::string context = store_->contexts().Create("app", {})->context_id;
  Fill(context, 20);
  Geometry other = StoreGeometry();
  other.model_id = std::string(32, 'n');
  ASSERT_TRUE(store_->arena_keeper().Attach(7, other).ok());
  EXPECT_EQ(store_->KvOf(context).tokens, 0u);
  Restart();
  EXPECT_EQ(store_->KvOf(context).tokens, 0u) << "it was deleted";
}

TEST_F(StoreTest, ManyThreadsOnFewContextsLoseNothing) {
  const uint64_t epoch = store_->arena_keeper().Attach(7, StoreGeometry())->epoch;
  std::vector<std::string> contexts;
  for (int i = 0; i < 2; ++i) contexts.push_back(store_->contexts().Create("app", {})->context_id);
  std::atomic<uint32_t> committed{0};
  const auto work = [&](int thread) {
    for (int i = 0; i < 25; ++i) {
      const auto listener = std::make_shared<CountingListener>();
      const auto opening =
          store_->leases().Open({epoch, "app", contexts[static_cast<size_t>(i % 2)], 1}, listener);
      ASSERT_TRUE(opening.ok());
      ASSERT_TRUE(opening->granted || Eventually([&] { return listener->granted > 0; }));
      ASSERT_TRUE(store_->leases().Load(opening->id).ok());
      const auto first = static_cast<uint32_t>(store_->leases().Load(opening->id)->resident.size());
      const bool claimed = store_->leases().Claim(opening->id, first, 1).ok();
      if ((i + thread) % 5 == 0) {
        store_->leases().Break(opening->id);
        continue;
      }
      LeaseOutcome outcome;
      outcome.segments = {"text"};
      if (claimed) outcome.chunks.assign(first + 1, {std::string(32, 'i'), 16, 100});
      ASSERT_TRUE(store_->leases().Commit(opening->id, std::move(outcome)).ok());
      ++committed;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  size_t segments = 0;
  for (const std::string& id : contexts)
    segments += store_->contexts().ReadSegments("app", id)->size();
  EXPECT_EQ(segments, committed);
  EXPECT_EQ(store_->Stats().leases_open, 0u);
}

}  // namespace
}  // namespace withy::context_store
