// The shape of a model and its RoPE, read from GGUF metadata and checked. Neighbours: packer.h
// checks tensors against it; model/ computes with it. Reads no tensor bytes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf/reader.h"
#include "engine/weights/architecture.h"

namespace withy::engine {

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
  int32_t context_length = 0;  // at most the sliding window: withy computes only full attention
  float rms_epsilon = 0.0f;
  RopePairing rope_pairing = RopePairing::kAdjacent;
  // Angle of pair i at position p: p * rope_frequencies[i]; [head_dim / 2]. Includes scaling:
  // linear (also if a factor has no type), llama3, and the divisors of a rope_freqs.weight tensor.
  std::vector<float> rope_frequencies;
  QkNorm qk_norm = QkNorm::kNone;
  bool needs_qkv_bias = false;

  int32_t query_heads_per_group() const { return heads / kv_heads; }
  int32_t q_rows() const { return heads * head_dim; }
  int32_t kv_rows() const { return kv_heads * head_dim; }

  // Unit by which levels cut attention (docs/method-elastic.md, Units): one query head of every
  // group; with fewer than three query heads per KV head, a KV head with its query heads.
  bool cuts_kv_heads() const { return query_heads_per_group() < 3; }
  int32_t query_heads_per_unit() const {
    return cuts_kv_heads() ? query_heads_per_group() : kv_heads;
  }
  // KV heads of a level with `query_heads` query heads.
  int32_t kv_heads_of(int32_t query_heads) const {
    return cuts_kv_heads() ? query_heads / query_heads_per_group() : kv_heads;
  }
};

// A missing key has the same default as in llama.cpp. Errors: UNIMPLEMENTED (architecture, RoPE
// scaling, experts, non-causal attention; names what is supported), NOT_FOUND or INVALID_ARGUMENT
// naming file, key, value and limit; the messages of several in one.
absl::StatusOr<ModelShape> ReadShape(const GgufFile& file);

}  // namespace withy::engine
