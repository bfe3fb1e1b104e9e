#include "engine/weights/sha256.h"

#include <openssl/evp.h>

#include <array>
#include <cstdio>
#include <memory>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace withy::engine {
namespace {

class Sha256Digest {
 public:
  Sha256Digest() { EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr); }
  void Add(std::span<const uint8_t> bytes) {
    EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
  }
  std::string Finish() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
    unsigned length = 0;
    EVP_DigestFinal_ex(context_.get(), digest.data(), &length);
    return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), length});
  }

 private:
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_{EVP_MD_CTX_new()};
};

}  // namespace

std::string Sha256Of(std::span<const uint8_t> bytes) {
  Sha256Digest digest;
  digest.Add(bytes);
  return digest.Finish();
}

std::string Sha256Of(const GgufFile& file) {
  Sha256Digest digest;
  for (const GgufPart& part : file.parts()) digest.Add(part.bytes);
  return digest.Finish();
}

absl::StatusOr<std::string> Sha256OfFile(const std::string& path) {
  const std::unique_ptr<std::FILE, decltype(&std::fclose)> in(std::fopen(path.c_str(), "rb"),
                                                              &std::fclose);
  if (in == nullptr) return ErrnoError(absl::StrCat("open ", path));
  Sha256Digest digest;
  std::vector<uint8_t> piece(1 << 20);
  while (const size_t got = std::fread(piece.data(), 1, piece.size(), in.get())) {
    digest.Add({piece.data(), got});
  }
  if (std::ferror(in.get()) != 0) return ErrnoError(absl::StrCat("read ", path));
  return digest.Finish();
}

}  // namespace withy::engine
