// Tests attention of every supported target against a slow reference over the quantised keys, and
// that results do not depend on batch, slots or splitting.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "engine/cpu/kernels.h"
#include "engine/cpu/parallel.h"
#include "engine/cpu/testing.h"
#include "engine/kv/encode.h"

namespace withy::engine {
namespace {

// A context's blocks of one layer, chunk c in formats[c % formats.size()]. Slots beyond its tokens
// hold bytes that would change a result that reads them.
class Context {
 public:
  Context(const KvGeometry& g, int tokens, std::vector<KvFormat> formats = {KvFormat::kQ8})
      : g_(g), tokens_(tokens), formats_(std::move(formats)), bytes_(Stride() * Chunks(tokens)) {
    std::memset(bytes_.data(), 0x7f, bytes_.size());
    for (size_t c = 0; c < Chunks(tokens); ++c) {
      std::byte* block = bytes_.data() + c * Stride();
      pointers_.push_back(block);
      blocks_.push_back(KvBlockName::AtOffset(c * Stride(), Format(static_cast<int>(c))));
      if (blocks_.back().format != KvFormat::kF16) SpoilScales(KvFormat::kQ8, block, 0);
    }
  }
  void Write(const Kernels& kernels, int position, const float* k, const float* v) {
    const KvFormat format = Format(position / 16);
    kernels.write_kv(g_, k, v, format == KvFormat::kF16 ? format : KvFormat::kQ8,
                     Block(position / 16), position % 16);
  }
  // Encodes the chunks of lower formats, once all tokens are written.
  void Encode() {
    for (int chunk = 0; chunk < static_cast<int>(pointers_.size()); ++chunk) {
      const KvFormat format = Format(chunk);
      if (format == KvFormat::kQ8 || format == KvFormat::kF16) continue;
      const std::vector<std::byte> q8(Block(chunk), Block(chunk) + g_.BlockBytes());
      std::memset(Block(chunk), 0x7f, Stride());
      EncodeBlock(g_, q8.data(), KvFormat::kQ8, format, Block(chunk));
      SpoilScales(format, Block(chunk), tokens_ - chunk * 16);
    }
  }
  KvFormat Format(int chunk) const {
    return formats_[static_cast<size_t>(chunk) % formats_.size()];
  }
  std::byte* Block(int chunk) {
    return const_cast<std::byte*>(pointers_[static_cast<size_t>(chunk)]);
  }
  void Read(int position, float* k, float* v) const {
    ReadToken(g_, pointers_[static_cast<size_t>(position / 16)], position % 16, k, v,
              Format(position / 16));
  }
  const std::byte* memory() const { return bytes_.data(); }
  const KvBlockName* blocks() const { return blocks_.data(); }
  const std::byte* const* pointers() const { return pointers_.data(); }

 private:
  static size_t Chunks(int tokens) { return static_cast<size_t>((tokens + 15) / 16); }
  size_t Stride() const { return g_.BlockBytes(KvFormat::kF16); }
  // Makes the scales of slots from `begin` on NaN, or the largest.
  void SpoilScales(KvFormat format, std::byte* block, int begin) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (int head = 0; head < g_.kv_heads; ++head) {
      const KvOffsets at = g_.Offsets(format, head);
      for (auto slot = static_cast<size_t>(begin); slot < 16; ++slot) {
        for (const size_t scales : {at.k_scale, at.v_scale}) {
          if (format == KvFormat::kQ8) {
            std::memcpy(block + scales + 4 * slot, &nan, sizeof nan);
          } else {
            block[scales + slot] = std::byte{255};
          }
        }
      }
    }
  }

  KvGeometry g_;
  int tokens_;
  std::vector<KvFormat> formats_;
  AlignedArray<std::byte> bytes_;
  std::vector<const std::byte*> pointers_;
  std::vector<KvBlockName> blocks_;
};

// Every format alone, and mixtures.
const std::vector<std::vector<KvFormat>>& FormatMixtures() {
  using enum KvFormat;
  static const auto* mixtures = new std::vector<std::vector<KvFormat>>{
      {kQ8},
      {kQ4},
      {kQ2},
      {kQ4Q2},
      {kF16},
      {kQ8, kQ8, kQ4},
      {kQ2, kQ4, kQ8, kQ4Q2, kQ4, kQ4, kF16},
      {kQ8, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ4, kQ2}};
  return *mixtures;
}

class AttentionTest : public testing::TestWithParam<Target> {
 protected:
  const Kernels& kernels() const { return *KernelsFor(GetParam()); }

  Context Filled(const KvGeometry& g, int tokens, unsigned seed,
                 const std::vector<KvFormat>& formats = {KvFormat::kQ8}) {
    std::mt19937 rng(seed);
    Context context(g, tokens, formats);
    const size_t n = static_cast<size_t>(g.kv_heads * g.head_dim);
    for (int p = 0; p < tokens; ++p) {
      const std::vector<float> k = RandomFloats(rng, n);
      const std::vector<float> v = RandomFloats(rng, n);
      context.Write(kernels(), p, k.data(), v.data());
    }
    context.Encode();
    return context;
  }

  void Run(AttentionArgs args, const std::vector<AttentionRow>& rows, const float* q, float* out) {
    args.rows = static_cast<int>(rows.size());
    args.row = rows.data();
    args.q = q;
    args.out = out;
    args.q_stride = args.out_stride = args.q_heads * args.geometry.head_dim;
    kernels().attention(args, 0, AttentionItems(args));
  }
};

// Over the keys at positions first .. visible-1; scores are capped where `cap` is not 0. `left`
// becomes the sum of the keys' probabilities beside those of `sink`.
std::vector<double> SlowAttention(const KvGeometry& g, const float* q, int kv_head, float scale,
                                  const Context& context, int visible, int first = 0,
                                  double cap = 0, double sink = -1e30, double* left = nullptr) {
  std::vector<double> scores;
  std::vector<std::vector<float>> values;
  std::vector<float> k(static_cast<size_t>(g.kv_heads * g.head_dim));
  std::vector<float> v(k.size());
  for (int p = first; p < visible; ++p) {
    context.Read(p, k.data(), v.data());
    double dot = 0;
    for (int d = 0; d < g.head_dim; ++d) {
      dot += static_cast<double>(q[d]) *
             static_cast<double>(k[static_cast<size_t>(kv_head * g.head_dim + d)]);
    }
    const double score = dot * static_cast<double>(scale);
    scores.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
    values.emplace_back(v.begin() + kv_head * g.head_dim, v.begin() + (kv_head + 1) * g.head_dim);
  }
  const double max = std::max(sink, *std::max_element(scores.begin(), scores.end()));
  double sum = 0;
  std::vector<double> out(static_cast<size_t>(g.head_dim));
  for (size_t p = 0; p < scores.size(); ++p) {
    const double e = std::exp(scores[p] - max);
    sum += e;
    for (size_t d = 0; d < out.size(); ++d) out[d] += e * static_cast<double>(values[p][d]);
  }
  const double all = sum + std::exp(sink - max);
  if (left != nullptr) *left = sum / all;
  for (double& o : out) o /= all;
  return out;
}

// Difference to `want`, relative to its norm.
double RelativeError(const float* got, const std::vector<double>& want) {
  double error = 0;
  double norm = 0;
  for (size_t d = 0; d < want.size(); ++d) {
    const double e = static_cast<double>(got[d]) - want[d];
    error += e * e;
    norm += want[d] * want[d];
  }
  return std::sqrt(error / norm);
}

TEST_P(AttentionTest, MatchesTheReferenceOverShapesLengthsAndFormats) {
  const struct {
    int q_heads, kv_heads, head_dim;
  } shapes[] = {{3, 1, 16}, {4, 1, 32},  {8, 2, 64},  {6, 6, 80},
                {9, 3, 96}, {5, 1, 128}, {2, 1, 256}, {40, 1, 64}};
  for (const auto& shape : shapes) {
    const KvGeometry g{1, shape.kv_heads, shape.head_dim};
    for (const auto& formats : FormatMixtures()) {
      for (const int tokens : {1, 15, 16, 17, 33, 255, 256, 257, 600}) {
        const Context context = Filled(g, tokens, static_cast<unsigned>(tokens), formats);
        std::mt19937 rng(5);
        const size_t width = static_cast<size_t>(shape.q_heads * shape.head_dim);
        const std::vector<float> q = RandomFloats(rng, width);
        std::vector<float> out(width);
        AttentionArgs args;
        args.geometry = g;
        args.q_heads = shape.q_heads;
        args.scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
        Run(args, {{context.memory(), context.blocks(), 1, tokens}}, q.data(), out.data());
        for (int h = 0; h<shape.q_heads; h += shape.q_heads> 9 ? 7 : 1) {
          const int at = h * shape.head_dim;
          const std::vector<double> want = SlowAttention(
              g, q.data() + at, h / (shape.q_heads / shape.kv_heads), args.scale, context, tokens);
          // Queries and probabilities are rounded to 8 bits: about 0.6 % each.
          ASSERT_LT(RelativeError(out.data() + at, want), 0.02)
              << shape.q_heads << "/" << shape.kv_heads << "x" << shape.head_dim << " tokens "
              << tokens << " head " << h << " first format " << KvFormatName(formats[0]) << " of "
              << formats.size();
        }
      }
    }
  }
}

// Keys that are stored without the bias of some pairs give what keys with it give.
TEST_P(AttentionTest, AddsTheBiasThatKeysAreStoredWithout) {
  const KvGeometry g{1, 2, 64};
  const int tokens = 700;
  const std::vector<float> frequencies = RopeFrequencies(64, 10000, 1, nullptr);
  AttentionKeyBias bias;
  std::vector<AttentionKeyBias::Pair> pairs(2 * kMaxKeyBiasPairs);
  std::vector<int32_t> counts = {3, 0};  // the second head has none
  const int chosen[] = {4, 29, 31};
  for (int i = 0; i < 3; ++i) {
    pairs[static_cast<size_t>(i)] = {chosen[i], chosen[i] + 32, chosen[i], 30.0f + 5 * i,
                                     i == 1 ? 0.0f : -40.0f};
  }
  std::vector<float> in_run(32 * 2 * kAttentionRunKeys), of_run(3 * 32 * 2);
  for (size_t a = 0; a < 32; ++a) {
    for (int p = 0; p < kAttentionRunKeys; ++p) {
      float* to = &in_run[a * 2 * kAttentionRunKeys + static_cast<size_t>(p)];
      to[0] = std::cos(frequencies[a] * static_cast<float>(p));
      to[kAttentionRunKeys] = std::sin(frequencies[a] * static_cast<float>(p));
    }
    for (size_t run = 0; run < 3; ++run) {
      of_run[(run * 32 + a) * 2] = std::cos(frequencies[a] * static_cast<float>(run * 256));
      of_run[(run * 32 + a) * 2 + 1] = std::sin(frequencies[a] * static_cast<float>(run * 256));
    }
  }
  bias = {pairs.data(), counts.data(), in_run.data(), of_run.data(), 32};
  const Context stored = Filled(g, tokens, 1, {KvFormat::kF16});
  // The same with the rotated bias in the keys.
  Context whole(g, tokens, {KvFormat::kF16});
  std::vector<float> k(128), v(128);
  for (int p = 0; p < tokens; ++p) {
    stored.Read(p, k.data(), v.data());
    for (int i = 0; i < counts[0]; ++i) {
      const AttentionKeyBias::Pair& pair = pairs[static_cast<size_t>(i)];
      const double angle = p * static_cast<double>(frequencies[static_cast<size_t>(pair.angle)]);
      const auto c = static_cast<float>(std::cos(angle));
      const auto s = static_cast<float>(std::sin(angle));
      k[static_cast<size_t>(pair.first)] += pair.bias_first * c - pair.bias_second * s;
      k[static_cast<size_t>(pair.second)] += pair.bias_second * c + pair.bias_first * s;
    }
    whole.Write(kernels(), p, k.data(), v.data());
  }
  std::mt19937 rng(5);
  const std::vector<float> q = RandomFloats(rng, 4 * 64, 0.3f);
  std::vector<float> out(q.size());
  AttentionArgs args;
  args.geometry = g;
  args.q_heads = 4;
  args.scale = 0.125f;
  args.key_bias = &bias;
  for (const int visible : {1, 16, 40, 256, 300, tokens}) {
    Run(args, {{stored.memory(), stored.blocks(), 1, visible}}, q.data(), out.data());
    for (int h = 0; h < 4; ++h) {
      const auto want = SlowAttention(g, q.data() + h * 64, h / 2, args.scale, whole, visible);
      EXPECT_LT(RelativeError(out.data() + h * 64, want), 0.02) << visible << " head " << h;
    }
  }
}

TEST_P(AttentionTest, SixteenBitsAreExact) {
  const KvGeometry g{1, 2, 64};
  const Context context = Filled(g, 300, 1, {KvFormat::kF16});
  std::mt19937 rng(5);
  const std::vector<float> q = RandomFloats(rng, 128);
  std::vector<float> out(128);
  AttentionArgs args;
  args.geometry = g;
  args.q_heads = 2;
  args.scale = 0.5f;
  Run(args, {{context.memory(), context.blocks(), 1, 300}}, q.data(), out.data());
  for (int h = 0; h < 2; ++h) {
    const auto want = SlowAttention(g, q.data() + h * 64, h, args.scale, context, 300);
    EXPECT_LT(RelativeError(out.data() + h * 64, want), 1e-5);
  }
}

TEST_P(AttentionTest, ARowSeesItsWindowAndScoresAreCapped) {
  const KvGeometry g{1, 2, 64};
  const int tokens = 1100;
  for (const auto& formats : FormatMixtures()) {
    const Context context = Filled(g, tokens, 1, formats);
    std::mt19937 rng(5);
    const std::vector<float> q = RandomFloats(rng, 4 * 64);
    std::vector<float> out(q.size());
    AttentionArgs args;
    args.geometry = g;
    args.q_heads = 4;
    args.scale = 0.25f;
    for (const float cap : {0.0f, 2.0f}) {
      args.cap = cap;
      for (const int visible : {1, 40, 256, 257, 700, tokens}) {
        for (const int window : {1, 5, 16, 17, 255, 256, 300, 600}) {
          const int first = std::max(0, visible - window);
          AttentionRow row{context.memory(), context.blocks(), 1, visible};
          row.first = first;
          Run(args, {row}, q.data(), out.data());
          for (int h = 0; h < 4; ++h) {
            const auto want = SlowAttention(g, q.data() + h * 64, h / 2, args.scale, context,
                                            visible, first, static_cast<double>(cap));
            ASSERT_LT(RelativeError(out.data() + h * 64, want), 0.02)
                << first << " to " << visible << " head " << h << " cap " << cap;
          }
        }
      }
    }
  }
}

// A sink takes its share of each head's probabilities, whatever its size and however the keys are
// shared out; densities are of what is left.
TEST_P(AttentionTest, ASinkIsInTheSumAlone) {
  const KvGeometry g{1, 2, 64};
  const int tokens = 1100;
  const Context context = Filled(g, tokens, 1);
  std::mt19937 rng(5);
  const std::vector<float> q = RandomFloats(rng, 6 * 64, 0.5f);
  // In packed order, where head h reads KV head h % 2. The last two are as none, and as all.
  const std::vector<float> sinks = {0.0f, 3.0f, -2.0f, 6.5f, -300.0f, 300.0f};
  AttentionArgs args;
  args.geometry = g;
  args.q_heads = 6;
  args.scale = 0.25f;
  args.rank_major = true;
  args.density_stride = (tokens + 15) / 16;
  const auto chunks = static_cast<size_t>(args.density_stride);
  for (const auto& [visible, first] :
       {std::pair(1, 0), std::pair(40, 3), std::pair(700, 0), std::pair(tokens, 700)}) {
    AttentionRow row{context.memory(), context.blocks(), 1, visible};
    row.first = first;
    std::vector<float> plain(q.size()), out(q.size()), density(2 * chunks),
        plain_density(2 * chunks);
    args.sinks = nullptr;
    args.density = plain_density.data();
    Run(args, {row}, q.data(), plain.data());
    args.sinks = sinks.data();
    args.density = density.data();
    Run(args, {row}, q.data(), out.data());
    double left_of_head[2] = {0, 0};
    for (int h = 0; h < 6; ++h) {
      const auto sink = static_cast<double>(sinks[static_cast<size_t>(h)]);
      double left = 0;
      const auto want = SlowAttention(g, q.data() + h * 64, h % 2, args.scale, context, visible,
                                      first, 0, sink, &left);
      left_of_head[h % 2] += left;
      if (left < 1e-30) {
        for (int d = 0; d < 64; ++d)
          EXPECT_NEAR(out[static_cast<size_t>(h * 64 + d)], 0.0f, 1e-30f);
        continue;
      }
      EXPECT_LT(RelativeError(out.data() + h * 64, want), 0.02) << visible << " head " << h;
    }
    EXPECT_TRUE(SameBits(out.data() + 4 * 64, plain.data() + 4 * 64, 64)) << "as without a sink";
    for (size_t head = 0; head < 2; ++head) {
      double sum = 0;
      for (size_t c = 0; c < chunks; ++c) sum += static_cast<double>(density[head * chunks + c]);
      EXPECT_NEAR(sum, left_of_head[head], 0.01) << visible;
    }
    AttentionArgs shared = args;
    std::vector<float> again(q.size()), again_density(2 * chunks);
    shared.rows = 1;
    shared.row = &row;
    shared.q = q.data();
    shared.q_stride = shared.out_stride = 6 * 64;
    shared.key_items = 3;
    std::vector<float> parts(AttentionPartFloats(shared));
    shared.parts = parts.data();
    shared.out = again.data();
    shared.density = again_density.data();
    kernels().attention(shared, 0, AttentionItems(shared));
    kernels().merge_attention(shared, 0, AttentionMergeItems(shared));
    EXPECT_TRUE(SameBits(again.data(), out.data(), out.size())) << visible;
    EXPECT_TRUE(SameBits(again_density.data(), density.data(), density.size())) << visible;
  }
}

// Values with large steps must not coarsen the probabilities of values at 8 bits in the same run.
TEST_P(AttentionTest, CoarseKeysDoNotDrownFineOnes) {
  const KvGeometry g{1, 1, 64};
  Context context(g, 32, {KvFormat::kQ2, KvFormat::kQ8});
  std::mt19937 rng(5);
  for (int p = 0; p < 32; ++p) {
    const std::vector<float> k = RandomFloats(rng, 64, 0.05f);
    const std::vector<float> v = RandomFloats(rng, 64, p < 16 ? 1.0f : 0.01f);
    context.Write(kernels(), p, k.data(), v.data());
  }
  context.Encode();
  // Coarse values of a large scale that are all 0, so that only the fine ones are left in the sum.
  const KvOffsets at = g.Offsets(KvFormat::kQ2, 0);
  const float one = 1.0f;
  std::memcpy(context.Block(0) + at.units + offsetof(KvUnits, v_scale), &one, sizeof one);
  std::memset(context.Block(0) + at.v_scale, 1, 16);
  std::memset(context.Block(0) + at.zero, 0x68, 16);  // the zero of V is 1.5 - 2 / 4
  std::memset(context.Block(0) + at.v, 0x55, 64 * 4);
  const std::vector<float> q = RandomFloats(rng, 64);
  std::vector<float> out(64);
  AttentionArgs args;
  args.geometry = g;
  args.q_heads = 1;
  args.scale = 0.125f;
  Run(args, {{context.memory(), context.blocks(), 1, 32}}, q.data(), out.data());
  EXPECT_LT(RelativeError(out.data(), SlowAttention(g, q.data(), 0, args.scale, context, 32)),
            0.02);
}

TEST_P(AttentionTest, ARowDoesNotDependOnTheBatchOrTheCutting) {
  for (const auto& formats : FormatMixtures()) {
    const KvGeometry g{1, 2, 64};
    const int tokens = 600;
    const Context a = Filled(g, tokens, 1, formats);
    const Context b = Filled(g, 100, 2, {formats.rbegin(), formats.rend()});
    std::mt19937 rng(3);
    AttentionArgs args;
    args.geometry = g;
    args.q_heads = 8;
    args.scale = 0.125f;
    const int width = 8 * 64;
    std::vector<AttentionRow> rows;
    rows.reserve(83);
    for (int p = 0; p < 40; ++p) rows.push_back({a.memory(), a.blocks(), 1, tokens - 39 + p});
    for (int p = 0; p < 37; ++p) rows.push_back({b.memory(), b.blocks(), 1, p + 1});
    rows.push_back({a.memory(), a.blocks(), 1, 1});
    for (const int first : {0, 7, 250, 256, 500}) {  // windows, some with nothing between them
      rows.push_back({a.memory(), a.blocks(), 1, first + 60});
      rows.back().first = first;
    }
    const std::vector<float> q = RandomFloats(rng, rows.size() * static_cast<size_t>(width));
    std::vector<float> together(q.size());
    Run(args, rows, q.data(), together.data());
    for (size_t r = 0; r < rows.size(); ++r) {
      std::vector<float> alone(static_cast<size_t>(width));
      Run(args, {rows[r]}, q.data() + r * static_cast<size_t>(width), alone.data());
      ASSERT_TRUE(
          SameBits(alone.data(), together.data() + r * static_cast<size_t>(width), alone.size()))
          << r;
    }
    ThreadPool pool(3);
    args.rows = static_cast<int>(rows.size());
    args.row = rows.data();
    args.q = q.data();
    args.q_stride = args.out_stride = width;
    std::vector<float> pooled(q.size());
    args.out = pooled.data();
    Attend(pool, kernels(), args);
    EXPECT_TRUE(SameBits(pooled.data(), together.data(), pooled.size()));
  }
}

TEST_P(AttentionTest, SharingOutTheKeysDoesNotChangeABit) {
  for (const auto& formats : FormatMixtures()) {
    const KvGeometry g{1, 3, 64};
    const int tokens = 1300;  // six runs
    const Context a = Filled(g, tokens, 1, formats);
    const Context b = Filled(g, 90, 2, formats);
    std::mt19937 rng(3);
    const int width = 9 * 64;
    std::vector<AttentionRow> rows = {{a.memory(), a.blocks(), 1, tokens - 1},
                                      {a.memory(), a.blocks(), 1, tokens},
                                      {b.memory(), b.blocks(), 1, 90},
                                      {a.memory(), a.blocks(), 1, 256}};
    for (const int first : {3, 520, 1290}) {
      rows.push_back({a.memory(), a.blocks(), 1, tokens});
      rows.back().first = first;
    }
    const std::vector<float> q = RandomFloats(rng, rows.size() * static_cast<size_t>(width));
    AttentionArgs args;
    args.geometry = g;
    args.q_heads = 9;
    args.scale = 0.125f;
    args.rows = static_cast<int>(rows.size());
    args.row = rows.data();
    args.q = q.data();
    args.q_stride = args.out_stride = width;
    args.density_stride = (tokens + 15) / 16;
    const size_t densities = rows.size() * 3 * static_cast<size_t>(args.density_stride);
    std::vector<float> whole(q.size()), whole_density(densities);
    args.out = whole.data();
    args.density = whole_density.data();
    kernels().attention(args, 0, AttentionItems(args));
    for (const int key_items : {2, 3, 6, 7}) {
      std::vector<float> out(q.size()), density(densities);
      std::vector<float> parts(AttentionPartFloats(args), std::numeric_limits<float>::quiet_NaN());
      AttentionArgs shared = args;
      shared.key_items = key_items;
      shared.parts = parts.data();
      shared.out = out.data();
      shared.density = density.data();
      for (int item = AttentionItems(shared); item-- > 0;) {
        kernels().attention(shared, item, item + 1);
      }
      kernels().merge_attention(shared, 0, AttentionMergeItems(shared));
      ASSERT_TRUE(SameBits(out.data(), whole.data(), out.size())) << key_items;
      ASSERT_TRUE(SameBits(density.data(), whole_density.data(), densities)) << key_items;
    }
  }
}

TEST(AttentionItemsTest, KeysAreSharedOutWhereHeadsDoNotKeepTheThreadsBusy) {
  AttentionRow row{.visible = 2048};
  AttentionArgs args;
  args.geometry = {1, 3, 64};
  args.q_heads = 9;
  args.rows = 1;
  args.row = &row;
  EXPECT_EQ(AttentionKeyItems(args, 1), 1);
  EXPECT_EQ(AttentionKeyItems(args, 2), 4);
  EXPECT_EQ(AttentionKeyItems(args, 3), 1) << "a head for each thread";
  EXPECT_EQ(AttentionKeyItems(args, 8), 8) << "no more than there are runs";
  row.visible = 256;
  EXPECT_EQ(AttentionKeyItems(args, 2), 1);
}

TEST_P(AttentionTest, ATreeRowEqualsPlainDecoding) {
  const KvGeometry g{1, 2, 64};
  const int committed = 37;
  const int total = 50;
  Context plain = Filled(g, total, 9);
  // The same tokens with the last 13 scattered over slots of another block chain, in reverse.
  Context tree(g, 96);
  for (int p = 0; p < committed; ++p) {
    CopyToken(g, plain.Block(p / 16), p % 16, tree.Block(p / 16), p % 16);
  }
  for (int p = committed; p < total; ++p) {
    const int slot = 95 - (p - committed);
    CopyToken(g, plain.Block(p / 16), p % 16, tree.Block(slot / 16), slot % 16);
  }
  Context tail(g, 32);
  const int tail_group = committed / 16;
  for (int p = tail_group * 16; p < total; ++p) {
    const int slot = p < committed ? p : 95 - (p - committed);
    const int to = p - tail_group * 16;
    CopyToken(g, tree.Block(slot / 16), slot % 16, tail.Block(to / 16), to % 16);
  }
  std::mt19937 rng(3);
  const std::vector<float> q = RandomFloats(rng, 3 * 8 * 64);
  AttentionArgs args;
  args.geometry = g;
  args.q_heads = 8;
  args.scale = 0.125f;
  for (const int window : {total, 30, 5}) {  // 5: begins in the tail
    std::vector<AttentionRow> in_order = {{plain.memory(), plain.blocks(), 1, 35},
                                          {plain.memory(), plain.blocks(), 1, 41},
                                          {plain.memory(), plain.blocks(), 1, total}};
    std::vector<AttentionRow> scattered = {
        {tree.memory(), tree.blocks(), 1, 35},
        {tree.memory(), tree.blocks(), 1, 41, tail.pointers(), tail_group},
        {tree.memory(), tree.blocks(), 1, total, tail.pointers(), tail_group}};
    for (auto* rows : {&in_order, &scattered}) {
      for (AttentionRow& row : *rows) row.first = std::max(0, row.visible - window);
    }
    std::vector<float> want(q.size());
    std::vector<float> got(q.size());
    Run(args, in_order, q.data(), want.data());
    Run(args, scattered, q.data(), got.data());
    EXPECT_TRUE(SameBits(want.data(), got.data(), got.size())) << window;
  }
}

TEST_P(AttentionTest, RankMajorHeadsAndExtentsAreThePrefix) {
  const KvGeometry g{1, 3, 32};
  const int group = 4;
  const Context context = Filled(g, 70, 4);
  std::mt19937 rng(3);
  const size_t width = 12 * 32;
  const std::vector<float> q = RandomFloats(rng, width);
  std::vector<float> ranked(width);
  for (int h = 0; h < 12; ++h) {
    const int to = (h % group) * g.kv_heads + h / group;
    std::copy_n(q.begin() + h * 32, 32, ranked.begin() + to * 32);
  }
  AttentionArgs args;
  args.geometry = g;
  args.q_heads = 12;
  args.scale = 0.2f;
  std::vector<float> want(width);
  Run(args, {{context.memory(), context.blocks(), 1, 70}}, q.data(), want.data());
  std::vector<float> got(2 * width, 7.0f);
  std::vector<float> twice = ranked;
  twice.insert(twice.end(), ranked.begin(), ranked.end());
  args.rank_major = true;
  const int extent[2] = {12, 6};
  args.head_extent = extent;
  Run(args,
      {{context.memory(), context.blocks(), 1, 70}, {context.memory(), context.blocks(), 1, 70}},
      twice.data(), got.data());
  for (int row = 0; row < 2; ++row) {
    for (int h = 0; h < 12; ++h) {
      const int from = (h % group) * g.kv_heads + h / group;
      const float* head = got.data() + static_cast<size_t>(row) * width + from * 32;
      if (from < extent[row]) {
        EXPECT_TRUE(SameBits(head, want.data() + h * 32, 32)) << row << " " << h;
      } else {
        EXPECT_EQ(head[0], 7.0f);
      }
    }
  }
}

TEST_P(AttentionTest, ExtentsOfHeadsInTheFilesOrderKeepWholeGroups) {
  const KvGeometry g{1, 3, 32};
  const Context context = Filled(g, 70, 4);
  std::mt19937 rng(3);
  const size_t width = 6 * 32;
  std::vector<float> q = RandomFloats(rng, width);
  AttentionArgs args;
  args.geometry = g;
  args.q_heads = 6;
  args.scale = 0.2f;
  std::vector<float> want(width);
  Run(args, {{context.memory(), context.blocks(), 1, 70}}, q.data(), want.data());
  q.insert(q.end(), q.begin(), q.begin() + static_cast<ptrdiff_t>(width));
  std::vector<float> got(2 * width, 7.0f);
  const int extent[2] = {6, 4};
  args.head_extent = extent;
  Run(args,
      {{context.memory(), context.blocks(), 1, 70}, {context.memory(), context.blocks(), 1, 70}},
      q.data(), got.data());
  EXPECT_TRUE(SameBits(got.data(), want.data(), width));
  EXPECT_TRUE(SameBits(got.data() + width, want.data(), 4 * 32));
  EXPECT_EQ(got[width + 4 * 32], 7.0f);
}

TEST_P(AttentionTest, DensityOfARowAddsUpToItsHeads) {
  const KvGeometry g{1, 2, 64};
  const Context context = Filled(g, 530, 4);
  std::mt19937 rng(3);
  const std::vector<float> q = RandomFloats(rng, 2 * 8 * 64);
  std::vector<float> out(q.size());
  const ptrdiff_t stride = 40;
  std::vector<float> density(2 * 2 * static_cast<size_t>(stride), 0.0f);
  AttentionArgs args;
  args.geometry = g;
  args.q_heads = 8;
  args.scale = 0.5f;
  args.density = density.data();
  args.density_stride = stride;
  Run(args,
      {{context.memory(), context.blocks(), 1, 300}, {context.memory(), context.blocks(), 1, 530}},
      q.data(), out.data());
  for (size_t i = 0; i < 4; ++i) {
    const int chunks = i < 2 ? 19 : 34;
    double sum = 0;
    for (int c = 0; c < chunks; ++c)
      sum += static_cast<double>(density[i * 40 + static_cast<size_t>(c)]);
    EXPECT_NEAR(sum, 4.0, 1e-4);
    EXPECT_EQ(density[i * 40 + static_cast<size_t>(chunks)], 0.0f);
  }
}

TEST_P(AttentionTest, ChunksBeforeAWindowHaveNoDensity) {
  const KvGeometry g{1, 1, 64};
  const Context context = Filled(g, 700, 4);
  std::mt19937 rng(3);
  const std::vector<float> q = RandomFloats(rng, 2 * 64);
  std::vector<float> out(q.size());
  std::vector<float> density(44, 0.0f);
  AttentionArgs args;
  args.geometry = g;
  args.q_heads = 2;
  args.scale = 0.125f;
  args.density = density.data();
  args.density_stride = 44;
  AttentionRow row{context.memory(), context.blocks(), 1, 700};
  row.first = 340;  // in chunk 21
  Run(args, {row}, q.data(), out.data());
  double sum = 0;
  for (size_t chunk = 0; chunk < density.size(); ++chunk) {
    sum += static_cast<double>(density[chunk]);
    EXPECT_EQ(density[chunk] > 0.0f, chunk >= 21) << chunk;
  }
  EXPECT_NEAR(sum, 2.0, 1e-4);
}

INSTANTIATE_TEST_SUITE_P(Targets, AttentionTest, testing::ValuesIn(SupportedTargets()),
                         [](const auto& test_info) {
                           std::string name = KernelsFor(test_info.param)->name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace withy::engine
