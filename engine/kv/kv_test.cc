// Tests of the KV block's layouts, the rotation and the encoder.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <set>
#include <vector>

#include "engine/kv/block.h"
#include "engine/kv/encode.h"
#include "engine/kv/encode_targets.h"
#include "engine/kv/rotation.h"

namespace withy::engine {
namespace {

constexpr KvFormat kLower[] = {KvFormat::kQ4, KvFormat::kQ2, KvFormat::kQ4Q2};
constexpr int kHeadDims[] = {16, 32, 64, 80, 96, 128, 256};

double BitsPerElement(const KvGeometry& g, KvFormat format) {
  return 8.0 * static_cast<double>(g.BlockBytes(format)) /
         (2.0 * kChunkTokens * g.kv_heads * g.head_dim);
}

TEST(KvBlockTest, BitsPerElementCountEverything) {
  for (const int kv_heads : {2, 3, 4, 8}) {
    const KvGeometry g{1, kv_heads, 64};
    EXPECT_LE(BitsPerElement(g, KvFormat::kQ4), 4.5) << kv_heads;
    EXPECT_LE(BitsPerElement(g, KvFormat::kQ4Q2), 3.55) << kv_heads;
    EXPECT_LE(BitsPerElement(g, KvFormat::kQ2), 2.6) << kv_heads;
  }
}

TEST(KvBlockTest, PartsFillABlockWithoutOverlap) {
  for (const int head_dim : kHeadDims) {
    const KvGeometry g{2, 3, head_dim};
    for (const KvFormat format :
         {KvFormat::kQ8, KvFormat::kQ4, KvFormat::kQ2, KvFormat::kQ4Q2, KvFormat::kF16}) {
      const size_t elements = static_cast<size_t>(head_dim) * kChunkTokens;
      const size_t scale_bytes = format == KvFormat::kQ8 ? 64 : format == KvFormat::kF16 ? 0 : 16;
      const bool lower = scale_bytes == 16;
      std::vector<int> used(g.BlockBytes(format), 0);
      const auto use = [&](size_t begin, size_t bytes) {
        for (size_t i = begin; i < begin + bytes; ++i) ++used.at(i);
      };
      use(0, sizeof(KvBlockHeader));
      for (int head = 0; head < 3; ++head) {
        const KvOffsets at = g.Offsets(format, head);
        use(at.k_scale, scale_bytes);
        use(at.v_scale, scale_bytes);
        use(at.zero, lower ? 16 : 0);
        use(at.k_mean, lower ? static_cast<size_t>(head_dim) / 2 : 0);
        use(at.units, lower ? sizeof(KvUnits) : 0);
        use(at.k, elements * static_cast<size_t>(KBits(format)) / 8);
        use(at.v, elements * static_cast<size_t>(VBits(format)) / 8);
      }
      const size_t end = g.HeadOffset(format, 3);
      EXPECT_EQ(g.BlockBytes(format) % 64, 0u);
      EXPECT_LT(g.BlockBytes(format) - end, 64u);
      EXPECT_EQ(g.ChunkBytes(format), 2 * g.BlockBytes(format));
      EXPECT_EQ(std::set<int>(used.begin(), used.begin() + static_cast<ptrdiff_t>(end)),
                std::set<int>{1})
          << KvFormatName(format) << " " << head_dim;
    }
  }
}

TEST(RotationTest, IsOrthonormalAndItsOwnInverse) {
  std::mt19937 rng(1);
  std::normal_distribution<float> normal;
  for (const int head_dim : kHeadDims) {
    std::vector<float> x(static_cast<size_t>(head_dim));
    for (float& value : x) value = normal(rng);
    std::vector<float> y = x;
    RotateHead(head_dim, y.data());
    double before = 0;
    double after = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      before += static_cast<double>(x[i] * x[i]);
      after += static_cast<double>(y[i] * y[i]);
    }
    EXPECT_NEAR(before, after, 1e-4 * before);
    RotateHead(head_dim, y.data());
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(x[i], y[i], 1e-5) << head_dim << " " << i;
  }
}

TEST(RotationTest, SpreadsOneChannelOverItsBlock) {
  std::vector<float> x(96, 0.0f);
  x[40] = 8.0f;
  RotateHead(96, x.data());
  for (int i = 0; i < 96; ++i) {
    const float want = i >= 32 && i < 64 ? 8.0f / std::sqrt(32.0f) : 0.0f;
    EXPECT_FLOAT_EQ(std::abs(x[static_cast<size_t>(i)]), want) << i;
  }
}

// A block at 8 bits, written without the kernels. Rotated K and V are normally distributed, with
// another size for each token. `common`: deviation of what is added to the K of all tokens.
class Q8Block {
 public:
  Q8Block(const KvGeometry& g, unsigned seed, float common = 0.0f) : bytes_(g.BlockBytes()) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const auto n = static_cast<size_t>(g.head_dim);
    for (int head = 0; head < g.kv_heads; ++head) {
      const KvOffsets at = g.Offsets(KvFormat::kQ8, head);
      std::vector<float> shift(n);
      for (float& value : shift) value = common * normal(rng);
      for (size_t token = 0; token < kChunkTokens; ++token) {
        for (const bool v : {false, true}) {
          const float size = 0.25f + 0.01f * static_cast<float>(rng() % 75);
          std::vector<float> x(n);
          float top = 0;
          for (size_t d = 0; d < n; ++d) {
            x[d] = size * normal(rng) + (v ? 0.0f : shift[d]);
            top = std::max(top, std::abs(x[d]));
          }
          const float scale = top / 127.0f;
          std::memcpy(&bytes_[(v ? at.v_scale : at.k_scale) + 4 * token], &scale, 4);
          for (size_t d = 0; d < n; ++d) {
            const int q = static_cast<int>(std::lround(x[d] / scale));
            if (v) {
              bytes_[at.v + token / 4 * n * 4 + d * 4 + token % 4] = static_cast<std::byte>(q);
            } else {
              bytes_[at.k + d / 4 * 64 + token * 4 + d % 4] = static_cast<std::byte>(q + 128);
            }
          }
        }
      }
    }
  }
  const std::byte* data() const { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
};

// Root mean square error of one head of a token, relative to its root mean square.
double RelativeError(const float* got, const float* want, int n) {
  double error = 0;
  double norm = 0;
  for (int i = 0; i < n; ++i) {
    const auto difference = static_cast<double>(got[i]) - static_cast<double>(want[i]);
    error += difference * difference;
    norm += static_cast<double>(want[i]) * static_cast<double>(want[i]);
  }
  return std::sqrt(error / std::max(norm, 1e-30));
}

// Rounding to the nearest of 16 levels over 2.5 standard deviations errs by about 0.1 of one, to
// the nearest of 4 levels by about 0.35.
TEST(EncodeTest, ErrorsAreThoseOfTheFieldsWidth) {
  for (const int head_dim : kHeadDims) {
    const KvGeometry g{1, 3, head_dim};
    const auto width = static_cast<size_t>(3 * head_dim);
    const Q8Block block(g, 7);
    for (const KvFormat format : kLower) {
      std::vector<std::byte> out(g.BlockBytes(format), std::byte{0x5a});
      EncodeBlock(g, block.data(), KvFormat::kQ8, format, out.data());
      for (size_t i = 0; i < sizeof(KvBlockHeader); ++i) ASSERT_EQ(out[i], std::byte{0x5a});
      double k_error = 0;
      double v_error = 0;
      for (int slot = 0; slot < kChunkTokens; ++slot) {
        std::vector<float> k(width), v(width), want_k(width), want_v(width);
        ReadToken(g, block.data(), slot, want_k.data(), want_v.data());
        ReadToken(g, out.data(), slot, k.data(), v.data(), format);
        for (int head = 0; head < 3; ++head) {
          const int at = head * head_dim;
          const double of_k = RelativeError(k.data() + at, want_k.data() + at, head_dim);
          const double of_v = RelativeError(v.data() + at, want_v.data() + at, head_dim);
          EXPECT_LT(of_k, KBits(format) == 4 ? 0.17 : 0.56) << head_dim << " slot " << slot;
          EXPECT_LT(of_v, VBits(format) == 4 ? 0.17 : 0.56) << head_dim << " slot " << slot;
          k_error += of_k / (3 * kChunkTokens);
          v_error += of_v / (3 * kChunkTokens);
        }
      }
      EXPECT_LT(k_error, KBits(format) == 4 ? 0.12 : 0.37) << head_dim;
      EXPECT_LT(v_error, VBits(format) == 4 ? 0.12 : 0.37) << head_dim;
    }
  }
}

// What all tokens of a chunk have in common goes into the means.
TEST(EncodeTest, CommonPartsOfKeysCostLittle) {
  const KvGeometry g{1, 1, 64};
  const Q8Block plain(g, 3);
  const Q8Block shifted(g, 3, 4.0f);
  const auto error_of = [&](const Q8Block& block, KvFormat format) {
    std::vector<std::byte> out(g.BlockBytes(format));
    EncodeBlock(g, block.data(), KvFormat::kQ8, format, out.data());
    double error = 0;
    for (int slot = 0; slot < kChunkTokens; ++slot) {
      std::vector<float> k(64), v(64), want_k(64), want_v(64);
      ReadToken(g, block.data(), slot, want_k.data(), want_v.data());
      ReadToken(g, out.data(), slot, k.data(), v.data(), format);
      for (size_t d = 0; d < 64; ++d) {
        error += std::pow(static_cast<double>(k[d] - want_k[d]), 2);
      }
    }
    return error;
  };
  for (const KvFormat format : {KvFormat::kQ4, KvFormat::kQ2}) {
    EXPECT_LT(error_of(shifted, format), 2.0 * error_of(plain, format)) << KvFormatName(format);
  }
}

TEST(EncodeTest, TheChosenRangeBeatsTheWholeOneAtTwoBits) {
  const KvGeometry g{1, 1, 64};
  const Q8Block block(g, 3);
  std::vector<std::byte> out(g.BlockBytes(KvFormat::kQ2));
  EncodeBlock(g, block.data(), KvFormat::kQ8, KvFormat::kQ2, out.data());
  double chosen = 0;
  double whole = 0;
  for (int slot = 0; slot < kChunkTokens; ++slot) {
    std::vector<float> k(64), v(64), want_k(64), want_v(64), by_hand(64);
    ReadToken(g, block.data(), slot, want_k.data(), want_v.data());
    ReadToken(g, out.data(), slot, k.data(), v.data(), KvFormat::kQ2);
    chosen += RelativeError(k.data(), want_k.data(), 64);
    RotateHead(64, want_k.data());
    const auto [low, high] = std::minmax_element(want_k.begin(), want_k.end());
    const float step = (*high - *low) / 3;
    for (size_t d = 0; d < 64; ++d) {
      by_hand[d] = *low + step * std::round((want_k[d] - *low) / step);
    }
    whole += RelativeError(by_hand.data(), want_k.data(), 64);
  }
  EXPECT_LT(chosen, 0.9 * whole);
}

TEST(EncodeTest, SpecialTokensKeepTheirValues) {
  const KvGeometry g{1, 1, 16};
  for (const KvFormat format : kLower) {
    std::vector<std::byte> block(g.BlockBytes());
    const KvOffsets at = g.Offsets(KvFormat::kQ8, 0);
    std::fill_n(block.begin() + static_cast<ptrdiff_t>(at.k), 256, std::byte{128});  // all 0
    const float scale = 0.25f;
    for (size_t slot = 0; slot < 16; ++slot) {
      std::memcpy(&block[at.k_scale + 4 * slot], &scale, 4);
      std::memcpy(&block[at.v_scale + 4 * slot], &scale, 4);
    }
    // K of slot 1 is 100 everywhere, of slot 2 is -100, V of slot 3 has one number only.
    for (size_t d = 0; d < 16; ++d) {
      block[at.k + d / 4 * 64 + 1 * 4 + d % 4] = std::byte{228};
      block[at.k + d / 4 * 64 + 2 * 4 + d % 4] = std::byte{28};
    }
    block[at.v + 5 * 4 + 3] = std::byte{127};
    std::vector<std::byte> out(g.BlockBytes(format));
    EncodeBlock(g, block.data(), KvFormat::kQ8, format, out.data());
    std::vector<float> k(16), v(16);
    ReadToken(g, out.data(), 0, k.data(), v.data(), format);
    for (size_t d = 0; d < 16; ++d) EXPECT_EQ(k[d], 0.0f);
    for (const int slot : {1, 2}) {
      ReadToken(g, out.data(), slot, k.data(), v.data(), format);
      RotateHead(16, k.data());
      for (size_t d = 0; d < 16; ++d) EXPECT_NEAR(k[d], slot == 1 ? 25.0f : -25.0f, 0.1);
    }
    if (VBits(format) == 2) continue;  // the many zeros count more than the one number
    ReadToken(g, out.data(), 3, k.data(), v.data(), format);
    RotateHead(16, v.data());
    for (size_t d = 0; d < 16; ++d)
      EXPECT_NEAR(v[d], d == 5 ? 127 * 0.25f : 0.0f, 0.06 * 127 * 0.25f);
  }
}

// Root mean square error of K or V of a block against one at 8 bits, relative to its size.
double BlockError(const KvGeometry& g, const std::byte* got, KvFormat format, const std::byte* want,
                  bool of_v) {
  const auto width = static_cast<size_t>(g.kv_heads * g.head_dim);
  double error = 0;
  double norm = 0;
  for (int slot = 0; slot < kChunkTokens; ++slot) {
    std::vector<float> k(width), v(width), want_k(width), want_v(width);
    ReadToken(g, want, slot, want_k.data(), want_v.data());
    ReadToken(g, got, slot, k.data(), v.data(), format);
    const std::vector<float>& a = of_v ? v : k;
    const std::vector<float>& b = of_v ? want_v : want_k;
    for (size_t d = 0; d < width; ++d) {
      error += std::pow(static_cast<double>(a[d] - b[d]), 2);
      norm += std::pow(static_cast<double>(b[d]), 2);
    }
  }
  return std::sqrt(error / norm);
}

// A chunk that was encoded before loses little more than one that was not.
TEST(EncodeTest, ChainsOfFormatsErrLikeTheLastOne) {
  const KvFormat chains[][3] = {{KvFormat::kQ4, KvFormat::kQ2, KvFormat::kEmpty},
                                {KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kEmpty},
                                {KvFormat::kQ4Q2, KvFormat::kQ2, KvFormat::kEmpty},
                                {KvFormat::kQ4, KvFormat::kQ4Q2, KvFormat::kQ2}};
  for (const int head_dim : kHeadDims) {
    const KvGeometry g{1, 3, head_dim};
    const Q8Block block(g, 5, 1.0f);
    for (const auto& chain : chains) {
      std::vector<std::byte> now(block.data(), block.data() + g.BlockBytes());
      KvFormat format = KvFormat::kQ8;
      for (const KvFormat next : chain) {
        if (next == KvFormat::kEmpty) break;
        std::vector<std::byte> out(g.BlockBytes(next), std::byte{0x5a});
        EncodeBlock(g, now.data(), format, next, out.data());
        now = std::move(out);
        format = next;
      }
      std::vector<std::byte> direct(g.BlockBytes(format));
      EncodeBlock(g, block.data(), KvFormat::kQ8, format, direct.data());
      for (const bool of_v : {false, true}) {
        const double at_once = BlockError(g, direct.data(), format, block.data(), of_v);
        const double in_steps = BlockError(g, now.data(), format, block.data(), of_v);
        EXPECT_LT(in_steps, 1.1 * at_once) << head_dim << KvFormatName(format) << of_v;
        if (head_dim == 64) {
          std::printf("%s of %s in %s steps: error %.4f, at once %.4f\n", of_v ? "V" : "K",
                      KvFormatName(format), chain[2] == KvFormat::kEmpty ? "two" : "three",
                      in_steps, at_once);
        }
      }
    }
  }
}

// K at 4 bits stays bit for bit when V goes to 2.
TEST(EncodeTest, WhatKeepsItsBitsIsCopied) {
  const KvGeometry g{1, 2, 64};
  const Q8Block block(g, 9);
  std::vector<std::byte> four(g.BlockBytes(KvFormat::kQ4)), mixed(g.BlockBytes(KvFormat::kQ4Q2)),
      two(g.BlockBytes(KvFormat::kQ2));
  EncodeBlock(g, block.data(), KvFormat::kQ8, KvFormat::kQ4, four.data());
  EncodeBlock(g, four.data(), KvFormat::kQ4, KvFormat::kQ4Q2, mixed.data());
  EncodeBlock(g, mixed.data(), KvFormat::kQ4Q2, KvFormat::kQ2, two.data());
  for (int slot = 0; slot < kChunkTokens; ++slot) {
    std::vector<float> k4(128), v4(128), km(128), vm(128), k2(128), v2(128);
    ReadToken(g, four.data(), slot, k4.data(), v4.data(), KvFormat::kQ4);
    ReadToken(g, mixed.data(), slot, km.data(), vm.data(), KvFormat::kQ4Q2);
    ReadToken(g, two.data(), slot, k2.data(), v2.data(), KvFormat::kQ2);
    EXPECT_EQ(k4, km);
    EXPECT_EQ(vm, v2);
  }
}

// The fields of both builds may differ where a number lies between two levels.
TEST(EncodeTest, TargetsAgree) {
  if (Avx2EncodeHead() == nullptr) GTEST_SKIP() << "one target";
  for (const int head_dim : kHeadDims) {
    const KvGeometry g{1, 1, head_dim};
    const auto width = static_cast<size_t>(head_dim);
    const Q8Block block(g, 11);
    for (const KvFormat format : kLower) {
      std::vector<std::byte> a(g.BlockBytes(format));
      std::vector<std::byte> b(g.BlockBytes(format));
      PortableEncodeHead()(g, 0, block.data(), KvFormat::kQ8, format, a.data());
      Avx2EncodeHead()(g, 0, block.data(), KvFormat::kQ8, format, b.data());
      size_t differ = 0;
      for (size_t i = 0; i < a.size(); ++i) differ += a[i] == b[i] ? 0 : 1;
      EXPECT_LT(differ, 1 + a.size() / 50) << head_dim << " " << KvFormatName(format);
      std::vector<float> k(width), v(width), k2(width), v2(width);
      for (int slot = 0; slot < kChunkTokens; ++slot) {
        ReadToken(g, a.data(), slot, k.data(), v.data(), format);
        ReadToken(g, b.data(), slot, k2.data(), v2.data(), format);
        EXPECT_LT(RelativeError(k.data(), k2.data(), head_dim), 0.3);
        EXPECT_LT(RelativeError(v.data(), v2.data(), head_dim), 0.3);
      }
    }
  }
}

}  // namespace
}  // namespace withy::engine
