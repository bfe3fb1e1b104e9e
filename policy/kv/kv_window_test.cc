#include "policy/kv/kv_window.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace withy::policy {
namespace {

constexpr uint32_t kTokens = 16;

// By the definition: chunk `chunk` is read by a row at `position` in layers with a window.
bool IsRead(uint32_t chunk, uint32_t position, uint32_t reach) {
  return chunk * kTokens < position && (chunk + 1) * kTokens + reach > position;
}

TEST(KvWindowTest, NothingIsHiddenWithoutWindowsOrNearTheEnd) {
  EXPECT_EQ(HiddenChunks(100'000, 0), 0u);
  EXPECT_EQ(HiddenChunks(0, 512), 0u);
  EXPECT_EQ(HiddenChunks(512 + kWindowSlackTokens + 15, 512), 0u);
  EXPECT_EQ(HiddenChunks(512 + kWindowSlackTokens + 16, 512), 1u);
  EXPECT_EQ(HiddenChunks(UINT32_MAX, UINT32_MAX), 0u);
}

// What is hidden is read by no row within the slack, and it is all of that.
TEST(KvWindowTest, HidesWhatNoLaterRowReads) {
  std::mt19937 random(1);
  for (int round = 0; round < 200; ++round) {
    const uint32_t tokens = random() % 3000, reach = 1 + random() % 600, slack = random() % 300;
    const uint32_t hidden = HiddenChunks(tokens, reach, slack);
    const uint32_t from = tokens > slack ? tokens - slack : 0;
    for (uint32_t position = from; position <= tokens + 20; ++position) {
      for (uint32_t chunk = 0; chunk < hidden; ++chunk) {
        ASSERT_FALSE(IsRead(chunk, position, reach)) << tokens << " " << reach << " " << slack;
      }
    }
    EXPECT_TRUE(from <= hidden * kTokens || IsRead(hidden, from, reach)) << tokens << " " << reach;
  }
}

// Against the definition: a row needs each chunk that it reads, and so does the first row behind
// the chunks that are kept.
TEST(KvWindowTest, ContinuesOnlyBehindWholeWindows) {
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    const uint32_t chunks = random() % 40, reach = 1 + random() % 200;
    std::vector<bool> lacks(chunks);
    for (uint32_t i = 0; i < chunks; ++i) lacks[i] = random() % 6 == 0;
    const auto can = [&](uint32_t position) {
      for (uint32_t chunk = 0; chunk < chunks; ++chunk) {
        if (lacks[chunk] && IsRead(chunk, position, reach)) return false;
      }
      return true;
    };
    for (uint32_t position = 0; position < chunks * kTokens + 40; ++position) {
      ASSERT_EQ(CanContinue(lacks, position, reach), can(position)) << round << " " << position;
    }
    uint32_t most = chunks;
    while (!can(most * kTokens)) --most;
    EXPECT_EQ(ContinuableChunks(lacks, chunks, reach), most) << round;
  }
}

TEST(KvWindowTest, AHiddenPrefixIsOfUseOnlyToALongContext) {
  std::vector<bool> lacks(100, true);
  EXPECT_EQ(ContinuableChunks(lacks, 100, 64), 0u);
  lacks.resize(103, false);
  EXPECT_EQ(ContinuableChunks(lacks, 103, 64), 0u);
  lacks.resize(104, false);
  EXPECT_EQ(ContinuableChunks(lacks, 104, 64), 104u);
}

}  // namespace
}  // namespace withy::policy
