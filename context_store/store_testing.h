// A store without gRPC and a worker that fills chunks, for tests of what outlives a store.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/crc32c.h"
#include "base/test_seed.h"
#include "context_store/store.h"
#include "context_store/testing.h"

namespace withy::context_store {

inline constexpr uint64_t kArenaBytes = 1 << 20;
inline constexpr engine::KvGeometry kKv{2, 1, 16};
inline constexpr WorkerInstance kWorker = 7;

inline Geometry StoreGeometry(char model = 'm') {
  return {std::string(32, model), 2, 1, 16, static_cast<uint32_t>(kKv.BlockBytes(KvFormat::kQ8))};
}

// Counts what it is told.
class CountingListener final : public LeaseListener {
 public:
  void OnGranted() override { ++granted; }
  void OnLoad(LoadEvent event) override {
    using Kind = policy::KvLoadEvent::Kind;
    if (event.what.kind == Kind::kLayers) layers = static_cast<int>(event.what.layers);
    if (event.what.kind == Kind::kFailed) failed = std::min(+failed, event.what.chunks.front());
    if (event.what.kind != Kind::kYielded) return;
    absl::MutexLock lock(&mutex);
    yielded.push_back(std::move(event.slots));
  }
  void OnClaimed(std::vector<ChunkSlot> chunks, std::string) override {
    absl::MutexLock lock(&mutex);
    late_chunks += static_cast<int>(chunks.size());
    late.insert(late.end(), chunks.begin(), chunks.end());
  }
  void OnEnded(const absl::Status&) override { ++ended; }
  std::atomic<int> granted{0};
  std::atomic<int> layers{0};  // that have arrived
  std::atomic<uint32_t> failed{UINT32_MAX};
  std::atomic<int> ended{0};
  std::atomic<int> late_chunks{0};  // of claims that waited
  absl::Mutex mutex;
  std::vector<std::vector<ChunkSlot>> yielded ABSL_GUARDED_BY(mutex);  // answers to Yield
  std::vector<ChunkSlot> late ABSL_GUARDED_BY(mutex);                  // the late chunks
};

// Loads the context of a lease whose listener is `listener`, and waits until everything that is
// read has arrived. Chunks from the first lost one on are left out.
inline absl::StatusOr<LoadedContext> LoadWhole(Store& store, LeaseId lease,
                                               CountingListener& listener) {
  listener.layers = 0;
  listener.failed = UINT32_MAX;
  absl::StatusOr<LoadedContext> loaded = store.leases().Load(lease);
  if (!loaded.ok()) return loaded;
  const bool loading =
      std::any_of(loaded->resident.begin(), loaded->resident.end(),
                  [](const auto& chunk) { return chunk.state == ResidentChunk::State::kReading; });
  EXPECT_TRUE(!loading ||
              Eventually([&] { return listener.layers == kKv.layers || listener.failed == 0; }));
  if (loaded->resident.size() > listener.failed) loaded->resident.resize(listener.failed);
  return loaded;
}

class StoreFixture : public ::testing::Test {
 protected:
  std::unique_ptr<Store> OpenStore(const std::string& records, const std::string& kv,
                                   UniqueFd arena) {
    StoreOptions options;
    options.db.path = records;
    options.arena_bytes = kArenaBytes;
    if (on_disk_) {
      options.kv.directory = kv;
      options.key.path = dir_ / "key";
    }
    options.kv.segment_bytes = segment_bytes_;
    options.kv.max_bytes = disk_bytes_;
    options.kv.bytes_per_second = bytes_per_second_;
    options.probe_reads = probe_reads_;
    options.clean_up = clean_up_;
    options.last_writes = last_writes_;
    options.kv_daily_write_bytes = daily_bytes_;
    options.kv_ratio_percent = ratio_percent_;
    options.compresses_ahead = compresses_ahead_;
    options.pressure = pressure_;
    options.kept_arena = std::move(arena);
    auto store = Store::Open(std::move(options), Clock::Real(), *recorder_);
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  void Start() {
    records_ = on_disk_ ? "db" : "db-alone";
    kv_ = "kv";
    store_ = OpenStore(dir_ / records_, dir_ / kv_, {});
    Attach();
  }
  void Attach(char model = 'm') {
    const auto attached = store_->arena_keeper().Attach(kWorker, StoreGeometry(model));
    ASSERT_TRUE(attached.ok()) << attached.status();
    epoch_ = attached->epoch;
  }
  // Ends the store as a kill at this moment would, and starts the next one with the arena as it is.
  // `attach`: its worker comes back, too.
  void KillAndStart(bool attach = true) {
    UniqueFd arena;
    std::vector<std::string> names = {records_};
    if (on_disk_) names.push_back(kv_);
    const auto copies = dir_.SnapshotOf(names, [&] { return CopyArena(&arena); });
    const auto name_of = [&](const std::string& path) {
      return path.substr(dir_.path().size() + 1);
    };
    records_ = name_of(copies[0]);
    if (on_disk_) kv_ = name_of(copies[1]);
    store_ = OpenStore(dir_ / records_, dir_ / kv_, std::move(arena));
    ASSERT_TRUE(store_->arena().recovered());
    if (attach) Attach();
  }
  // Ends the store and starts the next one; nobody kept the arena.
  void Restart() {
    store_.reset();
    store_ = OpenStore(dir_ / records_, dir_ / kv_, {});
    Attach();
  }
  // False where a background thread of the store wrote meanwhile: a kill leaves no such mixture.
  bool CopyArena(UniqueFd* arena) const {
    struct stat info {};
    EXPECT_EQ(fstat(store_->arena().fd(), &info), 0);
    const auto bytes = static_cast<uint64_t>(info.st_size);
    auto copy = CreateSealedMemfd("copy", bytes);
    auto from = SharedMemory::Map(store_->arena().fd(), bytes, SharedMemory::Access::kReadOnly);
    auto to = SharedMemory::Map(copy->get(), bytes, SharedMemory::Access::kReadWrite);
    std::memcpy(to->data(), from->data(), bytes);
    *arena = *std::move(copy);
    return std::memcmp(to->data(), from->data(), bytes) == 0;
  }

  LeaseId Open(const std::string& context) {
    // A lease's own: what the last one's load told may still be on its way.
    listener_ = std::make_shared<CountingListener>();
    const auto opening = store_->leases().Open({epoch_, "app", context, 1}, listener_);
    EXPECT_TRUE(opening.ok()) << opening.status();
    return opening->id;
  }
  absl::StatusOr<LoadedContext> Load(LeaseId lease) {
    return LoadWhole(*store_, lease, *listener_);
  }
  // Fills a chunk as a worker does; returns its identity.
  ChunkIdentity Write(KvSlot slot, uint32_t tokens) {
    std::string identity(32, '\0');
    for (char& c : identity) c = static_cast<char>(random_());
    for (int layer = 0; layer < kKv.layers; ++layer) {
      std::byte* block = store_->arena().At(slot.Block(kKv, layer));
      const size_t bytes = kKv.BlockBytes(KvFormat::kQ8);
      for (size_t i = sizeof(engine::KvBlockHeader); i < bytes; ++i) {
        block[i] = static_cast<std::byte>(random_() % 64);
      }
      engine::KvBlockHeader header{};
      header.epoch = epoch_;
      std::memcpy(header.identity, identity.data(), identity.size());
      header.layer = static_cast<uint32_t>(layer);
      header.level = 100;
      header.format = KvFormat::kQ8;
      header.filled = static_cast<uint8_t>(tokens);
      header.checksum = Crc32c(0, {block + sizeof header, bytes - sizeof header});
      std::memcpy(block, &header, sizeof header);
    }
    return {identity, tokens, 100};
  }
  // A call that adds `full` chunks and an unfinished one.
  void Talk(const std::string& context, uint32_t full, uint32_t tail = 0) {
    const LeaseId lease = Open(context);
    const auto loaded = Load(lease);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    LeaseOutcome outcome;
    outcome.segments = {"text"};
    for (const ResidentChunk& chunk : loaded->resident) {
      if (chunk.identity.tokens == 16) outcome.chunks.push_back(chunk.identity);
    }
    const auto first = static_cast<uint32_t>(outcome.chunks.size());
    const auto claimed = store_->leases().Claim(lease, first, full + (tail > 0 ? 1 : 0));
    ASSERT_TRUE(claimed.ok()) << claimed.status();
    for (const ChunkSlot& chunk : claimed->chunks) {
      outcome.chunks.push_back(Write(chunk.slot, chunk.chunk < first + full ? 16 : tail));
    }
    ASSERT_TRUE(store_->leases().Commit(lease, std::move(outcome)).ok());
    store_->idle().AwaitTidy();
  }
  // What a call finds in the arena: a sum of each chunk's identity and bytes, without the epochs.
  std::vector<std::string> Resident(const std::string& context) {
    std::vector<std::string> all;
    const LeaseId lease = Open(context);
    const auto loaded = Load(lease);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    for (const ResidentChunk& chunk : loaded->resident) {
      std::string bytes = chunk.identity.identity;
      for (int layer = 0; layer < kKv.layers; ++layer) {
        const std::byte* block = store_->arena().At(chunk.where.slot.Block(kKv, layer));
        bytes.append(reinterpret_cast<const char*>(block) + sizeof(uint64_t),
                     kKv.BlockBytes(chunk.where.slot.format) - sizeof(uint64_t));
      }
      const uint32_t sum = Crc32c(0, std::as_bytes(std::span(bytes)));
      all.push_back(std::to_string(chunk.where.chunk) + ":" + std::to_string(sum));
    }
    store_->leases().Abort(lease);
    return all;
  }
  // Work that a kill interrupts: a lease on one of the contexts with claims half written.
  void LeaveHalfWritten(const std::vector<std::string>& contexts) {
    const LeaseId lease = Open(contexts[random_() % contexts.size()]);
    const auto loaded = Load(lease);
    const auto first = static_cast<uint32_t>(random_() % (loaded->resident.size() + 1));
    if (const auto claimed = store_->leases().Claim(lease, first, 3); claimed.ok()) {
      Write(claimed->chunks[0].slot, 16);
      store_->arena().At(claimed->chunks[1].slot.Block(kKv, 0))[100] ^= std::byte{1};
    }
  }
  // By context: of its chunks.
  std::map<std::string, std::vector<std::string>> IdentitiesOf(
      const std::vector<std::string>& contexts) const {
    std::map<std::string, std::vector<std::string>> identities;
    for (const std::string& context : contexts) {
      for (const ContextChunk& chunk : store_->ChunksOf(context)) {
        identities[context].push_back(chunk.identity.identity);
      }
    }
    return identities;
  }
  std::string Create() { return store_->contexts().Create("app", {})->context_id; }
  uint64_t ResidentBytes(const std::string& context) {
    return store_->KvOf(context).resident_bytes;
  }

  TempDir dir_;
  std::unique_ptr<telemetry::Recorder> recorder_ = telemetry::Recorder::Disabled();
  std::shared_ptr<CountingListener> listener_ = std::make_shared<CountingListener>();
  std::mt19937 random_{TestSeed()};
  bool on_disk_ = true;
  PressureOptions pressure_;
  uint64_t segment_bytes_ = kKvSegmentBytes;
  uint64_t disk_bytes_ = uint64_t{1} << 30;
  uint64_t daily_bytes_ = UINT64_MAX;
  uint64_t bytes_per_second_ = 0;
  bool probe_reads_ = false;
  CleanUp::Pauses clean_up_;
  absl::Duration last_writes_ = StoreOptions().last_writes;
  uint32_t ratio_percent_ = 50;
  bool compresses_ahead_ = false;
  uint64_t epoch_ = 0;
  std::string records_, kv_;  // names in dir_
  std::unique_ptr<Store> store_;
};

}  // namespace withy::context_store
