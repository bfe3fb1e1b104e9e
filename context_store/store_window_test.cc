// Layers with a sliding window keep only their windows where room is needed and on disk: how many
// bytes that saves, and that no call is given less than its tokens read, whatever has happened to
// the context before.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "context_store/disk/kv_storage.h"
#include "context_store/records/context_keys.h"
#include "context_store/store_testing.h"
#include "policy/kv/kv_window.h"

namespace withy::context_store {
namespace {

// Of six layers the last one has no window, as in Gemma 3.
constexpr int kLayers = 6;
constexpr uint32_t kReach = 64;
constexpr uint32_t kTokens = kChunkTokens;

Geometry WindowGeometry(uint32_t reach = kReach) {
  Geometry geometry{std::string(32, 'w'), kLayers, 1, 16, 0, reach};
  for (int layer = 0; layer + 1 < kLayers && reach > 0; ++layer) geometry.windowed.Add(layer);
  geometry.block_bytes = static_cast<uint32_t>(geometry.kv().BlockBytes(KvFormat::kQ8));
  return geometry;
}
const engine::KvGeometry kWide = WindowGeometry().kv();
const uint64_t kWholeBytes = kWide.ChunkBytes(KvFormat::kQ8);
const uint64_t kGlobalBytes = kWide.ChunkBytes(KvFormat::kQ8Global);

// A context's text, one number for a chunk. The number of a chunk and those before it give its
// identity, which gives its bytes: computed again they are the same.
using Text = std::vector<uint32_t>;

std::vector<std::string> NamesOf(const Text& text) {
  std::vector<std::string> identities;
  uint64_t state = 1;
  for (const uint32_t word : text) {
    std::mt19937_64 random(state = state * 6364136223846793005u + word);
    std::string& identity = identities.emplace_back(kIdentityBytes, '\0');
    for (char& c : identity) c = static_cast<char>(random());
  }
  return identities;
}
std::string PayloadOf(const std::string& identity, int layer) {
  uint64_t seed = 0;
  std::memcpy(&seed, identity.data(), sizeof seed);
  std::mt19937_64 random(seed + static_cast<uint64_t>(layer));
  std::string bytes(kWide.BlockBytes() - sizeof(engine::KvBlockHeader), '\0');
  for (char& c : bytes) c = static_cast<char>(random() % 64);
  return bytes;
}

class StoreWindowTest : public StoreFixture {
 protected:
  void StartWindowed(uint32_t reach = kReach) {
    reach_ = reach;
    records_ = "db";
    kv_ = "kv";
    store_ = OpenStore(dir_ / records_, dir_ / kv_, {});
    AttachWindowed();
  }
  void AttachWindowed() {
    const auto attached = store_->arena_keeper().Attach(kWorker, WindowGeometry(reach_));
    ASSERT_TRUE(attached.ok()) << attached.status();
    epoch_ = attached->epoch;
    if (!recomputes_) return;
    // Recomputing some chunks and reading the others ends soonest.
    store_->costs().SetWorkerCosts({.load = {.recompute_chunk_ms = 1}});
    store_->costs().SetReading(/*fixed_ms=*/0, /*mib_ms=*/500);
  }
  void KillWindowed() {
    KillAndStart(/*attach=*/false);
    AttachWindowed();
  }
  void RestartWindowed() {
    store_.reset();
    store_ = OpenStore(dir_ / records_, dir_ / kv_, {});
    AttachWindowed();
  }
  void Compute(KvSlot slot, const std::string& identity) {
    for (int layer = 0; layer < kLayers; ++layer) {
      std::byte* block = store_->arena().At(slot.Block(kWide, layer));
      const std::string payload = PayloadOf(identity, layer);
      engine::KvBlockHeader header{};
      header.epoch = epoch_;
      std::memcpy(header.identity, identity.data(), identity.size());
      header.layer = static_cast<uint32_t>(layer);
      header.level = 100;
      header.format = KvFormat::kQ8;
      header.filled = kTokens;
      std::memcpy(block + sizeof header, payload.data(), payload.size());
      header.checksum = Crc32c(0, {block + sizeof header, kWide.BlockBytes() - sizeof header});
      std::memcpy(block, &header, sizeof header);
    }
  }
  // Chunks that the store gives a call, once all of them have arrived.
  ResidentChunks Given(LeaseId lease) {
    const auto loaded = store_->leases().Load(lease);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    ResidentChunks chunks = loaded->resident;
    const bool reads = std::any_of(chunks.begin(), chunks.end(), [](const ResidentChunk& chunk) {
      return chunk.state == ResidentChunk::State::kReading;
    });
    EXPECT_TRUE(!reads || Eventually([&] {
      return listener_->layers == kLayers || listener_->failed != UINT32_MAX;
    }));
    // A worker would go on with what is before the lost chunk; here it begins anew.
    if (listener_->failed != UINT32_MAX) chunks.clear();
    return chunks;
  }
  // As a worker does: the chunks with which `text` begins and behind which it can go on; those that
  // it is to compute are computed. What tokens behind them read is checked.
  uint32_t Use(const ResidentChunks& chunks, const std::vector<std::string>& identities) {
    uint32_t use = 0;
    std::vector<bool> lacks;
    for (; use < std::min(chunks.size(), identities.size()); ++use) {
      const ResidentChunk& chunk = chunks[use];
      if (chunk.identity.identity != identities[use]) break;
      if (chunk.state == ResidentChunk::State::kToCompute) {
        EXPECT_TRUE(policy::CanContinue(lacks, use * kTokens, reach_)) << "chunk " << use;
        Compute(chunk.where.slot, identities[use]);
        ++recomputed_;
      }
      lacks.push_back(LacksBlocks(chunk.where.slot.format));
    }
    use = policy::ContinuableChunks(lacks, use, reach_);
    used_lacking_ = 0;
    for (uint32_t i = 0; i < use; ++i) {
      const KvSlot slot = chunks[i].where.slot;
      used_lacking_ += LacksBlocks(slot.format) ? 1 : 0;
      if (engine::BlockFormat(slot.format) != KvFormat::kQ8) continue;  // fewer bits
      for (int layer = 0; layer < kLayers; ++layer) {
        const engine::KvBlockName name = slot.Block(kWide, layer);
        if (!name.exists()) {
          EXPECT_LT(layer, kLayers - 1);
          EXPECT_LE((i + 1) * kTokens + reach_, use * kTokens) << "chunk " << i << " is read";
          continue;
        }
        const std::string want = PayloadOf(identities[i], layer);
        EXPECT_EQ(0, std::memcmp(store_->arena().At(name) + sizeof(engine::KvBlockHeader),
                                 want.data(), want.size()))
            << "chunk " << i << ", layer " << layer;
      }
    }
    return use;
  }
  // Waits where slots are still being read into.
  std::vector<ChunkSlot> Claim(LeaseId lease, uint32_t first, uint32_t count) {
    const auto claimed = store_->leases().Claim(lease, first, count);
    EXPECT_TRUE(claimed.ok()) << claimed.status();
    if (!claimed.ok()) return {};
    if (!claimed->waits) return claimed->chunks;
    EXPECT_TRUE(Eventually([&] { return listener_->late_chunks > 0; }));
    absl::MutexLock lock(&listener_->mutex);
    return listener_->late;
  }
  // A call after which the context's text is `text`. Returns the chunks that it did not compute.
  uint32_t Say(const std::string& context, const Text& text) {
    const std::vector<std::string> identities = NamesOf(text);
    // One that this call alone has: what the last one's load told may still be on its way.
    listener_ = std::make_shared<CountingListener>();
    const auto opening =
        store_->leases().Open({.epoch = epoch_,
                               .app_id = "app",
                               .context_id = context,
                               .call_id = 1,
                               .level_percent = 100,
                               .need_tokens = static_cast<uint32_t>(text.size()) * kTokens},
                              listener_);
    EXPECT_TRUE(opening.ok() && opening->granted) << opening.status();
    const ResidentChunks given = Given(opening->id);
    uint32_t use = Use(given, identities);
    if (use < identities.size()) {
      const std::vector<std::string> rest(identities.begin() + use, identities.end());
      const auto shared = store_->leases().Share(opening->id, use, {rest});
      EXPECT_TRUE(shared.ok()) << shared.status();
      ResidentChunks all(given.begin(), given.begin() + use);
      all.insert(all.end(), shared->begin(), shared->end());
      use = std::max(use, Use(all, identities));
    }
    lacking_ += used_lacking_;
    if (use < identities.size()) {
      const auto count = static_cast<uint32_t>(identities.size()) - use;
      const std::vector<ChunkSlot> claimed = Claim(opening->id, use, count);
      EXPECT_EQ(claimed.size(), count);
      if (claimed.size() < count) {
        store_->leases().Abort(opening->id);
        return use;
      }
      for (const ChunkSlot& chunk : claimed) Compute(chunk.slot, identities[chunk.chunk]);
    }
    LeaseOutcome outcome;
    outcome.segments = {"text"};
    for (const std::string& identity : identities) {
      outcome.chunks.push_back({identity, kTokens, 100, 0.5f, 1});
    }
    const auto committed = store_->leases().Commit(opening->id, std::move(outcome));
    EXPECT_TRUE(committed.ok()) << committed.status();
    return use;
  }
  // Damages some of the KV on disk.
  void FlipBits() {
    for (const auto& entry : std::filesystem::directory_iterator(dir_ / kv_)) {
      std::error_code gone;  // a segment may be dropped meanwhile
      const uintmax_t bytes = entry.file_size(gone);
      if (gone || bytes == 0) continue;
      for (uint32_t flips = random_() % 3; flips > 0; --flips) {
        FlipBit(entry.path(), random_() % (8 * bytes));
      }
    }
  }
  Text NewText(uint32_t chunks) {
    Text text;
    Extend(chunks, &text);
    return text;
  }
  void Extend(uint32_t chunks, Text* text) {
    for (uint32_t i = 0; i < chunks; ++i) text->push_back(static_cast<uint32_t>(random_()));
  }

  uint32_t reach_ = kReach;
  bool recomputes_ = false;
  uint32_t recomputed_ = 0;    // chunks that were in the load's plan
  uint32_t used_lacking_ = 0;  // of the last Use: chunks without all blocks
  uint32_t lacking_ = 0;       // chunks without all blocks that calls used
};

constexpr uint32_t kLong = 190;  // chunks of a context that nearly fills the arena
const uint32_t kHidden = policy::HiddenChunks(kLong * kTokens, kReach);
const uint64_t kNarrowBytes = kHidden * kGlobalBytes + (kLong - kHidden) * kWholeBytes;

TEST_F(StoreWindowTest, AContextTakesAQuarterOfTheArenaAndOfTheDisk) {
  ASSERT_EQ(kHidden, kLong - 20);
  StartWindowed();
  const std::string first = Create(), second = Create();
  const Text one = NewText(kLong), two = NewText(kLong);
  Say(first, one);
  store_->idle().AwaitTidy();
  EXPECT_EQ(store_->KvOf(first).resident_bytes, kLong * kWholeBytes) << "there is room";
  EXPECT_EQ(store_->KvOf(first).stored_bytes, kNarrowBytes);
  EXPECT_LT(4 * kNarrowBytes, kLong * kWholeBytes + kWholeBytes * 4);
  const uint64_t written = store_->Stats().disk.segments.written_bytes;
  EXPECT_LT(written, kNarrowBytes * 21 / 20 + 16384);

  // Without the blocks that windows hide both fit.
  Say(second, two);
  store_->idle().AwaitTidy();
  EXPECT_EQ(store_->Stats().evicted_chunks, 0u);
  EXPECT_EQ(store_->Stats().demoted_chunks, 0u);
  EXPECT_LT(store_->KvOf(first).resident_bytes, kLong * kWholeBytes / 3);
  const BytesByFormat bytes = store_->Stats().bytes;
  EXPECT_EQ(bytes.resident[static_cast<size_t>(KvFormat::kQ8)] +
                bytes.resident[static_cast<size_t>(KvFormat::kQ8Global)],
            store_->KvOf(first).resident_bytes + store_->KvOf(second).resident_bytes);
  EXPECT_GT(bytes.resident[static_cast<size_t>(KvFormat::kQ8Global)], 0u);
  EXPECT_EQ(bytes.stored[static_cast<size_t>(KvFormat::kQ8Global)], 2 * kHidden * kGlobalBytes);
  Text more = one;
  Extend(2, &more);
  EXPECT_EQ(Say(first, more), kLong) << "nothing is computed again";
  EXPECT_GT(lacking_, 0u);

  // It comes back by as many bytes.
  RestartWindowed();
  const uint64_t before = store_->Stats().disk.segments.read_bytes;
  Extend(2, &more);
  EXPECT_EQ(Say(first, more), kLong + 2);
  EXPECT_LT(store_->Stats().disk.segments.read_bytes - before, kNarrowBytes * 5 / 4);
}

TEST_F(StoreWindowTest, WithoutWindowsNothingIsLeftOut) {
  StartWindowed(/*reach=*/0);
  const std::string context = Create(), other = Create();
  Say(context, NewText(kLong));
  store_->idle().AwaitTidy();
  EXPECT_EQ(store_->KvOf(context).stored_bytes, kLong * kWholeBytes);
  Say(other, NewText(kLong));
  EXPECT_EQ(store_->Stats().bytes.resident[static_cast<size_t>(KvFormat::kQ8Global)], 0u);
}

// What was written before it was hidden is read without what is hidden now.
TEST_F(StoreWindowTest, OldCopiesAreReadWithoutWhatIsHiddenNow) {
  StartWindowed();
  const std::string context = Create();
  Text text;
  for (int turn = 0; turn < 10; ++turn) {
    Extend(15, &text);
    Say(context, text);
    store_->idle().AwaitTidy();
  }
  EXPECT_EQ(store_->KvOf(context).stored_bytes, 150 * kWholeBytes) << "nothing is written twice";
  RestartWindowed();
  Extend(1, &text);
  EXPECT_EQ(Say(context, text), 150u);
  EXPECT_EQ(lacking_, 130u);
  EXPECT_LT(store_->Stats().disk.segments.read_bytes, 150 * kWholeBytes / 2);
  EXPECT_LT(store_->KvOf(context).resident_bytes, 150 * kWholeBytes / 3);
}

// The plan of a load recomputes the first chunks, which then lack nothing; what is read behind them
// lacks what windows hide.
TEST_F(StoreWindowTest, TheFirstChunksAreRecomputedWhereThatIsFaster) {
  StartWindowed();
  const std::string context = Create();
  Text text = NewText(kLong);
  Say(context, text);
  store_->idle().AwaitTidy();
  recomputes_ = true;
  RestartWindowed();
  Extend(1, &text);
  EXPECT_EQ(Say(context, text), kLong);
  EXPECT_GT(recomputed_, 3u);
  EXPECT_GT(lacking_, 3u);
}

// An edit within the slack costs nothing; one before it costs all: no layer's window is whole
// there.
TEST_F(StoreWindowTest, AnEditGoesOnWhereWindowsAreWhole) {
  StartWindowed();
  const std::string context = Create();
  Text text = NewText(kLong);
  Say(context, text);
  store_->idle().AwaitTidy();
  RestartWindowed();
  text.resize(kLong - policy::kWindowSlackTokens / kTokens);
  Extend(3, &text);
  EXPECT_EQ(Say(context, text), kLong - policy::kWindowSlackTokens / kTokens);
  text.resize(60);
  Extend(3, &text);
  EXPECT_EQ(Say(context, text), 0u);
  // From there on it is whole again, on disk, too.
  store_->idle().AwaitTidy();
  RestartWindowed();
  text.resize(50);
  Extend(1, &text);
  EXPECT_EQ(Say(context, text), 50u);
}

// A whole chunk whose copy lacks blocks is written whole when the context has become shorter.
TEST_F(StoreWindowTest, WhatIsHiddenNoMoreIsWrittenWhole) {
  StartWindowed();
  const std::string context = Create();
  Text text = NewText(kLong);
  Say(context, text);
  store_->idle().AwaitTidy();
  text.resize(30);
  EXPECT_EQ(Say(context, text), 30u) << "the arena has all blocks";
  store_->idle().AwaitTidy();
  EXPECT_EQ(store_->KvOf(context).stored_bytes, 10 * kGlobalBytes + 20 * kWholeBytes);
  RestartWindowed();
  Extend(1, &text);
  EXPECT_EQ(Say(context, text), 30u);
}

// A store that is killed goes on with what lacks blocks in its kept arena, and, without the arena,
// with what is on disk.
TEST_F(StoreWindowTest, AKilledStoreKeepsWhatLacksBlocks) {
  StartWindowed();
  const std::string first = Create(), second = Create();
  Text one = NewText(100), two = NewText(100);
  Say(first, one);
  Say(second, two);
  store_->idle().AwaitTidy();
  store_->idle().MakeRoom(kArenaBytes);
  const uint64_t resident = store_->KvOf(first).resident_bytes;
  ASSERT_EQ(resident, 80 * kGlobalBytes + 20 * kWholeBytes);
  KillWindowed();
  EXPECT_EQ(store_->KvOf(first).resident_bytes, resident);
  EXPECT_EQ(store_->Stats().unkept_chunks, 0u);
  EXPECT_EQ(store_->Stats().kept_chunks, 200u);
  Extend(2, &one);
  EXPECT_EQ(Say(first, one), 100u);
  EXPECT_EQ(store_->Stats().read_chunks, 0u);
  EXPECT_EQ(lacking_, 80u);
  KillWindowed();
  RestartWindowed();
  Extend(2, &two);
  EXPECT_EQ(Say(second, two), 100u);
  EXPECT_EQ(store_->Stats().read_chunks, 100u);
}

// A chunk that is lost behind others that lack blocks takes these with it: nothing could compute
// it.
TEST_F(StoreWindowTest, WhatCannotBeComputedTakesWhatItWouldReadWithIt) {
  StartWindowed();
  const std::string context = Create();
  Text text = NewText(kLong);
  Say(context, text);
  store_->idle().AwaitTidy();
  RestartWindowed();
  for (const auto& file : std::filesystem::directory_iterator(dir_ / kv_)) {
    std::filesystem::resize_file(file.path(), file.file_size() / 2);
  }
  Extend(1, &text);
  const uint32_t used = Say(context, text);
  EXPECT_TRUE(used == 0 || used == kLong) << used;
  store_->idle().AwaitTidy();
  Extend(1, &text);
  EXPECT_EQ(Say(context, text), kLong + 1);
}

// Index records that name what this geometry does not have: nothing of it is used.
TEST_F(StoreWindowTest, ImpossibleExtentsOfAnIndexAreLeftAlone) {
  const auto db = *RecordDb::Open({.path = dir_ / "db"});
  const auto keys = *ContextKeys::Open(*db, {dir_ / "key"});
  db->UseKeys(*keys);
  std::filesystem::create_directory(dir_ / "kv");
  const auto adopted = [&](uint8_t format, uint32_t layers, uint32_t reach) {
    std::ofstream(dir_ / "kv/0000000000000001.kv") << std::string(1 << 20, 'x');
    KvContextIndex index;
    index.model = ToBytes32(WindowGeometry().model_id);
    KvExtent& extent = index.extents.emplace_back();
    extent.id = extent.segment = 1;
    extent.format = format;
    extent.layers = layers;
    extent.block_bytes = static_cast<uint32_t>(kWide.BlockBytes());
    extent.protection = KvProtection::kAes256Gcm;
    extent.identities.push_back(ToBytes32(std::string(kIdentityBytes, 'i')));
    index.chunks.push_back({.identity = extent.identities[0],
                            .tokens = 16,
                            .level_percent = 100,
                            .format = format,
                            .extent = 0});
    RecordBatch batch;
    batch.Put(KvIndexKey("ctx"), EncodeKvIndex(index), *keys->GetOrCreate("ctx"));
    EXPECT_TRUE(db->Write(batch).ok());
    const auto storage = *KvStorage::Open({.directory = dir_ / "kv"}, *keys, *db);
    const auto contexts =
        *storage->Adopt(WindowGeometry(reach), [](std::string_view) { return true; });
    EXPECT_EQ(contexts.size(), 1u);
    return contexts[0].chunks[0].stored != 0;
  };
  const auto global = static_cast<uint8_t>(KvFormat::kQ8Global);
  EXPECT_FALSE(adopted(global, kLayers, kReach)) << "it has more layers than that";
  EXPECT_FALSE(adopted(global, 1, 0)) << "no layer has a window";
  EXPECT_FALSE(adopted(global, kLayers, 0));
  EXPECT_FALSE(adopted(1, 1, kReach)) << "it lacks layers";
  for (const uint8_t format : {0, 7, 200, 255}) EXPECT_FALSE(adopted(format, kLayers, kReach));
  EXPECT_TRUE(adopted(global, 1, kReach));
}

// A prefix that several contexts have stays whole, so that others may begin with it.
TEST_F(StoreWindowTest, WhatContextsShareStaysWhole) {
  StartWindowed();
  const std::string first = Create(), second = Create(), third = Create();
  Text one = NewText(60), two = one, three = one;
  Extend(30, &one);
  Extend(20, &two);
  Extend(2, &three);
  Say(first, one);
  EXPECT_EQ(Say(second, two), 60u);
  store_->idle().AwaitTidy();
  store_->idle().MakeRoom(kArenaBytes);
  for (uint32_t i = 0; i < 60; ++i) {
    const ContextChunk chunk = store_->ChunksOf(first)[i];
    ASSERT_TRUE(chunk.slot.has_value());
    EXPECT_EQ(chunk.slot->format, KvFormat::kQ8) << i;
  }
  EXPECT_EQ(Say(third, three), 60u);
}

// A context that goes on with all of another one takes what the other has kept.
TEST_F(StoreWindowTest, AForkTakesWhatIsHiddenForItToo) {
  StartWindowed();
  const std::string first = Create(), second = Create(), third = Create();
  Text one = NewText(100);
  Say(first, one);
  store_->idle().AwaitTidy();
  store_->idle().MakeRoom(kArenaBytes);
  EXPECT_EQ(store_->KvOf(first).resident_bytes, 80 * kGlobalBytes + 20 * kWholeBytes);
  Text fork = one;
  Extend(5, &fork);
  EXPECT_EQ(Say(second, fork), 100u);
  EXPECT_EQ(lacking_, 80u);
  Text early(one.begin(), one.begin() + 50);
  Extend(5, &early);
  EXPECT_EQ(Say(third, early), 0u) << "its windows are not there";
}

TEST_F(StoreWindowTest, AnotherWindowIsAnotherModel) {
  StartWindowed();
  const std::string context = Create();
  const Text text = NewText(kLong);
  Say(context, text);
  store_->idle().AwaitTidy();
  store_.reset();
  StartWindowed(/*reach=*/0);
  EXPECT_EQ(Say(context, text), 0u) << "what lacks blocks is of no use without windows";
}

TEST_F(StoreWindowTest, AWorkersWindowsAreChecked) {
  StartWindowed();
  const auto attach = [&](const auto& change) {
    Geometry geometry = WindowGeometry();
    change(&geometry);
    return store_->arena_keeper().Attach(kWorker, geometry).status();
  };
  EXPECT_TRUE(absl::IsInvalidArgument(attach([](Geometry* g) { g->window_reach = 0; })));
  EXPECT_TRUE(absl::IsInvalidArgument(attach([](Geometry* g) { g->windowed = {}; })));
  EXPECT_TRUE(absl::IsInvalidArgument(attach([](Geometry* g) { g->windowed.Add(kLayers - 1); })));
  EXPECT_TRUE(absl::IsInvalidArgument(attach([](Geometry* g) { g->windowed.Add(kLayers); })));
  EXPECT_TRUE(attach([](Geometry*) {}).ok());
}

// Calls, edits, forks, evictions, damage, restarts and kills in any order: what a call's tokens
// read is what was computed, and what they read is there.
TEST_F(StoreWindowTest, NoHistoryLosesWhatACallReads) {
  const auto seed = static_cast<uint32_t>(random_());
  SCOPED_TRACE(seed);
  random_.seed(seed);
  segment_bytes_ = 256 << 10;
  // Now and then the disk takes little, so that chunks lose bits or are dropped.
  if (random_() % 3 == 0) daily_bytes_ = 2 << 20;
  if (random_() % 2 == 0) disk_bytes_ = 512 << 10;
  StartWindowed();
  std::map<std::string, Text> talks;
  const auto pick = [&] {
    return std::next(talks.begin(), static_cast<std::ptrdiff_t>(random_() % talks.size()));
  };
  uint64_t kept = 0;
  for (int step = 0; step < 220 && !HasFailure(); ++step) {
    const uint32_t what = random_() % 27;
    if (what > 23) {
      if (what == 24) RestartWindowed();
      FlipBits();
    } else if (what == 0) {
      RestartWindowed();
    } else if (what == 1) {
      KillWindowed();
    } else if (what < 5) {
      store_->idle().AwaitTidy();
    } else if (talks.empty() || (what < 8 && talks.size() < 9)) {
      Text text = talks.empty() || random_() % 2 == 0 ? Text() : pick()->second;
      if (random_() % 2 == 0) text.resize(random_() % (text.size() + 1));
      talks.emplace(Create(), text);
    } else {
      const auto talk = pick();
      Text& text = talk->second;
      if (random_() % 6 == 0) text.resize(text.size() - random_() % (text.size() / 4 + 1));
      if (text.size() > 180) text.resize(random_() % 100);
      Extend(1 + random_() % (random_() % 4 == 0 ? 60 : 8), &text);
      kept += Say(talk->first, text);
    }
  }
  EXPECT_GT(kept, 0u);
  EXPECT_GT(lacking_, 0u);
}

}  // namespace
}  // namespace withy::context_store
