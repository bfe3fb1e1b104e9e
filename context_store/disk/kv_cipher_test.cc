#include "context_store/disk/kv_cipher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "base/ids.h"

namespace withy::context_store {
namespace {

TEST(SecretKey, HasThirtyTwoBytesAndAnId) {
  EXPECT_TRUE(absl::IsInvalidArgument(SecretKey::FromBytes("short").status()));
  const SecretKey key = SecretKey::Random();
  EXPECT_EQ(SecretKey::FromBytes(key.bytes())->Id(), key.Id());
  EXPECT_NE(SecretKey::Random().Id(), key.Id());
  EXPECT_EQ(key.Id().size(), 16u);
}

TEST(SealBytes, OnlyTheSameKeyAndContextOpenWhatIsUnchanged) {
  const SecretKey key = SecretKey::Random();
  for (const std::string& plain : {std::string(), std::string("x"), RandomBytes(1000)}) {
    const std::string sealed = SealBytes(key, "here", plain);
    EXPECT_EQ(sealed.size(), plain.size() + kSealedExtraBytes);
    EXPECT_EQ(*OpenBytes(key, "here", sealed), plain);
    EXPECT_TRUE(absl::IsDataLoss(OpenBytes(key, "there", sealed).status()));
    EXPECT_TRUE(absl::IsDataLoss(OpenBytes(SecretKey::Random(), "here", sealed).status()));
    for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
      std::string damaged = sealed;
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
      ASSERT_TRUE(absl::IsDataLoss(OpenBytes(key, "here", damaged).status())) << bit;
    }
    for (size_t size = 0; size < sealed.size(); ++size) {
      ASSERT_FALSE(OpenBytes(key, "here", sealed.substr(0, size)).ok()) << size;
    }
  }
  EXPECT_NE(SealBytes(key, "here", "same"), SealBytes(key, "here", "same"));
}

class PieceSealerTest : public ::testing::TestWithParam<bool> {
 protected:
  PieceSealerTest() {
    if (GetParam()) owner_.key = std::make_shared<const SecretKey>(SecretKey::Random());
    owner_.context_id = "ctx_1";
    owner_.model.fill(3);
    extent_.id = 5;
    extent_.format = 1;
    extent_.protection = GetParam() ? KvProtection::kAes256Gcm : KvProtection::kChecksum;
    extent_.layers = 2;
    extent_.block_bytes = 64;
    extent_.identities.resize(3);
    piece_ = extent_.layout().Piece(1);
  }

  std::vector<std::byte> Sealed() const {
    std::vector<std::byte> bytes(piece_.bytes + kKvCheckBytes, std::byte{9});
    KvPieceSealer(owner_, extent_, KvPieceSealer::Direction::kSeal).Seal(piece_, bytes);
    return bytes;
  }
  static bool Opens(const KvOwner& owner, const KvExtent& extent, const KvPiece& piece,
                    std::vector<std::byte> bytes) {
    return KvPieceSealer(owner, extent, KvPieceSealer::Direction::kOpen).Open(piece, bytes) &&
           std::all_of(bytes.begin(), bytes.end() - kKvCheckBytes,
                       [](std::byte b) { return b == std::byte{9}; });
  }

  KvOwner owner_;
  KvExtent extent_;
  KvPiece piece_;
};

TEST_P(PieceSealerTest, APieceOpensInItsPlaceOnly) {
  const std::vector<std::byte> sealed = Sealed();
  EXPECT_TRUE(Opens(owner_, extent_, piece_, sealed));
  KvExtent other = extent_;
  other.identities[2][31] = 1;
  EXPECT_FALSE(Opens(owner_, other, piece_, sealed)) << "identity";
  other = extent_;
  other.id = 6;
  EXPECT_FALSE(Opens(owner_, other, piece_, sealed)) << "extent";
  other = extent_;
  other.format = 2;
  EXPECT_FALSE(Opens(owner_, other, piece_, sealed)) << "format";
  other = extent_;
  other.salt[0] = 1;
  EXPECT_FALSE(Opens(owner_, other, piece_, sealed)) << "salt";
  KvOwner stranger = owner_;
  stranger.context_id = "ctx_2";
  EXPECT_FALSE(Opens(stranger, extent_, piece_, sealed)) << "context";
  stranger = owner_;
  stranger.model[0] = 4;
  EXPECT_FALSE(Opens(stranger, extent_, piece_, sealed)) << "model";
  EXPECT_FALSE(Opens(owner_, extent_, extent_.layout().Piece(0), sealed)) << "layer";
}

TEST_P(PieceSealerTest, AFlippedBitIsFound) {
  const std::vector<std::byte> sealed = Sealed();
  for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    std::vector<std::byte> damaged = sealed;
    damaged[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    ASSERT_FALSE(Opens(owner_, extent_, piece_, damaged)) << bit;
  }
}

INSTANTIATE_TEST_SUITE_P(PlainAndEncrypted, PieceSealerTest, ::testing::Bool());

// The same blocks in two places never give the same bytes on disk.
TEST(PieceSealer, EqualDataEncryptDifferently) {
  KvOwner owner;
  owner.key = std::make_shared<const SecretKey>(SecretKey::Random());
  KvExtent extent;
  extent.protection = KvProtection::kAes256Gcm;
  extent.layers = 4;
  extent.block_bytes = kKvPieceBytes;
  extent.identities.resize(2);
  std::set<std::vector<std::byte>> seen;
  for (uint8_t salt = 0; salt < 3; ++salt) {
    extent.salt[15] = salt;
    KvPieceSealer sealer(owner, extent, KvPieceSealer::Direction::kSeal);
    for (uint32_t i = 0; i < extent.layout().Pieces(); ++i) {
      std::vector<std::byte> bytes(kKvPieceBytes + kKvCheckBytes);
      sealer.Seal(extent.layout().Piece(i), bytes);
      bytes.resize(32);
      EXPECT_TRUE(seen.insert(bytes).second);
    }
  }
  EXPECT_EQ(seen.size(), 24u);
}

}  // namespace
}  // namespace withy::context_store
