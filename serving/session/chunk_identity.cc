#include "serving/session/chunk_identity.h"

#include <openssl/evp.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace withy::serving {
namespace {

constexpr std::string_view kChunkDomain = "withy chunk 1";
constexpr std::string_view kCompressedDomain = "withy chunk over compressed 1";
constexpr std::string_view kModelDomain = "withy model 3";

class Sha256 {
 public:
  Sha256() : context_(EVP_MD_CTX_new()) {
    Check(context_ != nullptr && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1);
  }

  // Each part of variable length is preceded by its length, so that different inputs never give the
  // same bytes.
  void AddSized(std::string_view bytes) {
    AddValue(static_cast<uint64_t>(bytes.size()));
    Add(bytes.data(), bytes.size());
  }
  template <typename T>
  void AddValue(T value) {
    static_assert(std::is_trivially_copyable_v<T>);
    Add(&value, sizeof(value));
  }
  void Add(const void* data, size_t size) {
    Check(EVP_DigestUpdate(context_.get(), data, size) == 1);
  }
  Identity Finish() {
    Identity digest;
    unsigned size = 0;
    Check(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1 && size == digest.size());
    return digest;
  }

 private:
  // Digests in memory fail only when OpenSSL itself is broken or memory is out.
  static void Check(bool ok) {
    if (!ok) std::abort();
  }
  struct Free {
    void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context_;
};

std::span<const int32_t> ChunkTokens(std::span<const int32_t> tokens, size_t chunk) {
  const size_t first = chunk * engine::kChunkTokens;
  return tokens.subspan(first, std::min<size_t>(engine::kChunkTokens, tokens.size() - first));
}

}  // namespace

Identity ModelIdentity(std::string_view model_id, const engine::KvGeometry& geometry,
                       std::string_view kernel_target) {
  Sha256 hash;
  hash.AddSized(kModelDomain);
  hash.AddSized(model_id);
  hash.AddSized(kernel_target);
  hash.AddValue<int32_t>(geometry.layers);
  hash.AddValue<int32_t>(geometry.kv_heads);
  hash.AddValue<int32_t>(geometry.head_dim);
  return hash.Finish();
}

Identity ChunkNamer::Name(const Identity& previous, std::span<const int32_t> tokens,
                          int32_t level_percent, bool over_compressed) const {
  Sha256 hash;
  hash.AddSized(over_compressed ? kCompressedDomain : kChunkDomain);
  hash.Add(previous.data(), previous.size());
  hash.Add(model_.data(), model_.size());
  hash.AddSized(lora_id_);
  hash.AddValue<int32_t>(level_percent);
  hash.AddValue<uint8_t>(static_cast<uint8_t>(format_));
  hash.AddValue<uint64_t>(tokens.size());
  hash.Add(tokens.data(), tokens.size_bytes());
  return hash.Finish();
}

size_t ChunkNamer::MatchingChunks(std::span<ChunkName> resident,
                                  std::span<const int32_t> tokens) const {
  Identity previous{};
  for (size_t i = 0; i < resident.size(); ++i) {
    ChunkName& name = resident[i];
    const size_t first = i * engine::kChunkTokens;
    const auto filled = static_cast<size_t>(name.tokens);
    const bool fits =
        filled >= 1 && filled <= engine::kChunkTokens && first + filled <= tokens.size();
    if (!fits) return i;
    const std::span<const int32_t> own = tokens.subspan(first, filled);
    const Identity exact = Name(previous, own, name.level_percent);
    name.over_compressed = exact != name.identity;
    if (name.over_compressed &&
        Name(previous, own, name.level_percent, /*over_compressed=*/true) != name.identity) {
      return i;
    }
    previous = exact;
    if (filled < engine::kChunkTokens) return i + 1;
  }
  return resident.size();
}

Identity ChunkNamer::PreviousOf(std::span<const ChunkName> names, size_t number,
                                std::span<const int32_t> tokens) const {
  size_t at = number;
  while (at > 0 && names[at - 1].over_compressed) --at;
  Identity previous = at == 0 ? Identity{} : names[at - 1].identity;
  for (; at < number; ++at) {
    previous = Name(previous, ChunkTokens(tokens, at), names[at].level_percent);
  }
  return previous;
}

void ChunkNamer::Rename(size_t number, std::span<const int32_t> tokens, bool over_compressed,
                        std::vector<ChunkName>* names) const {
  ChunkName& name = (*names)[number];
  name.identity = Name(PreviousOf(*names, number, tokens), ChunkTokens(tokens, number),
                       name.level_percent, over_compressed);
  name.over_compressed = over_compressed;
}

std::vector<ChunkName> ChunkNamer::NameAll(std::span<const ChunkName> kept,
                                           std::span<const int32_t> tokens,
                                           std::span<const int32_t> levels,
                                           size_t compressed_from) const {
  std::vector<ChunkName> names(kept.begin(), kept.end());
  const size_t chunks = (tokens.size() + engine::kChunkTokens - 1) / engine::kChunkTokens;
  if (names.size() >= chunks) return names;
  Identity previous = PreviousOf(names, names.size(), tokens);
  while (names.size() < chunks) {
    const size_t i = names.size();
    const std::span<const int32_t> chunk = ChunkTokens(tokens, i);
    const bool over_compressed = i >= compressed_from;
    const Identity exact = Name(previous, chunk, levels[i]);
    names.push_back({.identity = over_compressed ? Name(previous, chunk, levels[i], true) : exact,
                     .tokens = static_cast<int32_t>(chunk.size()),
                     .level_percent = levels[i],
                     .over_compressed = over_compressed});
    previous = exact;
  }
  return names;
}

}  // namespace withy::serving
