#include "context_store/disk/kv_cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/sha.h>

#include <cstring>
#include <utility>

#include "base/crc32c.h"
#include "base/ids.h"
#include "base/status.h"
#include "context_store/invariant.h"
#include "engine/kv/format.h"

namespace withy::context_store {
namespace {

// Purposes of derived keys. They have one length, so that purpose and salt cannot be confused.
constexpr std::string_view kExtentPurpose = "withy kv extent 1";
constexpr std::string_view kStringPurpose = "withy a string  1";
constexpr std::string_view kIdPurpose = "withy key's id  1";
static_assert(kExtentPurpose.size() == kStringPurpose.size() &&
              kExtentPurpose.size() == kIdPurpose.size());

constexpr size_t kNonceBytes = 12;
using Check = std::array<uint8_t, kKvCheckBytes>;

using CipherContext = std::unique_ptr<EVP_CIPHER_CTX, void (*)(EVP_CIPHER_CTX*)>;

const uint8_t* Raw(std::string_view bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

std::string_view Text(std::span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void AppendNumber(uint64_t number, int bytes, std::string* out) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(number >> (8 * i)));
}

SecretKey Derive(const SecretKey& key, std::string_view purpose, const KvSalt& salt) {
  std::string message(purpose);
  message.append(Text(salt));
  std::array<uint8_t, SecretKey::kBytes> derived;
  unsigned size = 0;
  Invariant(HMAC(EVP_sha256(), key.bytes().data(), static_cast<int>(key.bytes().size()),
                 Raw(message), message.size(), derived.data(), &size) != nullptr &&
                size == derived.size(),
            "HMAC-SHA256 failed");
  SecretKey result = *SecretKey::FromBytes(Text(derived));
  OPENSSL_cleanse(derived.data(), derived.size());
  return result;
}

KvSalt RandomSalt() {
  KvSalt salt;
  std::memcpy(salt.data(), RandomBytes(salt.size()).data(), salt.size());
  return salt;
}

void InitCipher(EVP_CIPHER_CTX* cipher, const SecretKey& key, bool encrypt) {
  Invariant(EVP_CipherInit_ex(cipher, EVP_aes_256_gcm(), nullptr, Raw(key.bytes()), nullptr,
                              encrypt ? 1 : 0) == 1,
            "AES-256-GCM is not available");
}

// One message in place. Decryption returns whether `check` is the message's; encryption sets it.
bool RunCipher(EVP_CIPHER_CTX* cipher, const std::array<uint8_t, kNonceBytes>& nonce,
               std::string_view associated, std::span<uint8_t> data, uint8_t* check) {
  const bool encrypt = EVP_CIPHER_CTX_is_encrypting(cipher) == 1;
  int size = 0;
  bool ok = EVP_CipherInit_ex(cipher, nullptr, nullptr, nullptr, nonce.data(), -1) == 1 &&
            EVP_CipherUpdate(cipher, nullptr, &size, Raw(associated),
                             static_cast<int>(associated.size())) == 1 &&
            (data.empty() || EVP_CipherUpdate(cipher, data.data(), &size, data.data(),
                                              static_cast<int>(data.size())) == 1);
  if (!encrypt) {
    ok = ok && EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_SET_TAG, kKvCheckBytes, check) == 1;
  }
  Invariant(ok, "AES-256-GCM failed");
  std::array<uint8_t, 16> nothing;
  if (EVP_CipherFinal_ex(cipher, nothing.data(), &size) != 1) return false;
  Invariant(
      !encrypt || EVP_CIPHER_CTX_ctrl(cipher, EVP_CTRL_GCM_GET_TAG, kKvCheckBytes, check) == 1,
      "AES-256-GCM gave no tag");
  return true;
}

// Four CRC32C sums of the data and of what they belong to. Damage is found, forgery is not.
Check Checksum(std::string_view associated, std::span<const std::byte> data) {
  const auto of_data = Crc32cLanes(data);
  const auto of_place = Crc32cLanes(std::as_bytes(std::span(associated)));
  Check check;
  for (size_t i = 0; i < of_data.size(); ++i) {
    const uint32_t lane = of_data[i] ^ of_place[i];
    for (size_t byte = 0; byte < 4; ++byte) {
      check[4 * i + byte] = static_cast<uint8_t>(lane >> (8 * byte));
    }
  }
  return check;
}

// What a piece is authenticated with, beside its data.
std::string PieceAssociated(const Bytes32& binding, const KvPiece& piece) {
  std::string bytes(Text(binding));
  AppendNumber(piece.layer, 4, &bytes);
  AppendNumber(piece.index, 4, &bytes);
  return bytes;
}

std::array<uint8_t, kNonceBytes> PieceNonce(const KvPiece& piece) {
  std::array<uint8_t, kNonceBytes> nonce = {};
  for (size_t i = 0; i < 4; ++i) {
    nonce[i] = static_cast<uint8_t>(piece.layer >> (8 * i));
    nonce[4 + i] = static_cast<uint8_t>(piece.index >> (8 * i));
  }
  return nonce;
}

}  // namespace

SecretKey SecretKey::Random() {
  std::string bytes = RandomBytes(kBytes);
  SecretKey key = *FromBytes(bytes);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  return key;
}

absl::StatusOr<SecretKey> SecretKey::FromBytes(std::string_view bytes) {
  if (bytes.size() != kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a key has ", kBytes, " bytes, not ", bytes.size()));
  }
  SecretKey key;
  std::memcpy(key.bytes_.data(), bytes.data(), kBytes);
  return key;
}

SecretKey::~SecretKey() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

std::string_view SecretKey::bytes() const { return Text(bytes_); }

std::string SecretKey::Id() const {
  return ToHex(Derive(*this, kIdPurpose, KvSalt{}).bytes().substr(0, 8));
}

std::string SealBytes(const SecretKey& key, std::string_view context, std::string_view plain) {
  const KvSalt salt = RandomSalt();
  const CipherContext cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  InitCipher(cipher.get(), Derive(key, kStringPurpose, salt), /*encrypt=*/true);
  std::string sealed(Text(salt));
  sealed.append(plain).append(kKvCheckBytes, '\0');
  auto* const data = reinterpret_cast<uint8_t*>(sealed.data()) + salt.size();
  (void)RunCipher(cipher.get(), {}, context, {data, plain.size()}, data + plain.size());
  return sealed;
}

absl::StatusOr<std::string> OpenBytes(const SecretKey& key, std::string_view context,
                                      std::string_view sealed) {
  KvSalt salt;
  if (sealed.size() < kSealedExtraBytes) {
    return absl::DataLossError(
        absl::StrCat("encrypted bytes are damaged: only ", sealed.size(), " bytes"));
  }
  std::memcpy(salt.data(), sealed.data(), salt.size());
  const CipherContext cipher(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free);
  InitCipher(cipher.get(), Derive(key, kStringPurpose, salt), /*encrypt=*/false);
  std::string plain(sealed.substr(salt.size()));
  const size_t size = plain.size() - kKvCheckBytes;
  auto* const data = reinterpret_cast<uint8_t*>(plain.data());
  if (!RunCipher(cipher.get(), {}, context, {data, size}, data + size)) {
    return absl::DataLossError(
        "encrypted bytes do not open: they were changed, or belong to another key or place");
  }
  plain.resize(size);
  return plain;
}

Bytes32 KvBinding(const KvOwner& owner, const KvExtent& extent) {
  std::string bytes = "withy kv binding 1";
  AppendNumber(owner.context_id.size(), 4, &bytes);
  bytes.append(owner.context_id).append(Text(owner.model));
  AppendNumber(extent.id, 8, &bytes);
  AppendNumber(extent.format, 1, &bytes);
  AppendNumber(static_cast<uint64_t>(extent.protection), 1, &bytes);
  AppendNumber(extent.layers, 4, &bytes);
  AppendNumber(extent.block_bytes, 4, &bytes);
  bytes.append(Text(extent.salt));
  for (const Bytes32& identity : extent.identities) bytes.append(Text(identity));
  if (extent.format == static_cast<uint8_t>(engine::KvFormat::kQ8Global)) {
    for (int layer = 0; layer < engine::KvLayerSet::kMost; ++layer) {
      bytes.push_back(owner.windowed.Has(layer) ? '\1' : '\0');
    }
  }
  Bytes32 digest;
  SHA256(Raw(bytes), bytes.size(), digest.data());
  return digest;
}

void KvPieceSealer::Deleter::operator()(evp_cipher_ctx_st* context) const {
  EVP_CIPHER_CTX_free(context);
}

KvPieceSealer::KvPieceSealer(const KvOwner& owner, const KvExtent& extent, Direction direction)
    : binding_(KvBinding(owner, extent)) {
  const bool encrypted = extent.protection == KvProtection::kAes256Gcm;
  Invariant(encrypted == (owner.key != nullptr), "an encrypted extent needs its key");
  if (!encrypted) return;
  cipher_.reset(EVP_CIPHER_CTX_new());
  InitCipher(cipher_.get(), Derive(*owner.key, kExtentPurpose, extent.salt),
             direction == Direction::kSeal);
}

KvPieceSealer::KvPieceSealer(KvPieceSealer&&) noexcept = default;
KvPieceSealer& KvPieceSealer::operator=(KvPieceSealer&&) noexcept = default;
KvPieceSealer::~KvPieceSealer() = default;

void KvPieceSealer::Seal(const KvPiece& piece, std::span<std::byte> bytes) {
  const std::string associated = PieceAssociated(binding_, piece);
  auto* const check = reinterpret_cast<uint8_t*>(bytes.data()) + piece.bytes;
  if (cipher_ == nullptr) {
    std::memcpy(check, Checksum(associated, bytes.first(piece.bytes)).data(), kKvCheckBytes);
    return;
  }
  (void)RunCipher(cipher_.get(), PieceNonce(piece), associated,
                  {reinterpret_cast<uint8_t*>(bytes.data()), piece.bytes}, check);
}

bool KvPieceSealer::Open(const KvPiece& piece, std::span<std::byte> bytes) {
  const std::string associated = PieceAssociated(binding_, piece);
  auto* const check = reinterpret_cast<uint8_t*>(bytes.data()) + piece.bytes;
  if (cipher_ == nullptr) {
    return std::memcmp(check, Checksum(associated, bytes.first(piece.bytes)).data(),
                       kKvCheckBytes) == 0;
  }
  return RunCipher(cipher_.get(), PieceNonce(piece), associated,
                   {reinterpret_cast<uint8_t*>(bytes.data()), piece.bytes}, check);
}

}  // namespace withy::context_store
