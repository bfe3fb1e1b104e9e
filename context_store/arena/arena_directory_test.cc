#include "context_store/arena/arena_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"

namespace withy::context_store {
namespace {

constexpr uint64_t kDirectoryArenaBytes = 1 << 20;

Geometry DirectoryGeometry(char model = 'm') { return {std::string(32, model), 2, 1, 16, 960}; }

KeptChunk Kept(SlotAt slot, uint32_t chunk, const std::string& context = "ctx_0123") {
  return {context,
          chunk,
          {slot, chunk % 2 == 0 ? KvFormat::kQ8 : KvFormat::kQ4},
          {std::string(32, static_cast<char>('a' + chunk % 26)), 1 + chunk % 16, 40, 0.25f, 7}};
}

std::string Print(const KeptChunk& c) {
  return c.context_id + " " + std::to_string(c.chunk) + " " + std::to_string(c.slot.units) + " " +
         engine::KvFormatName(c.slot.format) + " " + c.identity.identity + " " +
         std::to_string(c.identity.tokens) + " " + std::to_string(c.identity.model_level_percent) +
         " " + std::to_string(c.identity.density) + " " + std::to_string(c.identity.density_rows);
}

std::map<SlotAt, std::string> Read(std::vector<std::byte> memory) {
  std::map<SlotAt, std::string> read;
  for (const KeptChunk& chunk : ArenaDirectory(memory, kDirectoryArenaBytes).Chunks()) {
    read[chunk.slot.units] = Print(chunk);
  }
  return read;
}

class ArenaDirectoryTest : public ::testing::Test {
 protected:
  std::vector<std::byte> memory_ =
      std::vector<std::byte>(ArenaDirectory::BytesFor(kDirectoryArenaBytes), std::byte{0});
};

TEST_F(ArenaDirectoryTest, TheNextProcessReadsWhatWasPut) {
  {
    ArenaDirectory directory(memory_, kDirectoryArenaBytes);
    EXPECT_FALSE(directory.geometry().has_value());
    directory.Reset(DirectoryGeometry());
    directory.Put(Kept(64, 0));
    directory.Put(Kept(128, 1));
    directory.Put(Kept(64, 2));  // the slot has another chunk now
    directory.Put(Kept(256, 3));
    directory.Remove(256);
    directory.Put(Kept(300, 4, std::string(45, 'x')));  // no id is so long
  }
  ArenaDirectory next(memory_, kDirectoryArenaBytes);
  EXPECT_EQ(next.geometry(), DirectoryGeometry());
  EXPECT_EQ(Read(memory_),
            (std::map<SlotAt, std::string>{{64, Print(Kept(64, 2))}, {128, Print(Kept(128, 1))}}));
  next.Remove(64);
  next.Put(Kept(512, 5));
  EXPECT_EQ(Read(memory_), (std::map<SlotAt, std::string>{{128, Print(Kept(128, 1))},
                                                          {512, Print(Kept(512, 5))}}));
  next.Reset(DirectoryGeometry('n'));
  EXPECT_EQ(ArenaDirectory(memory_, kDirectoryArenaBytes).geometry(), DirectoryGeometry('n'));
  EXPECT_TRUE(Read(memory_).empty());
}

TEST_F(ArenaDirectoryTest, ContextsThatShareASlotAreDescribedEach) {
  ArenaDirectory directory(memory_, kDirectoryArenaBytes);
  directory.Reset(DirectoryGeometry());
  for (const char* context : {"ctx_a", "ctx_b", "ctx_c"}) directory.Put(Kept(64, 2, context));
  directory.Put(Kept(64, 2, "ctx_b"));
  directory.Put(Kept(128, 3, "ctx_b"));
  directory.Remove(64, "ctx_a");
  directory.Remove(64, "ctx_none");
  const auto contexts = [&] {
    std::multimap<SlotAt, std::string> found;
    for (const KeptChunk& chunk : ArenaDirectory(memory_, kDirectoryArenaBytes).Chunks()) {
      found.emplace(chunk.slot.units, chunk.context_id);
    }
    return found;
  };
  EXPECT_THAT(contexts(), ::testing::UnorderedElementsAre(::testing::Pair(64, "ctx_b"),
                                                          ::testing::Pair(64, "ctx_c"),
                                                          ::testing::Pair(128, "ctx_b")));
  directory.Remove(64);
  EXPECT_THAT(contexts(), ::testing::ElementsAre(::testing::Pair(128, "ctx_b")));
}

TEST_F(ArenaDirectoryTest, AnotherArenaIsAnEmptyOne) {
  ArenaDirectory directory(memory_, kDirectoryArenaBytes);
  directory.Reset(DirectoryGeometry());
  directory.Put(Kept(64, 0));
  EXPECT_FALSE(ArenaDirectory(memory_, 2 * kDirectoryArenaBytes).geometry().has_value());
}

TEST_F(ArenaDirectoryTest, WhatHasNoPlaceIsNotDescribed) {
  ArenaDirectory directory(memory_, kDirectoryArenaBytes);
  directory.Reset(DirectoryGeometry());
  const auto entries = static_cast<uint32_t>(memory_.size() / 128 - 1);
  for (uint32_t i = 0; i < entries + 10; ++i) directory.Put(Kept(i * 64, i));
  EXPECT_EQ(directory.size(), entries);
  directory.Remove(0);
  directory.Put(Kept(1, 7));
  EXPECT_EQ(directory.size(), entries);
  EXPECT_EQ(Read(memory_).size(), entries);
}

// At every moment the memory says what was put, and bits that flip take no more than their entry.
TEST_F(ArenaDirectoryTest, RandomChangesAreSeenAsTheyAre) {
  const uint32_t seed = TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  ArenaDirectory directory(memory_, kDirectoryArenaBytes);
  directory.Reset(DirectoryGeometry());
  std::map<SlotAt, std::string> expected;
  for (int step = 0; step < 3000; ++step) {
    const SlotAt slot = random() % 250;  // all of them have room
    if (random() % 3 == 0) {
      directory.Remove(slot);
      expected.erase(slot);
    } else {
      const KeptChunk chunk = Kept(slot, random() % 1000);
      directory.Put(chunk);
      expected[slot] = Print(chunk);
    }
    if (step % 50 != 0) continue;
    ASSERT_EQ(Read(memory_), expected);
    std::vector<std::byte> flipped = memory_;
    flipped[128 + random() % (flipped.size() - 128)] ^= static_cast<std::byte>(1 << random() % 8);
    for (const auto& [at, chunk] : Read(flipped)) {
      ASSERT_TRUE(expected.contains(at));
      ASSERT_EQ(chunk, expected.at(at));
    }
  }
}

}  // namespace
}  // namespace withy::context_store
