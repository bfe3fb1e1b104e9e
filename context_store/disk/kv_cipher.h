// Encryption at rest by AES-256-GCM (OpenSSL): keys, sealed byte strings (wrapped keys, text), and
// the pieces of KV extents. Neighbours: context_keys.h keeps one data key a context,
// kv_segments.h seals and opens pieces. No I/O.
//
// Why no nonce repeats: no key that is stored encrypts data itself. Each sealed string and each
// extent draws 16 random bytes, its salt, which are stored beside it, and is encrypted under
// HMAC-SHA256(key, purpose | salt). Under such a derived key a string is one message with nonce 0,
// and the pieces of an extent have the nonces (layer, piece), each used once, since extents are
// never rewritten. A repeated nonce needs two equal salts under one key: after 2^32 extents that
// has probability 2^-65. Neither a crash nor a database restored from a backup, which would repeat
// a counter, changes that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "context_store/disk/kv_index.h"
#include "engine/kv/layer_set.h"

struct evp_cipher_ctx_st;  // OpenSSL's EVP_CIPHER_CTX

namespace withy::context_store {

// 256 random bits. The bytes are overwritten when the object dies.
class SecretKey {
 public:
  static constexpr size_t kBytes = 32;

  static SecretKey Random();
  // Errors: INVALID_ARGUMENT unless there are 32 bytes.
  static absl::StatusOr<SecretKey> FromBytes(std::string_view bytes);
  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  ~SecretKey();

  std::string_view bytes() const;
  // 16 hexadecimal digits that tell keys apart and reveal nothing about them.
  std::string Id() const;

 private:
  SecretKey() = default;
  std::array<uint8_t, kBytes> bytes_ = {};
};

// Encrypts `plain`; the result is kSealedExtraBytes longer. `context` is not stored, and only the
// same `context` opens the result: name there what the bytes are and whose.
inline constexpr size_t kSealedExtraBytes = sizeof(KvSalt) + kKvCheckBytes;
std::string SealBytes(const SecretKey& key, std::string_view context, std::string_view plain);
// Errors: DATA_LOSS (the bytes were changed, or belong to another key or context).
absl::StatusOr<std::string> OpenBytes(const SecretKey& key, std::string_view context,
                                      std::string_view sealed);

// Whose KV an extent holds, and the context's data key.
struct KvOwner {
  std::string context_id;
  Bytes32 model = {};
  engine::KvLayerSet windowed = {};  // what extents of kQ8Global lack
  // Null: checksums instead of encryption. Shared, since a read that was started may outlive the
  // context.
  std::shared_ptr<const SecretKey> key;
};

// SHA-256 over what an extent is: context id, model, and all fields of `extent` except its place
// on disk; of kQ8Global also the layers that it lacks. An extent that lies where another is
// expected has another binding and does not open.
Bytes32 KvBinding(const KvOwner& owner, const KvExtent& extent);

// Seals or opens the pieces of one extent. One thread at a time.
class KvPieceSealer {
 public:
  enum class Direction : uint8_t { kSeal, kOpen };

  // Preconditions: extent.protection is kAes256Gcm if and only if the owner has a key.
  KvPieceSealer(const KvOwner& owner, const KvExtent& extent, Direction direction);
  KvPieceSealer(KvPieceSealer&&) noexcept;
  KvPieceSealer& operator=(KvPieceSealer&&) noexcept;
  ~KvPieceSealer();

  // `bytes` is the data of `piece`, encrypted in place, and kKvCheckBytes of room for the check.
  void Seal(const KvPiece& piece, std::span<std::byte> bytes);
  // The inverse. False if the data or the check are not those that Seal made of this extent's
  // piece; the data are then unspecified.
  [[nodiscard]] bool Open(const KvPiece& piece, std::span<std::byte> bytes);

 private:
  struct Deleter {
    void operator()(evp_cipher_ctx_st* context) const;
  };
  Bytes32 binding_;
  std::unique_ptr<evp_cipher_ctx_st, Deleter> cipher_;  // null = checksums
};

}  // namespace withy::context_store
