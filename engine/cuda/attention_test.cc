// Attention of tiles gives the bits of attention by single rows, for whatever rows and blocks.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "engine/cuda/attend_tiles.h"
#include "engine/cuda/kernels/device-inl.cuh"
#include "engine/cuda/on_cpu/gpu_on_cpu.h"
#include "engine/kv/encode.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace withy::engine::cuda {
namespace {

using on_cpu::GpuOnCpu;

// What a case may have. Counts are the largest.
struct CaseLimits {
  int rows = 24;
  int chunks = 40;  // of a context
  int contexts = 2;
  int head_blocks = 8;  // head_dim / 32
  bool lower_formats = true;
  bool trees = true;
};

// A layer of attention with random rows and contexts, in the memory of a device.
class Case {
 public:
  Case(GpuOnCpu& gpu, std::mt19937& random, const CaseLimits& limits)
      : gpu_(gpu), random_(random), limits_(limits) {
    MakeShape();
    MakePlaces();
    for (int i = 0; i < 1 + Below(limits.contexts); ++i) MakeContext();
    MakeRows();
    MakeQueries();
    if (Below(3) == 0) MakeBias();
    args_.contexts = Put(contexts_);
    args_.densities = Below(2) == 0;
  }

  // Parts of all rows as bits; what no kernel writes is the same in every result.
  std::vector<uint32_t> Compute(bool tiles) {
    const Shape& s = args_.shape;
    const auto count = static_cast<size_t>(args_.rows) * static_cast<size_t>(s.heads);
    std::vector<float> parts(count * static_cast<size_t>(args_.runs) *
                             static_cast<size_t>(s.head_dim + kPartExtra));
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<float>(i % 1000);
    args_.parts = Put(parts);
    const size_t bytes = parts.size() * sizeof(float);
    const TileLimits limits = LimitsOf(s, args_.bias.pairs != nullptr, bytes, bytes);
    const AttendTiles plan = PlanTiles(planned_, chosen_, half_contexts_,
                                       {.rows = tiles ? limits.rows : 0, .at_once = args_.rows});
    const auto launch = [&](const std::vector<AttendTile>& of, auto attend) {
      TakeTiles(of, Put(of), 0, args_.rows, &args_);
      if (args_.tile_count > 0) attend(gpu_.queue(), args_);
    };
    launch(plan.tiles, gpu_.kernels().attend_tiles);
    launch(plan.tails, gpu_.kernels().attend_tiles);
    launch(plan.single, gpu_.kernels().attend);
    std::vector<uint32_t> result(parts.size());
    std::memcpy(result.data(), args_.parts, bytes);
    return result;
  }

  // Names the first number that differs, and the case.
  std::string Describe(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) const {
    const Shape& s = args_.shape;
    std::string text;
    const auto at = static_cast<int>(std::ranges::mismatch(a, b).in1 - a.begin());
    if (at < static_cast<int>(a.size())) {
      const int stride = s.head_dim + kPartExtra;
      const int part = at / stride;
      text = "row " + std::to_string(part / args_.runs / s.heads) + ", head " +
             std::to_string(part / args_.runs % s.heads) + ", run " +
             std::to_string(part % args_.runs) + ", number " + std::to_string(at % stride) + ": " +
             std::to_string(std::bit_cast<float>(a[static_cast<size_t>(at)])) + " and " +
             std::to_string(std::bit_cast<float>(b[static_cast<size_t>(at)])) + "; ";
    }
    return text + "heads " + std::to_string(s.heads) + " on " + std::to_string(s.kv_heads) +
           " of " + std::to_string(s.head_dim) + ", rows " + std::to_string(args_.rows) +
           ", runs " + std::to_string(args_.runs) +
           (args_.bias.pairs != nullptr ? ", key bias" : "") +
           (args_.densities ? ", densities" : "");
  }

 private:
  int Below(int n) { return static_cast<int>(random_() % static_cast<uint32_t>(n)); }
  float Number(float from, float to) {
    return from + (to - from) * static_cast<float>(Below(1 << 20)) / static_cast<float>(1 << 20);
  }
  template <typename T>
  T* Put(const std::vector<T>& values) {
    const size_t bytes = values.size() * sizeof(T);
    void* const memory = *gpu_.Allocate(MemoryWay::kDevice, std::max<size_t>(bytes, 1));
    if (bytes > 0) std::memcpy(memory, values.data(), bytes);
    return static_cast<T*>(memory);
  }

  void MakeShape() {
    Shape& s = args_.shape;
    s.layers = 1 + Below(2);
    s.kv_heads = 1 + Below(3);
    s.heads = s.kv_heads * (1 + Below(8));
    s.head_dim = 32 * (1 + Below(limits_.head_blocks));
    s.rank_major = Below(2) == 0;
    s.scale = 0.1f;
    args_.layer = Below(s.layers);
    geometry_ = {s.layers, s.kv_heads, s.head_dim};
    args_.block_bytes = static_cast<uint32_t>(geometry_.BlockBytes());
  }

  void MakePlaces() {
    std::vector<KvPlaces> places(kKvFormats);
    for (size_t format = 1; format < places.size(); ++format) {
      places[format] = PlacesOf(geometry_, static_cast<KvFormat>(format));
    }
    args_.places = Put(places);
  }

  // A block of kQ8. Some tokens have values of zero.
  void FillBlock(std::byte* block) {
    for (int head = 0; head < geometry_.kv_heads; ++head) {
      const KvOffsets at = geometry_.Offsets(KvFormat::kQ8, head);
      const auto elements = static_cast<size_t>(geometry_.head_dim * kChunkTokens);
      for (size_t i = 0; i < elements; ++i) {
        block[at.k + i] = static_cast<std::byte>(1 + Below(255));
        block[at.v + i] = static_cast<std::byte>(Below(255) - 127);
      }
      for (size_t token = 0; token < kChunkTokens; ++token) {
        const float k = Number(0.0f, 0.02f);
        const float v = Below(20) == 0 ? 0.0f : Number(0.0f, 0.02f);
        std::memcpy(block + at.k_scale + token * 4, &k, 4);
        std::memcpy(block + at.v_scale + token * 4, &v, 4);
      }
    }
  }

  KvFormat AnyFormat() {
    static constexpr KvFormat kFormats[] = {KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ2,
                                            KvFormat::kQ4Q2};
    return kFormats[Below(4)];
  }

  void MakeContext() {
    const int chunks = 1 + Below(limits_.chunks);
    const int mode = limits_.lower_formats ? Below(3) : 0;  // 8 bits, one format, any
    const KvFormat format = AnyFormat();
    const size_t stride = geometry_.BlockBytes();
    auto* const memory = static_cast<std::byte*>(
        *gpu_.Allocate(MemoryWay::kDevice, stride * static_cast<size_t>(chunks)));
    std::vector<KvBlockName> names(static_cast<size_t>(chunks * geometry_.layers));
    std::vector<std::byte> whole(stride);
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const KvFormat to = mode == 0 ? KvFormat::kQ8 : mode == 1 ? format : AnyFormat();
      std::byte* const block = memory + stride * static_cast<size_t>(chunk);
      FillBlock(whole.data());
      if (to == KvFormat::kQ8) {
        std::memcpy(block, whole.data(), stride);
      } else {
        EncodeBlock(geometry_, whole.data(), KvFormat::kQ8, to, block);
      }
      names[static_cast<size_t>(chunk * geometry_.layers + args_.layer)] =
          KvBlockName::AtOffset(stride * static_cast<size_t>(chunk), to);
    }
    chunks_.push_back(chunks);
    half_contexts_.push_back(false);
    contexts_.push_back({.blocks = Put(names), .memory = reinterpret_cast<uint8_t*>(memory)});
  }

  // Runs of rows of one context and level, by position or anywhere; some are rows of trees.
  void MakeRows() {
    const Shape& s = args_.shape;
    const int count = 1 + Below(limits_.rows);
    const int unit = s.rank_major ? s.kv_heads : s.heads / s.kv_heads;
    std::vector<std::byte> tail;
    std::vector<int32_t> extents;
    std::vector<Row> rows;
    int of_level[3];
    for (int& extent : of_level) extent = Below(s.heads / unit + 1) * unit;
    asked_.resize(static_cast<size_t>(count));
    const bool extended = Below(2) == 0;
    for (int i = 0; i < count;) {
      const int context = Below(static_cast<int>(contexts_.size()));
      const int level = Below(3);
      const int tokens = chunks_[static_cast<size_t>(context)] * kChunkTokens;
      const bool anywhere = Below(3) == 0;
      const bool tree = limits_.trees && Below(4) == 0;
      int position = Below(tokens);
      for (int n = 1 + Below(count); n > 0 && i < count; --n, ++i) {
        engine::Row& asked = asked_[static_cast<size_t>(i)];
        asked.context = context;
        asked.position = position;
        PlannedRow& planned = planned_.emplace_back();
        planned.row = &asked;
        planned.level = level;
        if (tree) {
          planned.tail_group = std::max(0, position / kChunkTokens - Below(3));
          planned.tail_blocks = position / kChunkTokens - planned.tail_group + 1;
          planned.tail_first = static_cast<int32_t>(tail.size() / args_.block_bytes);
          for (int block = 0; block < planned.tail_blocks; ++block) {
            tail.resize(tail.size() + args_.block_bytes);
            FillBlock(tail.data() + tail.size() - args_.block_bytes);
          }
        }
        rows.push_back({.position = position,
                        .context = context,
                        .tail_group = planned.tail_group,
                        .tail_first = planned.tail_first});
        extents.push_back(of_level[level]);
        args_.runs = std::max(args_.runs, position / kRunKeys + 1);
        position = anywhere ? Below(tokens) : std::min(position + 1, tokens - 1);
      }
    }
    args_.row = Put(rows);
    args_.tail = reinterpret_cast<const uint8_t*>(Put(tail));
    const bool some = Below(3) == 0;
    std::vector<int32_t> of_chosen;
    for (int i = 0; i < count; ++i) {
      if (some && i > 0 && Below(2) == 0) continue;
      chosen_.push_back(i);
      of_chosen.push_back(extents[static_cast<size_t>(i)]);
    }
    args_.rows = static_cast<int>(chosen_.size());
    if (some) args_.wanted = Put(chosen_);
    if (extended) args_.head_extent = Put(of_chosen);
  }

  void MakeQueries() {
    const Shape& s = args_.shape;
    const size_t heads = planned_.size() * static_cast<size_t>(s.heads);
    std::vector<int8_t> q(heads * static_cast<size_t>(s.head_dim));
    for (int8_t& v : q) v = static_cast<int8_t>(Below(255) - 127);
    std::vector<float> scale(heads);
    std::vector<int32_t> sum(heads);
    for (size_t i = 0; i < heads; ++i) {
      scale[i] = Number(0.0f, 0.01f);
      for (int d = 0; d < s.head_dim; ++d) {
        sum[i] += q[i * static_cast<size_t>(s.head_dim) + static_cast<size_t>(d)];
      }
    }
    args_.queries = {.q = Put(q), .scale = Put(scale), .sum = Put(sum)};
  }

  void MakeBias() {
    const Shape& s = args_.shape;
    constexpr int kAngles = 7;
    std::vector<BiasPair> pairs(static_cast<size_t>(s.kv_heads * kMaxBiasPairs));
    for (BiasPair& pair : pairs) pair.angle = Below(kAngles);
    std::vector<int32_t> counts(static_cast<size_t>(s.kv_heads));
    for (int32_t& count : counts) count = Below(4) == 0 ? kMaxBiasPairs : Below(5);
    std::vector<float> in_run(static_cast<size_t>(kAngles * 2 * kRunKeys));
    std::vector<float> of_run(static_cast<size_t>(args_.runs * kAngles * 2));
    std::vector<float> factors(planned_.size() * static_cast<size_t>(s.heads * kMaxBiasPairs * 2));
    for (std::vector<float>* table : {&in_run, &of_run, &factors}) {
      for (float& v : *table) v = Number(-1.0f, 1.0f);
    }
    args_.bias = {.pairs = Put(pairs),
                  .counts = Put(counts),
                  .in_run = Put(in_run),
                  .of_run = Put(of_run),
                  .angles = kAngles};
    args_.queries.bias = Put(factors);
  }

  GpuOnCpu& gpu_;
  std::mt19937& random_;
  const CaseLimits limits_;
  KvGeometry geometry_;
  AttendArgs args_;
  std::vector<int> chunks_;  // [context]
  std::vector<bool> half_contexts_;
  std::vector<Context> contexts_;
  std::vector<engine::Row> asked_;
  std::vector<PlannedRow> planned_;
  std::vector<int32_t> chosen_;
};

TEST(CudaAttentionTest, TilesGiveTheBitsOfSingleRows) {
  const uint32_t seed = TestSeed();
  for (uint32_t i = 0; i < 60; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed + i));
    std::mt19937 random(seed + i);
    GpuOnCpu gpu;
    Case c(gpu, random, {});
    const std::vector<uint32_t> tiles = c.Compute(true);
    const std::vector<uint32_t> single = c.Compute(false);
    ASSERT_TRUE(tiles == single) << c.Describe(tiles, single);
  }
}

// No races, no accesses out of bounds, no divergent barriers, in any order of threads.
TEST(CudaAttentionTest, TilesAreRightInEveryOrder) {
  const uint32_t seed = TestSeed();
  for (uint32_t i = 0; i < 12; ++i) {
    SCOPED_TRACE("seed " + std::to_string(seed + i));
    std::vector<uint32_t> expected;
    for (const on_cpu::Order order :
         {on_cpu::Order::kForward, on_cpu::Order::kReverse, on_cpu::Order::kRandom}) {
      std::mt19937 random(seed + i);
      GpuOnCpu gpu({.order = order, .seed = i, .checks = true});
      Case c(gpu, random, {.rows = 6, .chunks = 20, .contexts = 1});
      const std::vector<uint32_t> got = c.Compute(true);
      ASSERT_TRUE(gpu.runner().watch().findings().empty())
          << on_cpu::Describe(gpu.runner().watch().findings().front());
      if (expected.empty()) expected = got;
      ASSERT_TRUE(got == expected) << c.Describe(got, expected);
    }
  }
}

// Parts of attention whose numbers do not matter, merged.
class Merge {
 public:
  Merge(int rows, int heads, int head_dim, int runs, uint32_t seed)
      : runs_(runs), stride_(static_cast<size_t>(head_dim + kPartExtra)) {
    std::mt19937 random(seed);
    args_.shape = {.heads = heads, .head_dim = head_dim, .rotation = 1};
    args_.rows = rows;
    args_.runs = runs;
    args_.keep_floats = true;
    args_.density_stride = runs * kRunGroups;
    std::uniform_real_distribution<float> number(-4.0f, 4.0f);
    parts_.resize(Heads() * static_cast<size_t>(runs) * stride_);
    for (float& v : parts_) v = number(random);
    for (int row = 0; row < rows; ++row) {
      rows_.push_back(
          {.position = static_cast<int>(random() % static_cast<uint32_t>(runs * kRunKeys))});
    }
    rows_.back().position = runs * kRunKeys - 1;
  }

  // Outputs, then densities: of the kernel, `at_once` rows a launch.
  std::vector<float> Compute(int at_once) {
    GpuOnCpu gpu({.checks = true});
    const auto put = [&](const auto& values) {
      const size_t bytes = values.size() * sizeof(values[0]);
      void* const memory = *gpu.Allocate(MemoryWay::kDevice, bytes);
      std::memcpy(memory, values.data(), bytes);
      return memory;
    };
    AttendArgs args = args_;
    const size_t width = static_cast<size_t>(args.shape.heads * args.shape.head_dim);
    args.to.groups = static_cast<int>((width + kGroupInputs - 1) / kGroupInputs);
    const size_t padded = static_cast<size_t>(args.to.groups * kGroupInputs);
    args.to.floats =
        static_cast<float*>(put(std::vector<float>(static_cast<size_t>(args.rows) * padded)));
    args.density = static_cast<float*>(put(std::vector<float>(Densities())));
    args.row = static_cast<const Row*>(put(rows_));
    auto* const parts = static_cast<float*>(put(parts_));
    for (int row = 0; row < args_.rows; row += at_once) {
      args.first_row = row;
      args.rows = std::min(at_once, args_.rows - row);
      args.parts = parts + static_cast<size_t>(row * args.shape.heads * runs_) * stride_;
      gpu.kernels().merge(gpu.queue(), args);
    }
    EXPECT_TRUE(gpu.runner().watch().findings().empty())
        << on_cpu::Describe(gpu.runner().watch().findings().front());
    std::vector<float> result;
    for (int row = 0; row < args_.rows; ++row) {
      const float* const of_row = args.to.floats + static_cast<size_t>(row) * padded;
      result.insert(result.end(), of_row, of_row + width);
    }
    result.insert(result.end(), args.density, args.density + Densities());
    return result;
  }

  // The same, one number after the other.
  std::vector<float> Expected() const {
    const auto head_dim = static_cast<size_t>(args_.shape.head_dim);
    std::vector<float> outputs;
    std::vector<float> densities(Densities());
    for (size_t i = 0; i < Heads(); ++i) {
      const int position = rows_[i / static_cast<size_t>(args_.shape.heads)].position;
      const auto runs = static_cast<size_t>(position / kRunKeys + 1);
      const float* const part = parts_.data() + i * static_cast<size_t>(runs_) * stride_;
      float max = -3.0e38f;
      for (size_t run = 0; run < runs; ++run) max = std::max(max, part[run * stride_ + head_dim]);
      std::vector<float> out(head_dim);
      float sum = 0;
      for (size_t run = 0; run < runs; ++run) {
        const float* const of_run = part + run * stride_;
        const float factor = gpu_on_cpu::Exp(of_run[head_dim] - max);
        sum = std::fma(of_run[head_dim + 1], factor, sum);
        for (size_t d = 0; d < head_dim; ++d) out[d] = std::fma(of_run[d], factor, out[d]);
      }
      for (const float v : out) outputs.push_back(v * (1.0f / sum));
      for (size_t c = 0; c <= static_cast<size_t>(position / kChunkTokens); ++c) {
        const float* const of_run = part + c / kRunGroups * stride_ + head_dim;
        const float factor = gpu_on_cpu::Exp(of_run[0] - max) * (1.0f / sum);
        densities[i * static_cast<size_t>(args_.density_stride) + c] =
            std::fma(of_run[2 + c % kRunGroups], factor, 0.0f);
      }
    }
    outputs.insert(outputs.end(), densities.begin(), densities.end());
    return outputs;
  }

 private:
  size_t Heads() const { return static_cast<size_t>(args_.rows * args_.shape.heads); }
  size_t Densities() const { return Heads() * static_cast<size_t>(args_.density_stride); }

  AttendArgs args_;
  const int runs_;
  const size_t stride_;  // of runs
  std::vector<float> parts_;
  std::vector<Row> rows_;
};

// Runs are added in order, and however many rows a launch has: warps share a head where these are
// few.
TEST(CudaAttentionTest, MergesRunsInOrder) {
  const uint32_t seed = TestSeed();
  std::mt19937 random(seed);
  const auto between = [&](int least, int most) {
    return least + static_cast<int>(random() % static_cast<uint32_t>(most - least + 1));
  };
  for (int i = 0; i < 6; ++i) {
    const int heads = between(1, 40);
    const int rows = i % 2 == 0 ? between(1, 3) : 1024 / heads + 1;
    Merge merge(rows, heads, 32 * between(1, 8), i % 2 == 0 ? between(1, 70) : between(1, 3),
                seed + static_cast<uint32_t>(i));
    const std::vector<float> expected = merge.Expected();
    for (const int at_once : {rows, 1}) {
      EXPECT_TRUE(merge.Compute(at_once) == expected)
          << "seed " << seed << ", case " << i << ", " << at_once << " rows a launch";
    }
  }
}

// Rows of one context and level share a tile, as many as fit; a launch's rows and those of 16-bit
// blocks are by themselves, and so are the tails of trees.
TEST(CudaAttentionTest, PlansTilesOfRowsThatReadAlike) {
  std::vector<engine::Row> asked(60);
  std::vector<PlannedRow> rows(asked.size());
  std::vector<int32_t> chosen;
  for (int32_t i = 0; i < static_cast<int32_t>(rows.size()); ++i) {
    engine::Row& row = asked[static_cast<size_t>(i)];
    PlannedRow& planned = rows[static_cast<size_t>(i)];
    planned.row = &row;
    row.position = 600 + i;
    row.context = i < 58 ? 0 : 1;
    planned.level = i < 40 ? 1 : 0;
    if (i >= 50 && i < 58) planned.tail_group = 33 + i % 2;  // in the third run
    chosen.push_back(i);
  }
  const AttendTiles plan = PlanTiles(rows, chosen, {false, true}, {.rows = 16, .at_once = 32});
  const auto spans = [](const std::vector<AttendTile>& tiles) {
    std::vector<std::vector<int>> list;
    for (const AttendTile& t : tiles) list.push_back({t.first, t.rows, t.first_run, t.runs});
    return list;
  };
  EXPECT_THAT(spans(plan.tiles),
              testing::ElementsAre(std::vector{0, 16, 0, 3}, std::vector{16, 16, 0, 3},
                                   std::vector{32, 8, 0, 3}, std::vector{40, 10, 0, 3},
                                   std::vector{50, 8, 0, 2}));
  ASSERT_EQ(plan.tails.size(), 8u);
  EXPECT_EQ(spans(plan.tails).front(), (std::vector{50, 1, 2, 1}));
  EXPECT_THAT(spans(plan.single),
              testing::ElementsAre(std::vector{58, 1, 0, 3}, std::vector{59, 1, 0, 3}));
  AttendArgs args;
  TakeTiles(plan.tiles, nullptr, 32, 28, &args);
  EXPECT_EQ(args.tile_count, 3);
  EXPECT_EQ(args.tile_rows, 10);
  EXPECT_EQ(args.tile_runs, 3);
}

}  // namespace
}  // namespace withy::engine::cuda
