// The shape of a model and its RoPE, read from GGUF metadata and checked.
// Neighbours: packer.h checks the tensors against it; model/ computes by it. Knows no tensor bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"

namespace withy::engine {

// Which elements of a head RoPE turns together.
enum class RopePairing {
  kAdjacent,  // (2i, 2i+1): "llama" files, whose converter permutes Q and K rows so
  kHalves,    // (i, i + head_dim/2): "qwen2", "qwen3"
};

struct ModelShape {
  std::string architecture;
  std::string name;  // general.name as UTF-8, at most kMaxShownBytes; may be empty
  int32_t layers = 0;
  int32_t d_model = 0;
  int32_t heads = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int32_t d_ff = 0;
  int32_t vocab_size = 0;
  int32_t context_length = 0;  // never beyond a sliding window: withy computes full attention only
  float rms_epsilon = 0.0f;
  RopePairing rope_pairing = RopePairing::kAdjacent;
  // Angle of pair i at position p: p * rope_frequencies[i]; [head_dim / 2]. Scaling is in them:
  // linear (also where a factor has no type), llama3, and the divisors of a rope_freqs.weight
  // tensor.
  std::vector<float> rope_frequencies;
  bool qk_norm = false;         // qwen3: RMS norm of each head of Q and K before RoPE
  bool needs_qkv_bias = false;  // qwen2

  int32_t query_heads_per_group() const { return heads / kv_heads; }
  int32_t q_rows() const { return heads * head_dim; }
  int32_t kv_rows() const { return kv_heads * head_dim; }

  // What a level cuts attention by (docs/method-elastic.md, Units): one query head of every
  // group; with fewer than three query heads a KV head, a KV head with its query heads.
  bool cuts_kv_heads() const { return query_heads_per_group() < 3; }
  int32_t query_heads_per_unit() const {
    return cuts_kv_heads() ? query_heads_per_group() : kv_heads;
  }
  // KV heads of a level with so many query heads.
  int32_t kv_heads_of(int32_t query_heads) const {
    return cuts_kv_heads() ? query_heads / query_heads_per_group() : kv_heads;
  }
};

// "llama, qwen2, qwen3"
std::string_view SupportedArchitectures();

// What a key that is missing means is as in llama.cpp. Errors: UNIMPLEMENTED (architecture, RoPE
// scaling, experts, attention that is not causal: names what is supported),
// NOT_FOUND or INVALID_ARGUMENT naming file, key, value and limit.
absl::StatusOr<ModelShape> ReadShape(const GgufFile& file);

}  // namespace withy::engine
