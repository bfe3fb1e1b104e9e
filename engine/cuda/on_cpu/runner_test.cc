// The runner finds what a GPU would not tell: kernels made wrong on purpose are reported with
// kernel, block and thread. And its intrinsics compute what PTX says.
// clang-format off
#include "engine/cuda/kernels/device-inl.cuh"
// clang-format on
#include "engine/cuda/on_cpu/runner.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "engine/cpu/aligned.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine::gpu_on_cpu {
namespace {

using on_cpu::Finding;
using on_cpu::Order;
using on_cpu::Runner;
using testing::HasSubstr;

constexpr int kThreadsOfBlock = 64;

// Global memory that the runner knows.
template <typename T>
class Memory {
 public:
  Memory(Runner& runner, size_t count) : runner_(runner) {
    values_.Resize(count);
    std::fill_n(values_.data(), count, T{});
    runner_.watch().Allow(values_.data(), count * sizeof(T));
  }
  ~Memory() { runner_.watch().Forbid(values_.data()); }
  T* data() { return values_.data(); }

 private:
  Runner& runner_;
  AlignedArray<T> values_;
};

// Reverses 64 numbers of each block through shared memory.
void Reverse(int* x, bool barrier) {
  int* shared = reinterpret_cast<int*>(SharedMemory());
  int* mine = x + BlockX() * kThreadsOfBlock;
  StoreShared(shared + ThreadX(), Load(mine + ThreadX()));
  if (barrier) SyncBlock();
  Store(mine + ThreadX(), LoadShared(shared + kThreadsOfBlock - 1 - ThreadX()));
}

TEST(RunnerTest, RunsEveryThreadInAnyOrder) {
  for (const Order order : {Order::kForward, Order::kReverse, Order::kRandom}) {
    Runner runner({.order = order, .seed = 3, .checks = true});
    Memory<int> x(runner, 4 * kThreadsOfBlock);
    std::iota(x.data(), x.data() + 4 * kThreadsOfBlock, 0);
    runner.Launch("reverse", {4, 1, 1}, kThreadsOfBlock, 256, [&] { Reverse(x.data(), true); });
    EXPECT_TRUE(runner.watch().findings().empty())
        << on_cpu::Describe(runner.watch().findings().front());
    for (int i = 0; i < 4 * kThreadsOfBlock; ++i) {
      EXPECT_EQ(x.data()[i], i / 64 * 64 + 63 - i % 64);
    }
  }
}

TEST(RunnerTest, FindsRaceInSharedMemory) {
  Runner runner({.checks = true});
  Memory<int> x(runner, 2 * kThreadsOfBlock);
  runner.Launch("reverse", {2, 1, 1}, kThreadsOfBlock, 256, [&] { Reverse(x.data(), false); });
  ASSERT_FALSE(runner.watch().findings().empty());
  const Finding& finding = runner.watch().findings().front();
  EXPECT_EQ(finding.kind, Finding::Kind::kRace);
  EXPECT_EQ(finding.kernel, "reverse");
  EXPECT_EQ(finding.block.x, 0);
  EXPECT_THAT(on_cpu::Describe(finding),
              HasSubstr("race in kernel reverse, block (0,0,0), thread"));
  EXPECT_THAT(finding.what, HasSubstr("shared memory that thread"));
}

// A collective of the warp orders its lanes, but not those of other warps.
TEST(RunnerTest, WarpBarrierOrdersItsWarpOnly) {
  const auto neighbour = [](int distance) {
    int* shared = reinterpret_cast<int*>(SharedMemory());
    StoreShared(shared + ThreadX(), ThreadX());
    SyncWarp();
    LoadShared(shared + (ThreadX() ^ distance));
  };
  Runner runner({.checks = true});
  runner.Launch("within", {1, 1, 1}, kThreadsOfBlock, 256, [&] { neighbour(1); });
  EXPECT_TRUE(runner.watch().findings().empty());
  runner.Launch("across", {1, 1, 1}, kThreadsOfBlock, 256, [&] { neighbour(32); });
  ASSERT_FALSE(runner.watch().findings().empty());
  EXPECT_EQ(runner.watch().findings().front().kernel, "across");
}

TEST(RunnerTest, FindsRaceBetweenBlocks) {
  Runner runner({.checks = true});
  Memory<int> x(runner, 1);
  runner.Launch("count", {3, 1, 1}, 32, 0, [&] {
    if (ThreadX() == 5) Store(x.data(), Load(x.data()) + 1);
  });
  ASSERT_FALSE(runner.watch().findings().empty());
  const Finding& finding = runner.watch().findings().front();
  EXPECT_EQ(finding.block.x, 1);
  EXPECT_EQ(finding.thread, 5);
  EXPECT_THAT(finding.what, HasSubstr("of another block"));
}

TEST(RunnerTest, FindsDivergentBarrier) {
  Runner runner({.checks = true});
  Memory<int> x(runner, kThreadsOfBlock);
  runner.Launch("half", {1, 2, 1}, kThreadsOfBlock, 0, [&] {
    if (ThreadX() < 32) SyncBlock();  // the other warp ends
  });
  runner.Launch("lanes", {1, 1, 1}, kThreadsOfBlock, 0, [&] {
    if (ThreadX() != 40) ShuffleXor(1, 1);  // one lane of the second warp does not take part
  });
  ASSERT_EQ(runner.watch().findings().size(), 3u);
  EXPECT_EQ(runner.watch().findings()[0].kind, Finding::Kind::kDivergentBarrier);
  EXPECT_EQ(runner.watch().findings()[0].thread, 32);
  EXPECT_EQ(runner.watch().findings()[1].block.y, 1);
  EXPECT_EQ(runner.watch().findings()[2].kernel, "lanes");
  EXPECT_EQ(runner.watch().findings()[2].thread, 40);
  EXPECT_THAT(runner.watch().findings()[2].what, HasSubstr("a collective of its warp"));
  // What comes after is not disturbed.
  runner.Launch("reverse", {1, 1, 1}, kThreadsOfBlock, 256, [&] { Reverse(x.data(), true); });
  EXPECT_EQ(runner.watch().findings().size(), 3u);
}

TEST(RunnerTest, FindsAccessOutOfBoundsAndMisaligned) {
  Runner runner({.checks = true});
  Memory<float> x(runner, 40);
  runner.Launch("beyond", {1, 1, 1}, kThreadsOfBlock, 0, [&] { Load(x.data() + ThreadX()); });
  ASSERT_FALSE(runner.watch().findings().empty());
  EXPECT_EQ(runner.watch().findings()[0].kind, Finding::Kind::kOutOfBounds);
  EXPECT_EQ(runner.watch().findings()[0].thread, 40);
  runner.watch().ClearFindings();
  runner.Launch("odd", {1, 1, 1}, 32, 0, [&] {
    if (ThreadX() == 7) Load(reinterpret_cast<const Words2*>(x.data() + 1));
  });
  ASSERT_EQ(runner.watch().findings().size(), 1u);
  EXPECT_EQ(runner.watch().findings()[0].kind, Finding::Kind::kMisaligned);
  EXPECT_EQ(runner.watch().findings()[0].thread, 7);
  runner.watch().ClearFindings();
  runner.Launch("shared", {1, 1, 1}, 32, 64, [&] {
    StoreShared(reinterpret_cast<float*>(SharedMemory()) + ThreadX() + 1, 1.0f);
  });
  ASSERT_FALSE(runner.watch().findings().empty());
  EXPECT_EQ(runner.watch().findings()[0].kind, Finding::Kind::kOutOfBounds);
}

TEST(RunnerTest, CountsSectorsAndBankConflicts) {
  Runner runner({.counts = true});
  Memory<float> x(runner, 32 * 32);
  const auto run = [&](const char* name, int stride) {
    runner.Launch(name, {1, 1, 1}, 32, 32 * 32 * 4, [&, stride] {
      Load(x.data() + ThreadX() * stride);
      StoreShared(reinterpret_cast<float*>(SharedMemory()) + ThreadX() * stride, 1.0f);
    });
    return runner.watch().counts().at(name);
  };
  const on_cpu::KernelCounts dense = run("dense", 1);
  EXPECT_EQ(dense.requests, 1u);
  EXPECT_EQ(dense.load_bytes, 128u);
  EXPECT_EQ(dense.sectors, 4u);
  EXPECT_EQ(dense.shared_passes, 1u);
  const on_cpu::KernelCounts strided = run("strided", 8);
  EXPECT_EQ(strided.load_bytes, 128u);
  EXPECT_EQ(strided.sectors, 32u);
  EXPECT_EQ(strided.shared_requests, 1u);
  EXPECT_EQ(strided.shared_passes, 8u);
  EXPECT_EQ(run("worst", 32).shared_passes, 32u);
}

TEST(RunnerTest, ShufflesExchangeLanes) {
  Runner runner({});
  std::vector<int> from(32);
  std::vector<float> sums(32);
  std::vector<uint32_t> ballots(32);
  runner.Launch("shuffle", {1, 1, 1}, 32, 0, [&] {
    const auto lane = static_cast<size_t>(ThreadX());
    from[lane] = Shuffle(ThreadX(), (ThreadX() + 3) % 32);
    sums[lane] = WarpSum(0.1f * static_cast<float>(ThreadX()));
    ballots[lane] = Ballot(ThreadX() % 3 == 0);
  });
  // The bits of the five shuffles that the sum stands for.
  std::vector<float> tree(32);
  for (size_t i = 0; i < 32; ++i) tree[i] = 0.1f * static_cast<float>(i);
  for (size_t d = 16; d > 0; d /= 2) {
    std::vector<float> next = tree;
    for (size_t i = 0; i < 32; ++i) next[i] = tree[i] + tree[i ^ d];
    tree = next;
  }
  for (size_t i = 0; i < 32; ++i) {
    EXPECT_EQ(from[i], static_cast<int>((i + 3) % 32));
    EXPECT_EQ(sums[i], tree[i]);
    EXPECT_EQ(ballots[i], 0x49249249u);
  }
}

// mma.m16n8k32 by the tables of the PTX manual.
TEST(RunnerTest, MmaMultipliesFragments) {
  Runner runner({});
  std::mt19937 random(5);
  int8_t a[16][32];
  int8_t b[32][8];
  for (auto& row : a) {
    for (int8_t& v : row) v = static_cast<int8_t>(random());
  }
  for (auto& row : b) {
    for (int8_t& v : row) v = static_cast<int8_t>(random());
  }
  int32_t c[16][8] = {};
  runner.Launch("mma", {1, 1, 1}, 32, 0, [&] {
    const int group = ThreadX() >> 2;
    const int in_group = ThreadX() % 4;
    uint32_t a_words[4] = {};
    uint32_t b_words[2] = {};
    for (int i = 0; i < 16; ++i) {  // element a_i
      const int row = (i < 4 || (i >= 8 && i < 12)) ? group : group + 8;
      const int column = in_group * 4 + (i & 3) + (i < 8 ? 0 : 16);
      a_words[i / 4] |= uint32_t{static_cast<uint8_t>(a[row][column])} << (i % 4 * 8);
    }
    for (int i = 0; i < 8; ++i) {  // element b_i
      const int row = in_group * 4 + (i & 3) + (i < 4 ? 0 : 16);
      b_words[i / 4] |= uint32_t{static_cast<uint8_t>(b[row][group])} << (i % 4 * 8);
    }
    int32_t sums[4] = {};
    MmaS8(sums, a_words, b_words);
    for (int i = 0; i < 4; ++i) {
      c[i < 2 ? group : group + 8][in_group * 2 + (i & 1)] = sums[i];
    }
  });
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      int32_t expected = 0;
      for (int k = 0; k < 32; ++k) expected += a[row][k] * b[k][column];
      EXPECT_EQ(c[row][column], expected) << row << ", " << column;
    }
  }
}

}  // namespace
}  // namespace withy::engine::gpu_on_cpu
