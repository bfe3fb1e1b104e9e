#include "serving/session/context_kv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "engine/kv/block.h"
#include "serving/call/testing.h"

namespace withy::serving {
namespace {

constexpr engine::KvGeometry kGeometry{2, 1, 16};

struct Kv {
  Kv() {
    model.layers = kGeometry.layers;
    model.kv = {.chunk_tokens = engine::kChunkTokens,
                .layers = kGeometry.layers,
                .kv_heads = kGeometry.kv_heads,
                .head_dim = kGeometry.head_dim,
                .block_bytes = kGeometry.BlockBytes()};
    model.levels = {engine::LevelInfo{.percent = 50}, engine::LevelInfo{}};
  }
  ContextKv Make() const { return ContextKv(model, namer, arena); }
  // Chunks from `first` on, whose slots follow each other.
  static std::vector<ChunkSlot> Chunks(int32_t first, int32_t count) {
    std::vector<ChunkSlot> chunks;
    for (int32_t i = first; i < first + count; ++i) {
      chunks.push_back({.chunk = i, .slot = NthSlot(kGeometry, static_cast<uint32_t>(i))});
    }
    return chunks;
  }

  engine::ModelInfo model;
  ChunkNamer namer{ModelIdentity("m", kGeometry), "", engine::KvFormat::kQ8};
  std::shared_ptr<FakeArena> arena =
      std::make_shared<FakeArena>(1, 32 * kGeometry.ChunkBytes(engine::KvFormat::kQ8));
};

std::vector<int32_t> Tokens(int32_t count) {
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) tokens.push_back(i);
  return tokens;
}

TEST(ContextKvTest, ClaimsWhatIsMissingOnceAtATime) {
  const Kv kv;
  ContextKv context = kv.Make();
  EXPECT_FALSE(context.BeginClaim(0).has_value());
  const auto claim = context.BeginClaim(17);
  ASSERT_TRUE(claim.has_value());
  EXPECT_EQ(claim->first, 0);
  EXPECT_EQ(claim->count, 2);
  EXPECT_FALSE(context.BeginClaim(100).has_value()) << "one is under way";
  ASSERT_TRUE(context.AddChunks(Kv::Chunks(0, 2)).ok());
  EXPECT_EQ(context.blocks().slots(), 32);
  EXPECT_FALSE(context.BeginClaim(32).has_value());
  EXPECT_EQ(context.BeginClaim(33)->first, 2);
  context.EndClaim();
  EXPECT_EQ(context.BeginClaim(33)->first, 2) << "a refused claim may be made again";
  EXPECT_EQ(context.AddChunks(Kv::Chunks(3, 1)).code(), absl::StatusCode::kInternal);
}

TEST(ContextKvTest, CopiesATokenInAllLayers) {
  const Kv kv;
  ContextKv context = kv.Make();
  ASSERT_TRUE(context.AdoptClaimed(Kv::Chunks(0, 2)).ok());
  const auto block_of = [&](int32_t slot, int layer) {
    return kv.arena->At(
        NthSlot(kGeometry, static_cast<uint32_t>(slot / 16)).Block(kGeometry, layer));
  };
  const auto fill = [&](int32_t slot, int seed) {
    for (int layer = 0; layer < 2; ++layer) {
      std::byte* block = block_of(slot, layer);
      std::memset(block + sizeof(engine::KvBlockHeader), seed,
                  kGeometry.BlockBytes() - sizeof(engine::KvBlockHeader));
    }
  };
  fill(0, 1);
  fill(16, 2);
  const auto read = [&](int32_t slot, int layer) {
    std::vector<float> token(32);
    engine::ReadToken(kGeometry, block_of(slot, layer), slot % 16, token.data(), token.data() + 16);
    return token;
  };
  context.blocks().CopySlot(20, 3);
  for (int layer = 0; layer < 2; ++layer) {
    EXPECT_EQ(read(3, layer), read(20, layer));
    EXPECT_NE(read(4, layer), read(20, layer)) << "its neighbours stay";
    EXPECT_NE(read(2, layer), read(20, layer));
  }
}

TEST(ContextKvTest, ReusesWhatItsTokensNeedAndNothingAtTheEnd) {
  const Kv kv;
  const std::vector<int32_t> tokens = Tokens(40);
  ContextKv before = kv.Make();
  ASSERT_TRUE(before.AdoptClaimed(Kv::Chunks(0, 3)).ok());
  const std::vector<ChunkName> names = before.NameAndStamp(tokens, {100, 50, 50}, 40);
  ASSERT_EQ(names.size(), 3u);
  std::vector<ResidentChunk> resident;
  for (size_t i = 0; i < names.size(); ++i) {
    resident.push_back({.where = Kv::Chunks(static_cast<int32_t>(i), 1)[0], .name = names[i]});
  }
  ContextKv same = kv.Make();
  same.AdoptResident(resident, tokens, {});
  EXPECT_EQ(same.reused_tokens(), 32) << "the last token is always computed";
  EXPECT_EQ(same.lowest_level(), 0);
  EXPECT_FALSE(same.faulty_chunk().has_value());
  ContextKv longer = kv.Make();
  longer.AdoptResident(resident, Tokens(60), {});
  EXPECT_EQ(longer.reused_tokens(), 40);
  std::vector<int32_t> other = Tokens(60);
  other[20] = 7;
  ContextKv changed = kv.Make();
  changed.AdoptResident(resident, other, {.history_tokens = 40});
  EXPECT_EQ(changed.reused_tokens(), 16);
  EXPECT_EQ(changed.lowest_level(), 1);
  EXPECT_EQ(changed.faulty_chunk(), 1);
  ContextKv moved = kv.Make();
  moved.AdoptResident(resident, other, {.history_tokens = 40, .window_moved = true});
  EXPECT_FALSE(moved.faulty_chunk().has_value()) << "other tokens stand there now";
  ContextKv rebuilt = kv.Make();
  rebuilt.AdoptResident(resident, tokens, {.rebuild = true, .level_percent = 100});
  EXPECT_EQ(rebuilt.reused_tokens(), 16) << "what is at the full level";
}

// What a context of `tokens` leaves: its chunks, at the slots from `first` on.
std::vector<ResidentChunk> Computed(const Kv& kv, const std::vector<int32_t>& tokens,
                                    int32_t level_percent = 100) {
  ContextKv context = kv.Make();
  const int32_t chunks = ChunksFor(static_cast<int32_t>(tokens.size()));
  EXPECT_TRUE(context.AdoptClaimed(Kv::Chunks(0, chunks)).ok());
  const std::vector<ChunkName> names =
      context.NameAndStamp(tokens, std::vector<int32_t>(static_cast<size_t>(chunks), level_percent),
                           static_cast<int32_t>(tokens.size()));
  std::vector<ResidentChunk> resident;
  for (int32_t i = 0; i < chunks; ++i) {
    resident.push_back({.where = Kv::Chunks(i, 1)[0], .name = names[static_cast<size_t>(i)]});
  }
  return resident;
}

TEST(ContextKvTest, ChunksOfOtherContextsAreWantedAndTaken) {
  const Kv kv;
  const std::vector<int32_t> tokens = Tokens(65);
  const std::vector<ResidentChunk> other = Computed(kv, Tokens(64));
  ContextKv context = kv.Make();
  const WantedChunks wanted = context.Wanted(tokens, 50);
  EXPECT_EQ(wanted.first_chunk, 0);
  ASSERT_EQ(wanted.ways.size(), 2u) << "of the full level, and of its own";
  ASSERT_EQ(wanted.ways[0].size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(wanted.ways[0][i].identity, other[i].name.identity);
  EXPECT_NE(wanted.ways[1][0].identity, other[0].name.identity);
  EXPECT_EQ(context.Wanted(Tokens(64), 100).ways[0].size(), 3u) << "the last token is computed";
  EXPECT_TRUE(context.Wanted(Tokens(16), 100).ways.empty());

  context.AdoptShared(other, tokens);
  EXPECT_EQ(context.reused_tokens(), 64);
  EXPECT_EQ(context.holes().FirstReading(), 64);
  EXPECT_EQ(context.BeginClaim(66)->first, 4);
  EXPECT_TRUE(context.Wanted(tokens, 100).ways.empty());
}

TEST(ContextKvTest, WhatDoesNotFitIsNotTaken) {
  const Kv kv;
  std::vector<ResidentChunk> other = Computed(kv, Tokens(64));
  std::vector<int32_t> tokens = Tokens(65);
  tokens[20] = 7;
  ContextKv fork = kv.Make();
  fork.AdoptShared(other, tokens);
  EXPECT_EQ(fork.reused_tokens(), 16);
  // Chunk 2 has another content than it says.
  ContextKv damaged = kv.Make();
  kv.arena->At(other[2].where.slot.Block(
      kGeometry, 1))[offsetof(engine::KvBlockHeader, identity)] ^= std::byte{1};
  damaged.AdoptShared(other, Tokens(65));
  EXPECT_EQ(damaged.reused_tokens(), 32);
  ContextKv gap = kv.Make();
  other.erase(other.begin());
  gap.AdoptShared(other, Tokens(65));
  EXPECT_EQ(gap.reused_tokens(), 0);
}

// Nothing behind an unfinished chunk is wanted: it is extended in place.
TEST(ContextKvTest, AnUnfinishedChunkIsExtendedNotExchanged) {
  const Kv kv;
  const std::vector<ResidentChunk> own = Computed(kv, Tokens(40));
  ContextKv context = kv.Make();
  context.AdoptResident(own, Tokens(80), {});
  EXPECT_EQ(context.reused_tokens(), 40);
  EXPECT_TRUE(context.Wanted(Tokens(80), 100).ways.empty());
}

// A chunk that is only read keeps its name and its headers, wherever the record ends.
TEST(ContextKvTest, ARecordThatEndsInASharedChunkDoesNotNameItAnew) {
  const Kv kv;
  const std::vector<ResidentChunk> other = Computed(kv, Tokens(48));
  ContextKv context = kv.Make();
  context.AdoptShared(other, Tokens(50));
  ASSERT_EQ(context.reused_tokens(), 48);
  const std::byte* const block = kv.arena->At(other[2].where.slot.Block(kGeometry, 0));
  const std::vector<std::byte> before(block, block + sizeof(engine::KvBlockHeader));
  EXPECT_EQ(context.NameAndStamp(Tokens(40), {100, 100, 100}, 50).size(), 2u);
  EXPECT_TRUE(std::equal(before.begin(), before.end(), block));
}

TEST(ContextKvTest, DensitiesAreMeansOverAllCalls) {
  Kv kv;
  kv.model.heads = 2;
  kv.model.layers = 2;  // one of which counts
  ContextKv first = kv.Make();
  ASSERT_TRUE(first.AdoptClaimed(Kv::Chunks(0, 2)).ok());
  first.blocks().View(0).density[0] = 64;  // of 20 rows, 2 heads and 16 tokens
  first.blocks().View(0).density[1] = 8;   // of 4 rows
  const std::vector<ChunkName> names = first.NameAndStamp(Tokens(20), {100, 100}, 20);
  EXPECT_FLOAT_EQ(names[0].density, 64.0f / (20 * 2 * 16));
  EXPECT_EQ(names[0].density_rows, 20);
  EXPECT_FLOAT_EQ(names[1].density, 8.0f / (4 * 2 * 16));
  std::vector<ResidentChunk> resident;
  for (size_t i = 0; i < names.size(); ++i) {
    resident.push_back({.where = Kv::Chunks(static_cast<int32_t>(i), 1)[0], .name = names[i]});
  }
  ContextKv next = kv.Make();
  next.AdoptResident(resident, Tokens(25), {});
  ASSERT_EQ(next.reused_tokens(), 20);
  next.blocks().View(0).density[0] = 32;  // of 5 rows
  const std::vector<ChunkName> later = next.NameAndStamp(Tokens(25), {100, 100}, 25);
  EXPECT_FLOAT_EQ(later[0].density, 96.0f / (25 * 2 * 16));
  EXPECT_EQ(later[0].density_rows, 25);
  EXPECT_FLOAT_EQ(later[1].density, 8.0f / (9 * 2 * 16)) << "nothing was added";
}

// As the store does it: the chunk has a smaller slot in the same place.
void Demote(const Kv& kv, ResidentChunk* chunk) {
  const engine::KvSlot from = chunk->where.slot;
  chunk->where.slot.format = engine::KvFormat::kQ4;
  engine::KvBlockHeader header;
  std::memcpy(&header, kv.arena->At(from.Block(kGeometry, 0)), sizeof header);
  header.format = engine::KvFormat::kQ4;
  for (int layer = 0; layer < kGeometry.layers; ++layer) {
    header.layer = static_cast<uint32_t>(layer);
    std::memcpy(kv.arena->At(chunk->where.slot.Block(kGeometry, layer)), &header, sizeof header);
  }
}

bool SameNames(const std::vector<ChunkName>& a, const std::vector<ChunkName>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto& x, const auto& y) { return x.identity == y.identity; });
}

// What is computed from KV of fewer bits is known by its name, also when that KV is exact again,
// until it is computed again itself.
TEST(ContextKvTest, WhatIsComputedOverCompressedKvIsKnownByItsName) {
  const Kv kv;
  std::vector<ResidentChunk> resident = Computed(kv, Tokens(48));
  const ResidentChunk exact = resident[1];
  Demote(kv, &resident[1]);
  ContextKv over = kv.Make();
  over.AdoptResident(resident, Tokens(70), {});
  EXPECT_EQ(over.reused_tokens(), 48);
  EXPECT_EQ(over.compressed_tokens(), 16);
  ASSERT_EQ(over.BeginClaim(70)->count, 2);
  ASSERT_TRUE(over.AddChunks(Kv::Chunks(3, 2)).ok());
  const std::vector<int32_t> levels(6, 100);
  const std::vector<ChunkName> names = over.NameAndStamp(Tokens(70), levels, 70);
  const std::vector<ChunkName> fresh = kv.namer.NameAll({}, Tokens(70), levels);
  ASSERT_EQ(names.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(names[i].identity == fresh[i].identity, i < 3) << i;
    EXPECT_EQ(names[i].over_compressed, i >= 3) << i;
  }

  // The next call has the chunk at 8 bits again, as another context computed it.
  resident[1] = exact;
  (void)Computed(kv, Tokens(48));
  for (int32_t i = 3; i < 5; ++i) {
    ChunkName name = names[static_cast<size_t>(i)];
    name.over_compressed = false;  // the store does not keep it
    resident.push_back({.where = Kv::Chunks(i, 1)[0], .name = name});
  }
  ContextKv next = kv.Make();
  next.AdoptResident(resident, Tokens(90), {.history_tokens = 70});
  EXPECT_FALSE(next.faulty_chunk().has_value());
  EXPECT_EQ(next.reused_tokens(), 70);
  EXPECT_EQ(next.compressed_tokens(), 22);
  ASSERT_EQ(next.BeginClaim(90)->count, 1);
  ASSERT_TRUE(next.AddChunks(Kv::Chunks(5, 1)).ok());
  const std::vector<ChunkName> later = next.NameAndStamp(Tokens(90), levels, 90);
  EXPECT_TRUE(later[3].over_compressed && later[4].over_compressed && later[5].over_compressed);
  EXPECT_EQ(later[3].identity, names[3].identity) << "it has not changed";

  // Both are left to the worker: they are computed over exact KV, and so is what follows.
  resident.pop_back();
  resident[3].state = ResidentChunk::State::kToCompute;
  ContextKv again = kv.Make();
  again.AdoptResident(resident, Tokens(90), {.level_percent = 100});
  EXPECT_EQ(again.reused_tokens(), 64);
  EXPECT_EQ(again.compressed_tokens(), 0);
  ASSERT_EQ(again.BeginClaim(90)->count, 2);
  ASSERT_TRUE(again.AddChunks(Kv::Chunks(4, 2)).ok());
  EXPECT_TRUE(SameNames(again.NameAndStamp(Tokens(90), levels, 90),
                        kv.namer.NameAll({}, Tokens(90), levels)));
}

// A chunk that is computed again behind compressed KV is not what its name says any more.
TEST(ContextKvTest, AChunkComputedAgainOverCompressedKvIsRenamedAloneAndKeepsItsFollowers) {
  const Kv kv;
  std::vector<ResidentChunk> resident = Computed(kv, Tokens(64));
  Demote(kv, &resident[0]);
  resident[2].state = ResidentChunk::State::kToCompute;
  ContextKv context = kv.Make();
  context.AdoptResident(resident, Tokens(65), {.level_percent = 100});
  EXPECT_EQ(context.reused_tokens(), 64);
  const std::byte* const follower = kv.arena->At(resident[3].where.slot.Block(kGeometry, 1));
  const std::vector<std::byte> before(follower, follower + sizeof(engine::KvBlockHeader));
  const std::vector<int32_t> levels(4, 100);
  const std::vector<ChunkName> names = context.NameAndStamp(Tokens(64), levels, 64);
  const std::vector<ChunkName> fresh = kv.namer.NameAll({}, Tokens(64), levels);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(names[i].identity == fresh[i].identity, i != 2) << i;
  EXPECT_TRUE(std::equal(before.begin(), before.end(), follower)) << "it is only read";
  std::vector<ChunkName> found = names;
  EXPECT_EQ(kv.namer.MatchingChunks(found, Tokens(64)), 4u);
  EXPECT_TRUE(found[2].over_compressed && !found[3].over_compressed);
}

TEST(ContextKvTest, TokensOfAnotherLevelAreCounted) {
  const Kv kv;
  ContextKv before = kv.Make();
  ASSERT_TRUE(before.AdoptClaimed(Kv::Chunks(0, 3)).ok());
  const std::vector<ChunkName> names = before.NameAndStamp(Tokens(40), {100, 50, 50}, 40);
  std::vector<ResidentChunk> resident;
  for (size_t i = 0; i < names.size(); ++i) {
    resident.push_back({.where = Kv::Chunks(static_cast<int32_t>(i), 1)[0], .name = names[i]});
  }
  ContextKv next = kv.Make();
  next.AdoptResident(resident, Tokens(60), {});
  EXPECT_EQ(next.other_level_tokens(100), 24);
  EXPECT_EQ(next.other_level_tokens(50), 16);
  EXPECT_EQ(next.compressed_tokens(), 0);
}

// A model of which layer 1 of two has a window: rows read its blocks 40 tokens back.
struct WindowedKv : Kv {
  WindowedKv() {
    model.kv.windowed.Add(1);
    model.kv.window_reach = 40;
  }
  engine::KvGeometry geometry() const { return GeometryOf(model.kv); }
  // The chunks without the blocks of layer 1: their slots are moved to where nothing else is.
  void Narrow(std::vector<ResidentChunk>* chunks, const std::vector<size_t>& which) const {
    for (const size_t i : which) {
      const engine::KvSlot from = (*chunks)[i].where.slot;
      const auto units =
          static_cast<uint32_t>((16 * geometry().ChunkBytes() + i * geometry().BlockBytes()) / 64);
      const engine::KvSlot to{units, engine::KvFormat::kQ8Global};
      std::memcpy(arena->At(to.Block(geometry(), 0)), arena->At(from.Block(geometry(), 0)),
                  geometry().BlockBytes());
      std::memset(arena->At(from.Block(geometry(), 0)), 0xEE, geometry().ChunkBytes());
      (*chunks)[i].where.slot = to;
    }
  }
  int32_t Reused(const std::vector<ResidentChunk>& chunks, int32_t tokens) const {
    ContextKv context = Make();
    context.AdoptResident(chunks, Tokens(tokens), {});
    for (int32_t i = 0; i < context.blocks().chunks(); ++i) {
      EXPECT_EQ(context.blocks().lacks()[static_cast<size_t>(i)],
                chunks[static_cast<size_t>(i)].where.slot.format != engine::KvFormat::kQ8);
    }
    return context.reused_tokens();
  }
};

TEST(ContextKvTest, GoesOnOnlyWhereAllWindowsAreWhole) {
  const WindowedKv kv;
  std::vector<ResidentChunk> chunks = Computed(kv, Tokens(120));
  ASSERT_EQ(kv.Reused(chunks, 130), 120);
  kv.Narrow(&chunks, {0, 1, 2, 3, 4});
  EXPECT_EQ(kv.Reused(chunks, 130), 120) << "the windows of token 120 begin with token 80";
  EXPECT_EQ(kv.Reused(chunks, 119), 0) << "those of token 112 do not";
  kv.Narrow(&chunks, {5});
  EXPECT_EQ(kv.Reused(chunks, 130), 0);
  // What lacks nothing before the first of them is of use.
  std::vector<ResidentChunk> later = Computed(kv, Tokens(120));
  kv.Narrow(&later, {3, 4});
  EXPECT_EQ(kv.Reused(later, 100), 48);
}

// A chunk that is lost in the middle takes those with it whose windows its tokens would need.
TEST(ContextKvTest, ALostChunkIsComputedFromWhereWindowsAreWhole) {
  const WindowedKv kv;
  std::vector<ResidentChunk> chunks = Computed(kv, Tokens(160));
  kv.Narrow(&chunks, {2, 3, 4, 5});
  for (const int32_t lost : {9, 8, 7, 6, 3}) {
    ContextKv context = kv.Make();
    context.AdoptResident(chunks, Tokens(170), {});
    ASSERT_EQ(context.reused_tokens(), 160);
    context.Truncate(lost);
    EXPECT_EQ(context.reused_tokens(), lost == 9 ? 144 : 32) << lost;
    EXPECT_EQ(context.BeginClaim(170)->first, lost == 9 ? 9 : 2) << lost;
  }
}

TEST(ContextKvTest, WhatItCannotComputeIsNotTakenFromTheStore) {
  const WindowedKv kv;
  using State = ResidentChunk::State;
  std::vector<ResidentChunk> chunks = Computed(kv, Tokens(160));
  kv.Narrow(&chunks, {0, 1, 2});
  chunks[4].state = State::kToCompute;  // its windows reach into chunk 2
  ContextKv bad = kv.Make();
  bad.AdoptResident(chunks, Tokens(170), {});
  EXPECT_EQ(bad.reused_tokens(), 0);
  // What is computed itself lacks nothing.
  chunks = Computed(kv, Tokens(160));
  kv.Narrow(&chunks, {2, 3});
  for (const size_t i : {size_t{0}, size_t{1}}) chunks[i].state = State::kToCompute;
  for (const size_t i : {size_t{2}, size_t{3}, size_t{4}}) chunks[i].state = State::kReading;
  ContextKv context = kv.Make();
  context.AdoptResident(chunks, Tokens(170), {});
  ASSERT_EQ(context.reused_tokens(), 160);
  EXPECT_EQ(context.holes().Count(0, 160), 32);
  // Chunk 4 alone cannot be yielded; with those before it it can.
  LoadEvent event{.what = {.kind = policy::KvLoadEvent::Kind::kYielded, .change = 1, .chunks = {4}},
                  .slots = Kv::Chunks(4, 1)};
  EXPECT_EQ(context.Apply(event, 1).code(), absl::StatusCode::kInternal);
  event.what.chunks = {2, 3, 4};
  event.slots = Kv::Chunks(2, 3);
  ASSERT_TRUE(context.Apply(event, 1).ok());
  EXPECT_EQ(context.holes().Count(0, 160), 80);
}

TEST(ContextKvTest, SharesWhatLacksBlocksOnlyBeforeWholeWindows) {
  const WindowedKv kv;
  std::vector<ResidentChunk> other = Computed(kv, Tokens(160));
  kv.Narrow(&other, {0, 1, 2});
  const auto shared = [&](int32_t tokens) {
    ContextKv context = kv.Make();
    context.AdoptShared(other, Tokens(tokens));
    return context.reused_tokens();
  };
  EXPECT_EQ(shared(170), 160);
  EXPECT_EQ(shared(100), 96);
  EXPECT_EQ(shared(95), 0) << "token 80 reads chunk 2";
}

}  // namespace
}  // namespace withy::serving
