#include "context_store/disk/kv_index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/ids.h"

namespace withy::context_store {
namespace {

Bytes32 RandomIdentity(std::mt19937_64& random) {
  Bytes32 identity;
  for (size_t i = 0; i < identity.size(); i += 8) {
    const uint64_t word = random();
    std::memcpy(identity.data() + i, &word, 8);
  }
  return identity;
}

KvContextIndex RandomIndex(std::mt19937_64& random) {
  KvContextIndex index;
  index.model = RandomIdentity(random);
  const size_t extents = random() % 4;
  for (size_t e = 0; e < extents; ++e) {
    KvExtent& extent = index.extents.emplace_back();
    extent.id = random();
    extent.segment = 1 + random() % kMaxKvSegment;
    extent.offset = random() % 1000 * kDiskAlign;
    extent.format = static_cast<uint8_t>(random() % 5);
    extent.protection = static_cast<KvProtection>(random() % 2);
    extent.whole_blocks = random() % 2 == 0;
    extent.layers = 1 + static_cast<uint32_t>(random() % 40);
    extent.block_bytes = 16 * (1 + static_cast<uint32_t>(random() % 500));
    extent.salt[3] = static_cast<uint8_t>(random());
    extent.identities.resize(1 + random() % 5);
    for (Bytes32& identity : extent.identities) identity = RandomIdentity(random);
  }
  const size_t chunks = random() % 12;
  for (size_t c = 0; c < chunks; ++c) {
    KvChunk& chunk = index.chunks.emplace_back();
    chunk.tokens = static_cast<uint8_t>(1 + random() % 16);
    chunk.level_percent = static_cast<uint8_t>(1 + random() % 100);
    chunk.format = static_cast<uint8_t>(random() % 5);
    chunk.density = static_cast<float>(random() % 1000) / 7;
    chunk.identity = RandomIdentity(random);
    if (extents == 0 || random() % 3 == 0) continue;
    chunk.extent = static_cast<uint32_t>(random() % extents);
    const auto& identities = index.extents[chunk.extent].identities;
    chunk.position = static_cast<uint32_t>(random() % identities.size());
    chunk.identity = identities[chunk.position];
  }
  return index;
}

class KvIndexTest : public ::testing::Test {
 protected:
  KvIndexTest() { RecordProperty("seed", std::to_string(seed_)); }
  const uint64_t seed_ = RandomId64();
  std::mt19937_64 random_{seed_};
  ::testing::ScopedTrace trace_{__FILE__, __LINE__, "seed " + std::to_string(seed_)};
};

TEST_F(KvIndexTest, AnIndexComesBack) {
  for (int i = 0; i < 300; ++i) {
    const KvContextIndex in = RandomIndex(random_);
    KvContextIndex out;
    ASSERT_TRUE(DecodeKvIndex(EncodeKvIndex(in), &out).ok());
    ASSERT_EQ(in, out);
    // A newer build may add fields at the end.
    ASSERT_TRUE(DecodeKvIndex(EncodeKvIndex(in) + "more", &out).ok());
  }
}

TEST_F(KvIndexTest, ATruncatedIndexIsDataLossAtEveryLength) {
  for (int i = 0; i < 30; ++i) {
    const std::string whole = EncodeKvIndex(RandomIndex(random_));
    for (size_t size = 0; size < whole.size(); ++size) {
      KvContextIndex out;
      ASSERT_TRUE(absl::IsDataLoss(DecodeKvIndex(whole.substr(0, size), &out))) << size;
    }
  }
}

// The checksum of the record finds damage; whatever passes must still be safe to use.
TEST_F(KvIndexTest, DamageGivesAnErrorOrAValidIndex) {
  int accepted = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes;
    if (i % 4 == 0) {
      bytes = RandomBytes(random_() % 300);
      if (!bytes.empty()) bytes[0] = 1;
    } else {
      bytes = EncodeKvIndex(RandomIndex(random_));
      for (int flips = 0; flips < 3; ++flips) {
        bytes[random_() % bytes.size()] = static_cast<char>(random_());
      }
    }
    KvContextIndex out;
    if (!DecodeKvIndex(bytes, &out).ok()) continue;
    ++accepted;
    EXPECT_EQ(LiveChunks(out).size(), out.extents.size());
    for (const KvExtent& extent : out.extents) {
      EXPECT_GE(extent.layout().Pieces(), extent.layers);
      EXPECT_LE(extent.layout().DataBytes(), kMaxKvExtentBytes);
    }
    EncodeKvIndex(out);  // ends the process if a chunk's place is not valid
  }
  EXPECT_GT(accepted, 100);
}

TEST_F(KvIndexTest, ANewerVersionAndBadNumbersAreToldApart) {
  KvContextIndex index;
  index.chunks.push_back({.tokens = 16, .level_percent = 100});
  std::string bytes = EncodeKvIndex(index);
  KvContextIndex out;
  bytes[0] = 2;
  EXPECT_TRUE(absl::IsUnimplemented(DecodeKvIndex(bytes, &out)));
  index.chunks[0].tokens = 17;
  EXPECT_TRUE(absl::IsDataLoss(DecodeKvIndex(EncodeKvIndex(index), &out)));
  index.chunks[0].tokens = 16;
  index.chunks[0].density = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(absl::IsDataLoss(DecodeKvIndex(EncodeKvIndex(index), &out)));
}

// Pieces and blocks both cover the data of an extent exactly once and in order.
TEST_F(KvIndexTest, PiecesTileAnExtent) {
  for (int i = 0; i < 300; ++i) {
    const KvExtentLayout layout{
        1 + static_cast<uint32_t>(random_() % 5), 1 + static_cast<uint32_t>(random_() % 40),
        16 * (1 + static_cast<uint32_t>(random_() % 9000)), random_() % 2 == 0};
    uint64_t end = 0, in_data = 0;
    for (uint32_t number = 0; number < layout.Pieces(); ++number) {
      const KvPiece piece = layout.Piece(number);
      ASSERT_EQ(piece.offset, end);
      ASSERT_GE(piece.bytes, 1u);
      ASSERT_LE(piece.bytes, kKvPieceBytes);
      if (layout.BlocksPerPiece() > 0) {
        ASSERT_EQ(piece.in_layer % layout.block_bytes, 0u);
        ASSERT_EQ(piece.bytes % layout.block_bytes, 0u);
      }
      end = piece.offset + piece.bytes + kKvCheckBytes;
      ForEachBlockPart(
          piece, layout.block_bytes,
          [&](size_t chunk, uint32_t in_block, uint32_t, uint32_t bytes) {
            ASSERT_LT(chunk, layout.chunks);
            ASSERT_EQ(
                (piece.layer * uint64_t{layout.chunks} + chunk) * layout.block_bytes + in_block,
                in_data);
            in_data += bytes;
          });
    }
    ASSERT_EQ(end, layout.LayerBytes() * layout.layers);
    ASSERT_EQ(in_data, layout.DataBytes());
    ASSERT_GE(layout.DiskBytes(), end);
    ASSERT_LT(layout.DiskBytes() - end, kDiskAlign);
  }
}

}  // namespace
}  // namespace withy::context_store
